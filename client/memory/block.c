/* SPDX-License-Identifier: Apache-2.0 */
#include "block.h"

#include <errno.h>
#include <inttypes.h>
#include <stdlib.h>
#include <string.h>

#include "array.h"
#include "base/clock.h"
#include "drain.h"
#include "lease.h"
#include "reservation.h"
#include "session/client.h"
#include "session/feature.h"
#include "session/interrupt.h"

/* An idle block up to IDLE_BLOCK (those that small arrays share) stays mapped for IDLE_NS, all
 * together up to IDLE_BYTES. */
#define IDLE_BLOCK (UINT64_C(64) << 20)
#define IDLE_BYTES (UINT64_C(1) << 30)
#define IDLE_NS    NSEC_PER_SEC
/* So long an unmapped block, or so many bytes of them, wait for a moment in which no call is under
 * way. After that, make_barrier() makes such a moment. */
#define BARRIER_NS    (100 * NSEC_PER_MSEC)
#define BARRIER_BYTES (UINT64_C(256) << 20)

static const char *const kind_names[BLOCK_N_KINDS] = {"device", "legacy", "pinned"};

const char *
block_kind_name(enum block_kind kind)
{
    return kind_names[kind];
}

int
block_kind_find(struct msg_str name)
{
    for (int i = 0; i < BLOCK_N_KINDS; i++)
        if (msg_str_eq(name, kind_names[i]))
            return i;
    return -1;
}

static int
block_cmp(const struct block *a, const struct block *b)
{
    return CMP(a->id, b->id);
}

RB_GENERATE_STATIC(block_tree, block, entry, block_cmp)

void
block_table_init(struct block_table *table)
{
    RB_INIT(&table->tree);
    TAILQ_INIT(&table->idle);
    TAILQ_INIT(&table->unmapped);
    pthread_rwlockattr_t attr; /* copies in a loop do not keep an exchange waiting */
    pthread_rwlockattr_init(&attr);
    pthread_rwlockattr_setkind_np(&attr, PTHREAD_RWLOCK_PREFER_WRITER_NONRECURSIVE_NP);
    pthread_rwlock_init(&table->addresses, &attr);
    pthread_rwlockattr_destroy(&attr);
}

struct block *
block_find(struct block_table *table, uint64_t id)
{
    struct block key = {.id = id};
    return RB_FIND(block_tree, &table->tree, &key);
}

/* A block that is too large to stay mapped is the first in the list. */
static void
make_idle(struct block_table *table, struct block *block)
{
    table->idle_bytes += block->size;
    if (block->size > IDLE_BLOCK) {
        block->idle_at = 0;
        TAILQ_INSERT_HEAD(&table->idle, block, idle_entry);
    } else {
        block->idle_at = clock_now_ns() + IDLE_NS;
        TAILQ_INSERT_TAIL(&table->idle, block, idle_entry);
    }
}

static void
end_idle(struct block_table *table, struct block *block)
{
    if (block->unmapped) {
        TAILQ_REMOVE(&table->unmapped, block, idle_entry);
        table->unmapped_bytes -= block->size;
        block->unmapped = false;
    } else {
        TAILQ_REMOVE(&table->idle, block, idle_entry);
        table->idle_bytes -= block->size;
    }
}

int
block_add(struct caid_client *client, struct block_spec *spec)
{
    struct block_table *table = client->blocks;
    struct block *block = calloc(1, sizeof(*block));

    if (!block)
        return -ENOMEM;
    block->id = spec->id;
    RB_INSERT(block_tree, &table->tree, block);
    table->n++;
    block->size = spec->size;
    block->device = spec->device;
    block->kind = spec->kind;
    memcpy(block->handle, spec->handle, sizeof(block->handle));
    block->fd = TAKE_FD(spec->fd);
    pthread_mutex_init(&block->lock, NULL);
    make_idle(table, block);
    return 0;
}

void
block_lease(struct caid_client *client, struct block *block)
{
    block->n_leased++;
    if (block->leases++ == 0 && block->n_kept == 0)
        end_idle(client->blocks, block);
}

