/* SPDX-License-Identifier: Apache-2.0 */
/*
 * Fuzzes what a client believes of a daemon. The first bytes choose calls of the API, the others
 * what a thread answers: right replies in which something is changed, and any others. Whatever
 * comes, calls return, mapped memory can be read to its stated end, and nothing is left.
 */
#include <fcntl.h>
#include <pthread.h>
#include <stdio.h>
#include <stdlib.h>
#include <sys/mman.h>
#include <sys/socket.h>
#include <sys/un.h>
#include <unistd.h>

#include "../fuzz/input.h"
#include "base/packet.h"
#include "caid/arena.h"
#include "caid/caid.h"
#include "caid/handoff.h"
#include "timeline.h"
#include "vmm.h"

#define N_CALLS    12
#define N_OBJECTS  4
#define BLOCK_SIZE (UINT64_C(1) << 21)
#define UUID       "GPU-63616964-736f-6674-6375-646100000001"

int LLVMFuzzerTestOneInput(const uint8_t *data, size_t size);

static const char *const texts[] = {
    UUID,     "a",
    "b",      "uid:1",
    "|u1",    "<f4",
    "<f8",    "|V8",
    "",       "soft",
    "cuda",   "device",
    "pinned", "mapped",
    "legacy", "managed",
    "memops", "host",
    "events", "GPU-0",
    "|O8",    "[[\"x\",\"<f8\"]]",
};

enum file {
    FILE_PINNED,
    FILE_DEVICE,
    FILE_PAGE,
    FILE_OTHER,
    N_FILES
};

static struct {
    int listener;
    char path[32];
    int files[N_FILES];
} world;

/* ---- the daemon ---- */

struct daemon {
    struct input input;
    int conn;
    uint32_t id;
    int fds[2];
    size_t n_fds;
};

static enum msg_method
next_request(struct daemon *d)
{
    static uint8_t packet[PROTO_PACKET_MAX];
    struct msg m;

    for (;;) {
        ssize_t n = packet_recv(d->conn, packet, NULL, 0, NULL, 0);
        if (n <= 0)
            return MSG_UNKNOWN;
        require(msg_parse(&m, packet, (size_t)n) == 0);
        enum msg_method method = m.method;
        bool asks = m.type == MSG_REQUEST;
        d->id = asks ? m.id : d->id;
        msg_deinit(&m);
        if (asks)
            return method;
    }
}

static void
send_result(struct daemon *d, uint32_t id, enum msg_method method, const void *result)
{
    struct msg_buf buf = {0};

    if (msg_encode_result(&buf, id, method, result) == 0)
        packet_send(d->conn, buf.data, buf.n, d->fds, d->n_fds, 0);
    msg_buf_deinit(&buf);
}

static void
send_error(struct daemon *d)
{
    struct msg_buf buf = {0};
    const struct msg_error error = {.code = (uint32_t)input_u64(&d->input),
                                    .text = MSG_STR("\x1b[2J"),
                                    .cuda = (int32_t)input_u64(&d->input)};

    if (msg_encode_error(&buf, d->id, &error) == 0)
        packet_send(d->conn, buf.data, buf.n, NULL, 0, 0);
    msg_buf_deinit(&buf);
}

static const struct msg_device device = {
    .uuid = {UUID, sizeof(UUID) - 1},
    .name = {"fake", 4},
    .total = 1 << 30,
    .granularity = BLOCK_SIZE,
    .handoff = {"memops", 6},
};

/* Where changes are made. */
struct right {
    struct msg_hello_result hello;
    struct msg_device device;
    struct msg_arrays_result arrays;
    struct msg_array array[2];
    struct msg_block block;
    struct msg_page_result pages;
    struct msg_open_timeline_result timeline;
    struct msg_page page;
    struct msg_fences_result fences;
    struct msg_fence fence;
    struct msg_publish_result publish;
    struct msg_publish_part_result part;
};

static void
give(struct daemon *d, enum file file)
{
    d->fds[0] = world.files[file];
    d->n_fds = 1;
}