void
block_unlease(struct caid_client *client, struct block *block)
{
    if (--block->leases == 0 && block->n_kept == 0)
        make_idle(client->blocks, block);
}

/* ---- kept ---- */

struct caid_mapping {
    struct caid_client *client; /* a reference */
    struct block *block;
};

/* The array's lease keeps the block until it is counted. */
int
caid_array_keep_mapping(struct caid_array *array, struct caid_mapping **ret,
                        struct caid_error *error)
{
    int r = CHECK_GIVEN_OF(array, ret, error);

    if (r == 0 && (!array->block || array->block->kind != BLOCK_DEVICE))
        r = fail(error, CAID_ERR_UNSUPPORTED,
                 "only a mapping of a device's memory can be kept");
    if (r < 0)
        return r;
    struct caid_mapping *made = malloc(sizeof(*made));
    if (!made)
        return fail_errno(error, ENOMEM, "no memory for a mapping");
    *made = (struct caid_mapping){client_ref(array->client), array->block};
    pthread_mutex_lock(&made->client->lock);
    made->block->n_kept++;
    pthread_mutex_unlock(&made->client->lock);
    *ret = made;
    return 0;
}

static void
unkeep(struct caid_client *client, struct block *block)
{
    if (--block->n_kept == 0 && block->leases == 0)
        make_idle(client->blocks, block);
}

void
caid_mapping_release(struct caid_mapping *mapping)
{
    if (!mapping)
        return;
    struct caid_client *client = mapping->client;
    if (!fork_guard_crossed(&client->guard)) { /* in a child the block is the parent's */
        client_enter_anyway(client);
        unkeep(client, mapping->block);
        client_leave(client);
    }
    free(mapping);
    client_unref(client);
}

/* ---- mapping: all of it under block->lock ---- */

/* After a failure the block is as before, or imported and not mapped; block_free() ends the
 * import. */
static int
fail_map(const struct block *block, int r, const struct drv_error *cause,
         struct caid_error *error)
{
    return fail_driver(error, r, cause, "cannot map %s block %" PRIu64 " of %zu bytes",
                       block_kind_name(block->kind), block->id, block->size);
}

struct block_call {
    struct call call;
    int *ret_fd;
};

static int
take_fd(struct caid_client *client UNUSED, struct call *call, const void *result UNUSED,
        struct call_fds *fds)
{
    if (fds->n != 1)
        return -EPROTO;
    if (!call->left)
        *container_of(call, struct block_call, call)->ret_fd = TAKE_FD(fds->fd[0]);
    return 0;
}

/* Nothing that is under way depends on the block meanwhile: its lock may be held. */
static int
ask_for_fd(struct caid_client *client, struct block *block, struct caid_error *error)
{
    const struct msg_block_params params = {.block = block->id};
    struct block_call *block_call = call_new(sizeof(*block_call), MSG_BLOCK, &params);
    struct call *call = block_call ? &block_call->call : NULL;

    if (block_call) {
        block_call->ret_fd = &block->fd;
        call->take = take_fd;
        call->has_fds = true;
    }
    return call_make(client, call, error);
}

static int
import_device(struct caid_client *client, struct block *block, struct caid_error *error)
{
    const struct drv *drv = client->gpu.drv;
    struct drv_error cause = {0};

    if (block->imported)
        return 0;
    int r = block->fd < 0 ? ask_for_fd(client, block, error) : 0;
    if (r < 0)
        return r;
    r = vmm_alloc_import(drv, block->fd, block->size, &block->alloc, &cause);
    if (r < 0)
        return fail_driver(error, r, &cause, "cannot import block %" PRIu64 " of %zu bytes",
                           block->id, block->size);
    block->imported = true;
    block->fd = fd_close(block->fd);
    return 0;
}

/* Maps the block in the reservation that is in use, or anywhere. */
static int
map_anew(struct caid_client *client, struct block *block, struct block_map *map,
         enum vmm_mode mode, int ordinal, struct caid_error *error)
{
    const struct drv *drv = client->gpu.drv;
    struct drv_error cause = {0};
    CUdeviceptr at = 0;

    int r = reservation_take(client, block->size, &map->in, &at, error);
    if (r < 0)
        return r;
    r = vmm_map_new(drv, &block->alloc, at, ordinal, mode, &map->vmm, &cause);
    if (r < 0) {
        reservation_unref(TAKE_PTR(map->in));
        return fail_map(block, r, &cause, error);
    }
    return 0;
}

/* Maps a parked block again at its address, for all devices that it was mapped for. */
static int
map_again(struct caid_client *client, struct block *block, struct block_map *map,
          struct caid_error *error)
{
    const struct drv *drv = client->gpu.drv;
    struct drv_error cause = {0};

    int r = import_device(client, block, error);
    if (r < 0)
        return r;
    for (uint32_t place = 0; r == 0 && place < client->gpu.n_devices; place++) {
        int ordinal = client->gpu.devices[place].ordinal;
        if (map->places & UINT64_C(1) << place)
            r = map->vmm.parked ? vmm_map_unpark(drv, &map->vmm, &block->alloc, ordinal, &cause)
                                : vmm_map_allow(drv, &map->vmm, ordinal, &cause);
    }
    if (r < 0 && !map->vmm.parked)
        vmm_map_park(drv, &map->vmm, NULL);
    map->parked = map->vmm.parked;
    return r < 0 ? fail_map(block, r, &cause, error) : 0;
}

static int
map_device(struct caid_client *client, struct block *block, enum vmm_mode mode, uint32_t place,
           struct block_address *ret, struct caid_error *error)
{
    struct block_map *map = &block->maps[mode == VMM_READ_WRITE];
    int ordinal = client->gpu.devices[place].ordinal;
    struct drv_error cause = {0};
    int r = 0;

    if (map->vmm.parked)
        r = map_again(client, block, map, error);
    if (r == 0 && !(map->places & UINT64_C(1) << place)) {
        r = import_device(client, block, error);
        if (r == 0 && !map->vmm.ptr)
            r = map_anew(client, block, map, mode, ordinal, error);
        else if (r == 0 && (r = vmm_map_allow(client->gpu.drv, &map->vmm, ordinal, &cause)) < 0)
            r = fail_map(block, r, &cause, error);
        if (r == 0)
            map->places |= UINT64_C(1) << place;
    }
    if (r == 0)
        *ret = (struct block_address){.ptr = map->vmm.ptr};
    return r;
}

int
block_park(struct caid_client *client, struct block *block, struct caid_error *error)
{
    struct drv_error cause = {0};
    int r = 0;

    pthread_mutex_lock(&block->lock);
    for (size_t i = 0; r == 0 && i < ARRAY_SIZE(block->maps); i++) {
        struct block_map *map = &block->maps[i];
        map->suspended = false; /* blocks_resume() is not to map it */
        if (!map->vmm.ptr || map->vmm.parked)
            continue;
        r = vmm_map_park(client->gpu.drv, &map->vmm, &cause);
        map->parked = r == 0;
    }
    pthread_mutex_unlock(&block->lock);
    return r < 0 ? fail_driver(error, r, &cause, "cannot unmap block %" PRIu64, block->id) : 0;
}

/* ---- exchanging addresses ---- */

void
block_addresses_hold(struct caid_client *client)
{
    pthread_rwlock_rdlock(&client->blocks->addresses);
}

void
block_addresses_release(struct caid_client *client)
{
    pthread_rwlock_unlock(&client->blocks->addresses);
}

void
block_exchange_begin(struct caid_client *client, struct block *a, struct block *b)
{
    pthread_rwlock_wrlock(&client->blocks->addresses);
    pthread_mutex_lock(a->id < b->id ? &a->lock : &b->lock);
    pthread_mutex_lock(a->id < b->id ? &b->lock : &a->lock);
}

void
block_exchange_end(struct caid_client *client, struct block *a, struct block *b)
{
    pthread_mutex_unlock(&a->lock);
    pthread_mutex_unlock(&b->lock);
    pthread_rwlock_unlock(&client->blocks->addresses);
}