static void *
right_arrays(struct daemon *d, struct right *r, enum msg_method method)
{
    static const int64_t shape[] = {64, 4}, all = BLOCK_SIZE;
    enum file file = input_u8(&d->input) % 2 ? FILE_DEVICE : FILE_PINNED;

    give(d, file);
    r->array[0] = (struct msg_array){.lease = 1 + input_u8(&d->input),
                                     .block = 13,
                                     .nbytes = 1024,
                                     .typestr = MSG_STR("<f4"),
                                     .shape = {shape, 2}};
    if (method == MSG_CREATE) { /* as an arena asks */
        r->array[0].nbytes = BLOCK_SIZE;
        r->array[0].typestr = MSG_STR("|u1");
        r->array[0].shape = (struct msg_i64s){&all, 1};
    }
    r->array[1] = r->array[0];
    r->array[1].lease++;
    r->block = (struct msg_block){.block = 13,
                                  .size = BLOCK_SIZE,
                                  .device = device.uuid,
                                  .kind = MSG_STR(file == FILE_DEVICE ? "device" : "pinned")};
    r->arrays = (struct msg_arrays_result){.pool = MSG_STR("uid:1"),
                                           .arrays = r->array,
                                           .n_arrays = method == MSG_CREATE
                                                           ? 1
                                                           : 1 + input_u8(&d->input) % 2,
                                           .blocks = &r->block,
                                           .n_blocks = 1};
    return &r->arrays;
}

static void *
right_fences(struct daemon *d, struct right *r)
{
    if (input_u8(&d->input) % 2 == 0)
        return &r->fences; /* none */
    give(d, FILE_PAGE);
    r->fence = (struct msg_fence){.page = r->page.page, .value = 3};
    r->fences = (struct msg_fences_result){.fences = &r->fence,
                                           .n_fences = 1,
                                           .pages = &r->page,
                                           .n_pages = 1};
    return &r->fences;
}

/* What may be right as it is; NULL of other methods. */
static void *
right_answer(struct daemon *d, enum msg_method method, struct right *r)
{
    static const struct msg_str feature = {"none", 4};

    *r = (struct right){.device = device, .page = {.page = 7, .size = TIMELINE_PAGE_BYTES}};
    r->hello = (struct msg_hello_result){.version = 1,
                                         .features = {&feature, 1},
                                         .server = MSG_STR("fake 0"),
                                         .driver = MSG_STR("soft"),
                                         .pool = MSG_STR("uid:1"),
                                         .devices = &r->device,
                                         .n_devices = 1,
                                         .packet_max = PROTO_PACKET_MAX,
                                         .fds_max = PROTO_FDS_MAX,
                                         .open_max = 16};
    r->pages = (struct msg_page_result){.pages = &r->page, .n_pages = 1};
    r->timeline = (struct msg_open_timeline_result){.page = 7, .pages = &r->page, .n_pages = 1};
    r->publish.generation = r->part.generation = 1;
    r->part.part = 1 + input_u8(&d->input);
    switch (method) {
    case MSG_HELLO: return &r->hello;
    case MSG_CREATE:
    case MSG_OPEN: return right_arrays(d, r, method);
    case MSG_BEGIN:
    case MSG_FENCES: return right_fences(d, r);
    case MSG_PAGE: return give(d, FILE_PAGE), &r->pages;
    case MSG_OPEN_TIMELINE: return give(d, FILE_PAGE), &r->timeline;
    case MSG_PUBLISH: return &r->publish;
    case MSG_PUBLISH_PART: return &r->part;
    default: return NULL;
    }
}

static void
change_fds(struct daemon *d)
{
    d->n_fds = input_below(&d->input, ARRAY_SIZE(d->fds) + 1);
    for (size_t i = 0; i < d->n_fds; i++)
        d->fds[i] = world.files[input_below(&d->input, N_FILES)];
}

/* Of 8 answers to what is known here 3 have nothing changed. */
static void
answer(struct daemon *d, enum msg_method method)
{
    const struct record *record = proto_methods[method].result;
    uint8_t choice = method == MSG_HELLO ? 0 : input_u8(&d->input);
    struct right right;
    void *result = NULL;

    d->n_fds = 0;
    if (choice < 128)
        result = right_answer(d, method, &right);
    if (choice >= 64)
        change_fds(d);
    if (!result)
        result = input_record(&d->input, record);
    else if (choice >= 24)
        for (uint8_t n = choice % 4; n > 0; n--)
            input_change(&d->input, record, result);
    if (method == MSG_HELLO && input_u8(&d->input) > 200)
        input_change(&d->input, record, result);
    send_result(d, choice == 255 ? d->id + 1 : d->id, method, result);
}