int
block_exchange_check(const struct block *a, const struct block *b, const bool modes[2],
                     uint64_t *ret_places, struct caid_error *error)
{
    *ret_places = 0;
    for (size_t i = 0; i < ARRAY_SIZE(a->maps); i++) {
        const struct block_map *x = &a->maps[i], *y = &b->maps[i];
        if (!modes[i])
            continue;
        if (x->parked || y->parked)
            return fail(error, CAID_ERR_INVALID, "block %" PRIu64 " is unmapped",
                        x->parked ? a->id : b->id);
        if (!x->vmm.ptr || !y->vmm.ptr || x->places != y->places)
            return fail(error, CAID_ERR_INVALID,
                        "blocks %" PRIu64 " and %" PRIu64
                        " are not open in the same modes, for the same devices",
                        a->id, b->id);
        *ret_places |= x->places;
    }
    return 0;
}

/* They are parked, of the same size and in the same mode. */
static void
swap_ranges(struct block_map *x, struct block_map *y)
{
    const struct vmm_map vmm = x->vmm;
    struct caid_reservation *in = x->in;

    x->vmm = y->vmm;
    x->in = y->in;
    y->vmm = vmm;
    y->in = in;
}

static int
park_map(struct caid_client *client, const struct block *block, struct block_map *map,
         struct caid_error *error)
{
    struct drv_error cause = {0};

    int r = map->vmm.parked ? 0 : vmm_map_park(client->gpu.drv, &map->vmm, &cause);
    if (r < 0)
        return fail_driver(error, r, &cause, "cannot unmap block %" PRIu64, block->id);
    map->parked = true;
    return 0;
}

/* Unmaps both, and maps each where the other one was; first b, the new one. */
static int
exchange_maps(struct caid_client *client, struct block *a, struct block_map *x, struct block *b,
              struct block_map *y, bool *ret_swapped, struct caid_error *error)
{
    int r = park_map(client, a, x, error);
    if (r == 0)
        r = park_map(client, b, y, error);
    if (r < 0)
        return r;
    swap_ranges(x, y);
    *ret_swapped = true;
    r = map_again(client, b, y, error);
    return r < 0 ? r : map_again(client, a, x, error);
}

/* First a, the old one. What cannot be unmapped where it is now is not to be used any more. */
static void
undo_maps(struct caid_client *client, struct block *a, struct block_map *x, struct block *b,
          struct block_map *y, bool swapped)
{
    if (swapped && (park_map(client, a, x, NULL) < 0 || park_map(client, b, y, NULL) < 0)) {
        x->parked = y->parked = true;
        return;
    }
    if (swapped)
        swap_ranges(x, y);
    if (x->vmm.parked)
        map_again(client, a, x, NULL);
    if (y->vmm.parked)
        map_again(client, b, y, NULL);
}

int
block_exchange(struct caid_client *client, struct block *a, struct block *b,
               const bool modes[2], struct caid_error *error)
{
    bool swapped[ARRAY_SIZE(a->maps)] = {0};
    int r = 0;
    size_t n;

    for (n = 0; r == 0 && n < ARRAY_SIZE(a->maps); n++)
        if (modes[n])
            r = exchange_maps(client, a, &a->maps[n], b, &b->maps[n], &swapped[n], error);
    while (r < 0 && n-- > 0)
        if (modes[n])
            undo_maps(client, a, &a->maps[n], b, &b->maps[n], swapped[n]);
    return r;
}

/* ---- other kinds ---- */

static int
open_legacy(struct caid_client *client, struct block *block, uint32_t place,
            struct caid_error *error)
{
    struct drv_error cause = {0};
    const struct drv *drv;

    int r = gpu_push_place(client, place, &drv, error);
    if (r < 0)
        return r;
    r = legacy_map_new(drv, block->handle, block->size, &block->legacy, &cause);
    gpu_pop(drv);
    if (r < 0)
        return fail_map(block, r, &cause, error);
    block->place = place;
    return 0;
}

static int
map_legacy(struct caid_client *client, struct block *block, uint32_t place,
           struct block_address *ret, struct caid_error *error)
{
    if (!block->legacy) {
        int r = open_legacy(client, block, place, error);
        if (r < 0)
            return r;
    }
    if (block->place != place)
        return fail(error, CAID_ERR_UNSUPPORTED,
                    "legacy block %" PRIu64 " is open for device %d of this process: it cannot "
                    "be for device %d, too",
                    block->id, client->gpu.devices[block->place].ordinal,
                    client->gpu.devices[place].ordinal);
    *ret = (struct block_address){.ptr = block->legacy};
    return 0;
}

static int
register_pinned(struct caid_client *client, struct block *block, struct pinned_map *map,
                enum vmm_mode mode, uint32_t place, struct caid_error *error)
{
    struct drv_error cause = {0};
    const struct drv *drv;

    int r = gpu_push_place(client, place, &drv, error);
    if (r < 0)
        return r;
    block->place = place;
    r = pinned_map_register(drv, map, mode, &cause);
    gpu_pop(drv);
    return r < 0 ? fail_map(block, r, &cause, error) : 0;
}

static int
map_pinned(struct caid_client *client, struct block *block, enum vmm_mode mode, uint32_t place,
           struct block_address *ret, struct caid_error *error)
{
    struct pinned_map *map = &block->maps[mode == VMM_READ_WRITE].pinned;
    struct drv_error cause = {0};
    int r = 0;

    if (!map->host && (r = pinned_map_new(block->fd, block->size, mode, map, &cause)) < 0)
        return fail_map(block, r, &cause, error);
    if (place != BLOCK_NO_PLACE && !map->registered)
        r = register_pinned(client, block, map, mode, place, error);
    if (r < 0)
        return r;
    *ret = (struct block_address){
        .ptr = map->registered ? map->ptr : (uintptr_t)map->host,
        .host = map->host,
    };
    return 0;
}

int
block_map(struct caid_client *client, struct block *block, enum vmm_mode mode, uint32_t place,
          struct block_address *ret, struct caid_error *error)
{
    pthread_mutex_lock(&block->lock);
    int r = client_check_awake(client, error);
    if (r < 0) {
        pthread_mutex_unlock(&block->lock);
        return r;
    }
    switch (block->kind) {
    case BLOCK_LEGACY: r = map_legacy(client, block, place, ret, error); break;
    case BLOCK_PINNED: r = map_pinned(client, block, mode, place, ret, error); break;
    default: r = map_device(client, block, mode, place, ret, error); break;
    }
    pthread_mutex_unlock(&block->lock);
    return r;
}

/* ---- unmapping ---- */

/* A range that is still registered must not be unmapped: the driver would take the next mapping
 * there for registered memory. Its addresses are lost instead. */
static void
unmap_pinned(const struct drv *drv, struct pinned_map *map, bool is_gone)
{
    CUresult result = pinned_map_free(drv, map);

    if (result != CUDA_SUCCESS && (is_gone || gpu_is_dead(result)))
        pinned_map_drop(map);
    *map = (struct pinned_map){0};
}

/* Failures are not reported: the driver may return an earlier launch's error here, and the memory
 * is released either way. Under block->lock, or when nobody else has the block. */
static void
unmap(struct caid_client *client, struct block *block)
{
    const struct drv *drv = client->gpu.drv;
    const struct drv *pushed = NULL;
    struct caid_error why = {0};

    if (block->kind != BLOCK_DEVICE &&
        (block->legacy || block->maps[0].pinned.registered || block->maps[1].pinned.registered))
        gpu_push_place(client, block->place, &pushed, &why);
    for (size_t i = 0; i < ARRAY_SIZE(block->maps); i++) {
        struct block_map *map = &block->maps[i];
        if (map->vmm.ptr)
            vmm_map_free(drv, &map->vmm);
        reservation_unref(TAKE_PTR(map->in));
        if (map->pinned.host)
            unmap_pinned(drv, &map->pinned, gpu_is_gone((CUresult)why.cuda_result));
        map->places = 0;
        map->parked = map->suspended = false;
    }
    if (block->legacy)
        legacy_map_free(drv, block->legacy);
    block->legacy = 0;
    if (pushed)
        gpu_pop(pushed);
}