static void
send_bytes(struct daemon *d)
{
    uint8_t bytes[64];

    for (size_t i = 0; i < sizeof(bytes); i++)
        bytes[i] = input_u8(&d->input);
    packet_send(d->conn, bytes, 1 + bytes[0] % sizeof(bytes), NULL, 0, 0);
}

/* Nothing that waits is left without an answer: when the bytes are used up, it hangs up. */
static void *
daemon_main(void *arg)
{
    struct daemon *d = arg;
    enum msg_method method;

    d->conn = accept4(world.listener, NULL, NULL, SOCK_CLOEXEC);
    require(d->conn >= 0);
    while ((method = next_request(d)) != MSG_UNKNOWN && !input_is_over(&d->input)) {
        uint8_t choice = method == MSG_HELLO ? 0 : input_u8(&d->input);
        if (choice < 232)
            answer(d, method);
        else if (choice < 248)
            send_error(d);
        else
            send_bytes(d);
    }
    close(d->conn);
    return NULL;
}

/* ---- the client ---- */

struct objects {
    struct caid_client *client;
    struct caid_array *arrays[N_OBJECTS];
    struct caid_bracket *brackets[N_OBJECTS];
    struct caid_timeline *timelines[N_OBJECTS];
    struct caid_watch *watches[N_OBJECTS];
    struct caid_arena *arena;
    uint64_t ptrs[N_OBJECTS]; /* of the arena */
};

static int
look_at(const volatile char *byte)
{
    return *byte;
}

/* The first byte and the last one. */
static void
look(const struct caid_array *array)
{
    const struct caid_array_info *info = caid_array_get_info(array);
    const char *start = info->host_ptr;
    uint64_t last = info->itemsize - 1;

    if (!start || info->nbytes == 0)
        return;
    for (uint32_t i = 0; i < info->ndim; i++)
        last += (uint64_t)(info->shape[i] - 1) * (uint64_t)info->strides[i];
    look_at(start);
    look_at(start + last);
    require(strlen(info->typestr) <= PROTO_TYPESTR_MAX);
}

static int
open_array(struct objects *o, uint8_t i)
{
    static const char *const names[] = {"a", "b"};
    struct caid_open_options options = CAID_INIT(options);
    struct caid_array *opened[2] = {NULL, NULL};
    size_t n = 1 + i / 32 % 2;

    options.mode = i & 16 ? "rw" : "r";
    if (caid_array_open_many(o->client, opened, names, n, &options, NULL) < 0)
        return -1;
    for (size_t k = 0; k < n; k++) {
        caid_array_close(o->arrays[(i + k) % N_OBJECTS]);
        look(o->arrays[(i + k) % N_OBJECTS] = opened[k]);
    }
    return 0;
}

static int
create_array(struct objects *o, uint8_t i)
{
    static const int64_t shape = 100;
    struct caid_create_options options = CAID_INIT(options);
    struct caid_array **array = &o->arrays[i % N_OBJECTS];

    options.typestr = "|u1";
    options.shape = &shape;
    options.ndim = 1;
    options.name = i & 16 ? "a" : NULL;
    caid_array_close(*array);
    *array = NULL;
    if (caid_array_create(o->client, array, &options, NULL) == 0)
        look(*array);
    return 0;
}

static int
use_array(struct objects *o, uint8_t i)
{
    struct caid_bracket **bracket = &o->brackets[i % N_OBJECTS];
    struct caid_array *array = o->arrays[i % N_OBJECTS];

    if (*bracket) {
        caid_bracket_end(*bracket, NULL);
        caid_bracket_free(*bracket);
        *bracket = NULL;
    } else if (array) {
        caid_array_begin(array, bracket, i >> 4 & 1, i >> 5 & 1, 1, NULL);
    }
    return 0;
}

static int
publish(struct objects *o, uint8_t i)
{
    static const int64_t shape = 4;
    struct caid_array *array = o->arrays[i % N_OBJECTS];
    struct caid_part_options part = CAID_INIT(part);

    part.typestr = "|u1";
    part.shape = &shape;
    part.ndim = 1;
    part.stream = 1;
    if (!array)
        return 0;
    if (i & 16)
        return caid_array_publish_part(array, 8, "p", &part, NULL, NULL);
    return caid_array_publish(array, "a", NULL, NULL, NULL);
}

static int
use_timeline(struct objects *o, uint8_t i)
{
    struct caid_timeline **timeline = &o->timelines[i % N_OBJECTS];
    uint64_t value;

    if (!*timeline && i & 16)
        return caid_timeline_create(o->client, timeline, "t", NULL, NULL);
    if (!*timeline)
        return caid_timeline_open(o->client, timeline, "t", NULL, NULL);
    caid_timeline_value(*timeline, &value, NULL);
    return caid_timeline_signal(*timeline, i >> 5 & 1, i, NULL);
}

static int
use_watch(struct objects *o, uint8_t i)
{
    struct caid_watch **watch = &o->watches[i % N_OBJECTS];
    struct caid_change change;

    if (!*watch)
        return caid_watch_new(o->client, watch, "a", NULL, NULL, NULL, NULL);
    return caid_watch_next(*watch, 1, &change, NULL);
}

static int
use_arena(struct objects *o, uint8_t i)
{
    struct caid_arena_options options = CAID_INIT(options);
    uint64_t *ptr = &o->ptrs[i % N_OBJECTS];

    options.block_size = BLOCK_SIZE;
    if (!o->arena)
        return caid_arena_new(o->client, &o->arena, &options, NULL);
    if (*ptr) {
        look_at((const char *)(uintptr_t)*ptr + i);
        caid_arena_free(o->arena, *ptr, 0, NULL);
        *ptr = 0;
        return 0;
    }
    return caid_arena_alloc(o->arena, (1 + (uint64_t)i) << 13, 0, ptr, NULL);
}

static int
close_array(struct objects *o, uint8_t i)
{
    caid_array_close(o->arrays[i % N_OBJECTS]);
    o->arrays[i % N_OBJECTS] = NULL;
    return 0;
}

/* Whatever a list has can be read. */
#define READER(type, ...)                                               \
    static int read_##type(const struct type *r, void *userdata)        \
    {                                                                   \
        const char *const strings[] = {__VA_ARGS__};                    \
        for (size_t i = 0; i < ARRAY_SIZE(strings); i++)                \
            *(size_t *)userdata += strings[i] ? strlen(strings[i]) : 0; \
        return 0;                                                       \
    }
READER(caid_entry, r->pool, r->name, r->typestr, r->memory)
READER(caid_details, r->entry->name, r->descr, r->metadata,
       r->n_holders ? r->holders[0]->client : "")
READER(caid_pool, r->name)
READER(caid_user, r->uid ? "" : "root")
READER(caid_ticket, r->pool, r->name)
READER(caid_timeline_entry, r->pool, r->name, r->client)

static int
ask(struct objects *o, uint8_t i)
{
    struct caid_status status = CAID_INIT(status);
    struct caid_memory_info memory = CAID_INIT(memory);
    struct caid_flushed flushed = CAID_INIT(flushed);
    struct caid_list_options all = CAID_INIT(all);
    struct caid_client *c = o->client;
    size_t n = 0;

    all.all = i & 16;
    switch (i % 14) {
    case 0: return caid_list(c, &all, read_caid_entry, &n, NULL);
    case 1: return caid_show(c, "a", NULL, read_caid_details, &n, NULL);
    case 2: return caid_unnamed(c, &all, read_caid_details, &n, NULL);
    case 3: return caid_pools(c, read_caid_pool, &n, NULL);
    case 4: return caid_users(c, read_caid_user, &n, NULL);
    case 5: return caid_timelines(c, &all, read_caid_timeline_entry, &n, NULL);
    case 6: return caid_client_status(c, &status, NULL);
    case 7: return caid_memory_info(c, 0, &memory, NULL);
    case 8: return caid_flush(c, -1, &flushed, NULL);
    case 10: return caid_ranges(c, &all, read_caid_details, &n, NULL);
    case 9: return caid_unlink(c, "a", NULL, NULL);
    case 11: return caid_tickets(c, read_caid_ticket, &n, NULL);
    case 12: return caid_withdraw(c, NULL, NULL, NULL);
    default: return caid_client_dispatch(c, NULL);
    }
}