/* ---- a client that is suspended ---- */

static int
suspend_pinned(struct caid_client *client, struct block *block, struct block_map *map,
               struct drv_error *cause, struct caid_error *error)
{
    const struct drv *drv;

    int r = gpu_push_place(client, block->place, &drv, error);
    if (r < 0)
        return r;
    r = pinned_map_unregister(drv, &map->pinned, cause);
    gpu_pop(drv);
    return r;
}

/* Under block->lock. */
static int
suspend_map(struct caid_client *client, struct block *block, struct block_map *map,
            struct caid_error *error)
{
    struct drv_error cause = {0};
    int r;

    if ((!map->vmm.ptr && !map->pinned.registered) || map->parked)
        return 0;
    if (map->pinned.registered)
        r = suspend_pinned(client, block, map, &cause, error);
    else
        r = vmm_map_park(client->gpu.drv, &map->vmm, &cause);
    map->parked = map->suspended = r == 0;
    return r < 0 && cause.call
               ? fail_driver(error, r, &cause, "cannot unmap block %" PRIu64, block->id)
               : r;
}

static int
suspend_block(struct caid_client *client, struct block *block, struct caid_error *error)
{
    int r = 0;

    if (block->kind == BLOCK_LEGACY) /* it is idle, or its arrays are closed */
        unmap(client, block);
    for (size_t i = 0; r == 0 && i < ARRAY_SIZE(block->maps); i++)
        r = suspend_map(client, block, &block->maps[i], error);
    if (r == 0 && block->imported) {
        vmm_alloc_release(client->gpu.drv, &block->alloc, NULL); /* done either way */
        block->imported = false;
    }
    return r;
}

static int
resume_pinned(struct caid_client *client, struct block *block, struct block_map *map,
              struct caid_error *error)
{
    enum vmm_mode mode = map == &block->maps[0] ? VMM_READ : VMM_READ_WRITE;
    CUdeviceptr was = map->pinned.ptr;

    int r = register_pinned(client, block, &map->pinned, mode, block->place, error);
    map->parked = r < 0 || map->pinned.ptr != was;
    map->pinned.ptr = was;
    return r == 0 && map->parked
               ? fail(error, CAID_ERR_DRIVER,
                      "pinned block %" PRIu64 " has another address now", block->id)
               : r;
}

/* Where the daemon has freed the memory, the block stays unmapped. */
static int
resume_map(struct caid_client *client, struct block *block, struct block_map *map,
           struct caid_error *error)
{
    struct caid_error why = {0};

    if (map->pinned.host)
        return resume_pinned(client, block, map, error);
    int r = map_again(client, block, map, &why);
    return r < 0 && why.code != CAID_ERR_NOT_FOUND ? fail_again(error, &why) : 0;
}

static int
resume_block(struct caid_client *client, struct block *block, struct caid_error *error)
{
    int r = 0;

    for (size_t i = 0; r == 0 && i < ARRAY_SIZE(block->maps); i++)
        if (block->maps[i].suspended) {
            r = resume_map(client, block, &block->maps[i], error);
            block->maps[i].suspended = r < 0;
        }
    return r;
}

/* Calls fn for all blocks under their locks. A block is kept meanwhile, so that nobody frees it. */
static int
visit_blocks(struct caid_client *client,
             int (*fn)(struct caid_client *, struct block *, struct caid_error *),
             struct caid_error *error)
{
    struct block_table *table = client->blocks;
    struct block key = {.id = 0}, *block;
    int r = 0;