static int (*const calls[])(struct objects *o, uint8_t i) = {
    open_array, open_array, create_array, use_array, use_array, publish, use_timeline,
    use_watch,  use_arena,  close_array,  ask,       ask,       ask,
};

static void
end(struct objects *o)
{
    for (size_t i = 0; i < N_OBJECTS; i++) {
        caid_bracket_free(o->brackets[i]);
        caid_timeline_close(o->timelines[i]);
        caid_watch_close(o->watches[i]);
        caid_array_close(o->arrays[i]);
    }
    caid_arena_close(o->arena);
    caid_client_close(o->client);
}

static void
run_client(const uint8_t *choices, size_t n)
{
    struct caid_connect_options options = CAID_INIT(options);
    struct objects o = {0};

    options.socket = world.path;
    options.timeout_ns = CAID_FOREVER;
    if (caid_connect(&o.client, &options, NULL) < 0)
        return;
    for (size_t i = 0; i + 1 < n; i += 2)
        calls[choices[i] % ARRAY_SIZE(calls)](&o, choices[i + 1]);
    end(&o);
}

/* ---- both ---- */

static int
sealed_file(size_t size)
{
    int fd = memfd_create("file", MFD_CLOEXEC | MFD_ALLOW_SEALING);

    require(fd >= 0 && ftruncate(fd, (off_t)size) == 0);
    require(fcntl(fd, F_ADD_SEALS, F_SEAL_SHRINK | F_SEAL_GROW) == 0);
    return fd;
}

static int
device_file(void)
{
    struct drv *drv;
    struct drv_error error;
    struct vmm_alloc alloc;
    int fd;

    require(drv_open(&drv, "soft", &error) == 0);
    require(vmm_alloc_create(drv, 0, BLOCK_SIZE, false, &alloc, &error) == 0);
    require(vmm_alloc_export(drv, &alloc, &fd, &error) == 0);
    vmm_alloc_release(drv, &alloc, &error);
    drv_free(drv);
    return fd;
}

/* A page whose streams have come to 5. */
static int
page_file(void)
{
    int fd = sealed_file(TIMELINE_PAGE_BYTES);
    const uint64_t five = 5;

    for (size_t i = 0; i < TIMELINE_SLOTS; i++) {
        off_t at = (off_t)(i * sizeof(struct timeline_slot));
        require(pwrite(fd, &five, 8, at + (off_t)offsetof(struct timeline_slot, done)) == 8);
        require(pwrite(fd, &five, 8, at + (off_t)offsetof(struct timeline_slot, submitted)) ==
                8);
    }
    return fd;
}

/* The socket's file is gone as soon as there is an fd of it. */
static void
world_init(void)
{
    struct sockaddr_un address = {.sun_family = AF_UNIX};

    setenv("CAID_CUDA_DRIVER", "soft", 1);
    setenv("CAID_SOFTCUDA_UUID", UUID, 1);
    snprintf(address.sun_path, sizeof(address.sun_path), "/tmp/caid-fuzz-%d", (int)getpid());
    world.listener = socket(AF_UNIX, SOCK_SEQPACKET | SOCK_CLOEXEC, 0);
    require(bind(world.listener, (struct sockaddr *)&address, sizeof(address)) == 0);
    require(listen(world.listener, 1) == 0);
    snprintf(world.path, sizeof(world.path), "/proc/self/fd/%d",
             open(address.sun_path, O_PATH | O_CLOEXEC));
    unlink(address.sun_path);
    world.files[FILE_PINNED] = sealed_file(BLOCK_SIZE);
    world.files[FILE_DEVICE] = device_file();
    world.files[FILE_OTHER] = open("/dev/null", O_RDWR | O_CLOEXEC);
}

int
LLVMFuzzerTestOneInput(const uint8_t *data, size_t size)
{
    static struct daemon d;
    size_t n_calls = size < 2 * N_CALLS ? size : 2 * N_CALLS;
    pthread_t thread;

    if (!world.listener)
        world_init();
    world.files[FILE_PAGE] = page_file();
    input_init(&d.input, data + n_calls, size - n_calls, texts, ARRAY_SIZE(texts));
    require(pthread_create(&thread, NULL, daemon_main, &d) == 0);
    run_client(data, n_calls);
    pthread_join(thread, NULL);
    close(world.files[FILE_PAGE]);
    return 0;
}