    pthread_mutex_lock(&client->lock);
    while (r == 0 && (block = RB_NFIND(block_tree, &table->tree, &key))) {
        key.id = block->id + 1;
        if (block->n_kept++ == 0 && block->leases == 0)
            end_idle(table, block);
        pthread_mutex_unlock(&client->lock);
        pthread_mutex_lock(&block->lock);
        r = fn(client, block, error);
        pthread_mutex_unlock(&block->lock);
        pthread_mutex_lock(&client->lock);
        unkeep(client, block);
    }
    pthread_mutex_unlock(&client->lock);
    return r;
}

/* Blocks that were forgotten before have their handles until they are freed. */
static int
wait_for_freeing(struct caid_client *client, struct caid_error *error)
{
    struct pauses pauses = {0};
    bool freeing;
    int r;

    do {
        r = interrupt_pause(client, &pauses, UINT64_MAX, error);
        pthread_mutex_lock(&client->lock);
        freeing = client->blocks->n_freeing > 0;
        pthread_mutex_unlock(&client->lock);
    } while (r == 0 && freeing);
    return r;
}

int
blocks_suspend(struct caid_client *client, struct caid_error *error)
{
    pthread_rwlock_wrlock(&client->blocks->addresses); /* copies under way have ended */
    int r = drain_contexts(client, UINT64_MAX, NULL, 0, error);
    if (r == 0)
        r = visit_blocks(client, suspend_block, error);
    pthread_rwlock_unlock(&client->blocks->addresses);
    return r < 0 ? r : wait_for_freeing(client, error);
}

int
blocks_resume(struct caid_client *client, struct caid_error *error)
{
    return visit_blocks(client, resume_block, error);
}

/* ---- idle blocks ---- */

static void
block_free(struct caid_client *client, struct block *block)
{
    unmap(client, block);
    if (block->imported)
        vmm_alloc_release(client->gpu.drv, &block->alloc, NULL);
    fd_close(block->fd);
    pthread_mutex_destroy(&block->lock);
    free(block);
}

static uint64_t
due(const struct caid_client *client)
{
    const struct block_table *table = client->blocks;

    if (!TAILQ_EMPTY(&table->unmapped) && client->n_block_calls == 0)
        return 0;
    if (!TAILQ_EMPTY(&table->unmapped) && client->n_late == 0)
        return table->unmapped_since + BARRIER_NS;
    if (TAILQ_EMPTY(&table->idle))
        return UINT64_MAX;
    return table->idle_bytes > IDLE_BYTES ? 0 : TAILQ_FIRST(&table->idle)->idle_at;
}

/* The first idle block, if it is due to be unmapped. */
static struct block *
find_due(const struct block_table *table, bool all)
{
    struct block *block = TAILQ_FIRST(&table->idle);

    if (block && (all || table->idle_bytes > IDLE_BYTES || block->idle_at <= clock_now_ns()))
        return block;
    return NULL;
}

/* Only the thread that is tidying frees blocks, so the block still exists after the lock has been
 * dropped. A lease that comes before both locks are taken keeps the mapping. One that comes later
 * waits for block->lock, and maps the block anew. */
static void
unmap_idle(struct caid_client *client, struct block *block)
{
    uint64_t n_leased = block->n_leased;

    end_idle(client->blocks, block);
    block->unmapped = true; /* or about to be */
    client->blocks->unmapped_bytes += block->size;
    TAILQ_INSERT_TAIL(&client->blocks->unmapped, block, idle_entry);
    pthread_mutex_unlock(&client->lock);

    pthread_mutex_lock(&block->lock);
    pthread_mutex_lock(&client->lock);
    bool idle = block->n_leased == n_leased;
    pthread_mutex_unlock(&client->lock);
    if (idle)
        unmap(client, block);
    pthread_mutex_unlock(&block->lock);
    pthread_mutex_lock(&client->lock);
}

/* Takes out the blocks that no reply can refer to any more, and tells the daemon before anything
 * else is sent. */
static void
forget(struct caid_client *client, struct block_list *ret)
{
    struct block_table *table = client->blocks;
    struct block *block;

    if (client->n_block_calls > 0)
        return;
    while ((block = TAILQ_FIRST(&table->unmapped))) {
        end_idle(table, block);
        RB_REMOVE(block_tree, &table->tree, block);
        table->n--;
        table->n_freeing++;
        client->reaper.n_freed++;
        lease_forget_block(client, block->id);
        TAILQ_INSERT_TAIL(ret, block, idle_entry);
    }
    call_flush(client);
}

void
block_tidy(struct caid_client *client, bool all)
{
    struct block_table *table = client->blocks;
    struct block_list dead = TAILQ_HEAD_INITIALIZER(dead);
    struct block *block;
    size_t n = 0;

    if (table->tidying)
        return; /* the thread that is tidying finds the rest */
    table->tidying = true;
    while ((block = find_due(table, all)))
        unmap_idle(client, block);
    if (!TAILQ_EMPTY(&table->unmapped))
        forget(client, &dead);
    table->tidying = false;
    if (TAILQ_EMPTY(&dead))
        return;

    pthread_mutex_unlock(&client->lock);
    while ((block = TAILQ_FIRST(&dead))) {
        TAILQ_REMOVE(&dead, block, idle_entry);
        block_free(client, block);
        n++;
    }
    pthread_mutex_lock(&client->lock);
    table->n_freeing -= n;
}

/* Calls that may refer to blocks are made without a pause. So new ones wait here until all that are
 * under way are answered, or until one is late: its answer may never come. */
static void
make_barrier(struct caid_client *client)
{
    client->barrier = true;
    while (client->n_block_calls > 0 && client->n_late == 0 && !client->reaper.stopping)
        wake_wait(&client->reaper.wake, &client->lock, UINT64_MAX);
    reaper_leave_captures_alone(client);
    block_tidy(client, false);
    client->barrier = false;
    wake_all(&client->barrier_gone);
}

static void
blocks_tidy(struct caid_client *client, bool all)
{
    struct block_table *table = client->blocks;
    uint64_t now = clock_now_ns();

    block_tidy(client, all);
    if (table->unmapped_since == 0)
        table->unmapped_since = now;
    if (!TAILQ_EMPTY(&table->unmapped)) {
        if (client->n_late > 0 || (now - table->unmapped_since < BARRIER_NS && !all &&
                                   table->unmapped_bytes <= BARRIER_BYTES))
            return;
        make_barrier(client);
    }
    table->unmapped_since = 0;
}

static void
tidy_here(struct caid_client *client)
{
    block_tidy(client, true);
}

int
block_drain(struct caid_client *client, struct caid_error *error)
{
    const struct block_table *table = client->blocks;

    int r = client_enter(client, error);
    if (r < 0)
        return r;
    r = reaper_drain(client,
                     !TAILQ_EMPTY(&table->idle) || !TAILQ_EMPTY(&table->unmapped) ||
                         table->n_freeing > 0,
                     error);
    client_leave(client);
    return r;
}

/* ---- the end ---- */

/* Frees every block's host memory and fd, and leaves the GPU's alone. */
static void
blocks_abandon(struct caid_client *client)
{
    struct block_table *table = client->blocks;
    struct block *block, *next;

    RB_FOREACH_SAFE(block, block_tree, &table->tree, next) {
        RB_REMOVE(block_tree, &table->tree, block);
        fd_close(block->fd);
        free(block);
    }
}

/* If the client keeps memory, its blocks stay mapped; else all have been freed by now. */
static void
blocks_deinit(struct caid_client *client)
{
    if (client->keeps)
        blocks_abandon(client);
    pthread_rwlock_destroy(&client->blocks->addresses);
}

static void
blocks_inventory(struct caid_client *client, struct inventory *inventory)
{
    struct block *block;

    RB_FOREACH(block, block_tree, &client->blocks->tree)
        inventory_add(inventory, INVENTORY_BLOCK, block->id);
}

const struct feature block_feature = {
    .take_inventory = blocks_inventory,
    .due = due,
    .tidy = blocks_tidy,
    .tidy_here = tidy_here,
    .deinit = blocks_deinit,
    .abandon = blocks_abandon,
};
