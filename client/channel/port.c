/* SPDX-License-Identifier: Apache-2.0 */
#include "port.h"

#include <errno.h>
#include <inttypes.h>
#include <stdlib.h>
#include <string.h>

#include "geometry.h"
#include "memory/array.h"
#include "session/client.h"
#include "session/interrupt.h"
#include "session/options.h"

#define SLOTS_DEFAULT 8
#define STEP_ALIGN    256 /* bytes, of a frame's address */
#define BUSY_NS       NSEC_PER_SEC
#define TRIES         16 /* of a name that others make and unlink meanwhile */

static const char *const mode_names[] = {"fifo", "latest"};
static const char *const metadata[] = {
    "{\"caid.channel\":{\"version\":1,\"mode\":\"fifo\"}}",
    "{\"caid.channel\":{\"version\":1,\"mode\":\"latest\"}}",
};

/* What caid_channel_create() is asked for. */
struct spec {
    struct caid_channel_options options;
    const char *name;
    bool latest;
    int64_t shape[PROTO_NDIM_MAX], strides[PROTO_NDIM_MAX];
    uint64_t deadline_ns;
};

const char *
channel_name(const struct caid_channel *channel)
{
    const char *name = caid_array_get_info(channel->array)->name;

    return name ? name : "";
}

int
channel_fail_broken(const struct caid_channel *channel, struct caid_error *error)
{
    return fail(error, CAID_ERR_ABANDONED,
                "channel \"%s\": a stream was to signal in it that cannot: its CUDA context "
                "failed, or it captured a graph",
                channel_name(channel));
}

int
channel_check(const struct caid_channel *channel, struct caid_error *error)
{
    struct caid_client *client = channel->client;

    if (atomic_load(&channel->lost)) {
        pthread_mutex_lock(&client->lock);
        int r = fail_again(error, &client->lost);
        pthread_mutex_unlock(&client->lock);
        return r;
    }
    return channel_is_broken(channel) ? channel_fail_broken(channel, error) : 0;
}

int
channel_sleep(const struct caid_client *client, _Atomic uint64_t *waits,
              const struct fence *fence, uint64_t deadline_ns, uint64_t *look_ns,
              struct caid_error *error)
{
    if (*look_ns == 0)
        *look_ns = clock_now_ns() + CHANNEL_SLICE_NS;
    atomic_fetch_add(waits, 1);
    int r = fence_wait_submitted(client, fence, min_u64(deadline_ns, *look_ns), error);
    atomic_fetch_sub(waits, 1);
    uint64_t now = clock_now_ns();
    if (r == -ETIMEDOUT ? now >= deadline_ns : r != 0)
        return r;
    /* a page that contradicts itself would end each sleep at once */
    if (now >= deadline_ns)
        return fail(error, CAID_ERR_TIMEOUT, "page %" PRIu64 " did not go on in time",
                    fence->page->id);
    if (now < *look_ns)
        return 0;
    *look_ns = 0;
    return interrupt_ask(client, error);
}

int
channel_lane(struct caid_channel *channel, uint64_t stream, struct lane **ret,
             struct caid_error *error)
{
    int32_t device = caid_array_get_info(channel->array)->device;
    int r = 0;

    if (channel->on_host && !atomic_load_explicit(&channel->registered, memory_order_relaxed)) {
        r = caid_array_register(channel->array, error);
        atomic_store_explicit(&channel->registered, r == 0, memory_order_relaxed);
    }
    return r < 0 ? r : lane_get(channel->client, stream, device, ret, error);
}

/* ---- life ---- */

int
channel_list(struct caid_channel *channel, struct caid_error *error)
{
    int r = client_check_awake(channel->client, error);
    if (r < 0)
        return r;
    LIST_INSERT_HEAD(&channel->client->channels->all, channel, entry);
    channel->is_listed = true;
    resume_watch(channel->client);
    if (channel->client->lost.code != 0)
        atomic_store(&channel->lost, true);
    return 0;
}

static void
drop_pages(struct caid_channel *channel)
{
    others_drop(&channel->readers);
    others_drop(&channel->news);
    if (channel->producer)
        page_unref(channel->producer);
    if (channel->joined)
        page_unref(channel->joined);
    if (channel->page)
        page_unref(channel->page);
}

/* Never drops the client's last reference: the calling thread has entered the client. */
void
channel_unref(struct caid_channel *channel)
{
    if (--channel->refs > 0)
        return;
    drop_pages(channel);
    if (channel->last)
        lane_put(channel->last);
    pthread_mutex_destroy(&channel->lock);
    client_unref(channel->client);
    free(channel);
}

/* A child after fork() has neither the pages nor the lanes. */
static void
channel_forget(struct caid_channel *channel)
{
    fd_close(channel->ready.fd);
    caid_array_close(channel->array);
    client_unref(channel->client);
    free(channel);
}

void
caid_channel_close(struct caid_channel *channel)
{
    if (!channel)
        return;
    struct caid_client *client = channel->client;
    struct caid_array *array = channel->array;
    if (fork_guard_crossed(&client->guard)) {
        channel_forget(channel);
        return;
    }
    ready_close(channel);
    if (channel->page && channel->produces)
        put_close(channel);
    else if (channel->page)
        places_close(channel);
    client_enter_anyway(client);
    if (channel->is_listed)
        LIST_REMOVE(channel, entry);
    channel->closed = true;
    member_leave(channel);
    call_flush(client);
    channel_unref(channel);
    client_leave(client);
    caid_array_close(array);
}

DEFINE_CLEANUP(struct caid_channel *, caid_channel_close)

/* Takes the array over, also if it fails. */
static struct caid_channel *
channel_new(struct caid_client *client, struct caid_array *array, bool produces, bool latest)
{
    const struct caid_array_info *info = caid_array_get_info(array);
    struct caid_channel *channel = calloc(1, sizeof(*channel));

    if (!channel) {
        caid_array_close(array);
        return NULL;
    }
    channel->client = client_ref(client);
    channel->array = array;
    channel->produces = produces;
    channel->latest = latest;
    channel->on_host = info->host_ptr != NULL;
    channel->n_slots = (uint32_t)info->shape[0];
    channel->step = (uint64_t)info->strides[0];
    channel->view = (struct core_view){.n_slots = channel->n_slots, .latest = latest};
    channel->next = 1;
    channel->refs = 1;
    ready_init(&channel->ready);
    pthread_mutex_init(&channel->lock, NULL);
    return channel;
}

/* How long the daemon, and who is behind it, may take. */
static uint64_t
deadline_for(const struct caid_client *client, const struct caid_channel_options *options)
{
    return deadline_of(options->timeout_ns ? options->timeout_ns : client->call_timeout_ns);
}

struct caid_array *
caid_channel_array(const struct caid_channel *channel)
{
    return channel ? channel->array : NULL;
}

bool
caid_channel_is_fifo(const struct caid_channel *channel)
{
    return channel && !channel->latest;
}

/* ---- the array ---- */

static bool
is_text(const char *a, const char *b)
{
    return strcmp(a ? a : "", b ? b : "") == 0;
}

/* *ret_latest: its mode. */
static int
check_channel(const struct caid_array *array, bool *ret_latest, struct caid_error *error)
{
    const struct caid_array_info *info = caid_array_get_info(array);

    *ret_latest = is_text(info->metadata, metadata[true]);
    if ((*ret_latest || is_text(info->metadata, metadata[false])) && info->ndim > 0 &&
        info->shape[0] >= 2 && info->shape[0] <= CHANNEL_SLOTS_MAX && info->nbytes > 0)
        return 0;
    return fail(error, CAID_ERR_INVALID, "\"%s\" is an array, but no channel", info->name);
}

static const char *
find_misfit(const struct spec *spec, const struct caid_array_info *info, bool latest)
{
    const struct caid_channel_options *o = &spec->options;

    if (latest != spec->latest)
        return "mode";
    if (!is_text(info->typestr, o->typestr) || !is_text(info->descr, o->descr))
        return "type";
    if (info->ndim != o->ndim + 1 ||
        memcmp(info->shape + 1, spec->shape + 1, o->ndim * sizeof(int64_t)) != 0)
        return "shape";
    if (info->shape[0] != spec->shape[0])
        return "number of slots";
    if (!is_text(info->memory, o->memory))
        return "memory";
    return info->device != o->device ? "device" : NULL;
}

static int
check_fit(const struct spec *spec, const struct caid_array *array, struct caid_error *error)
{
    const struct caid_array_info *info = caid_array_get_info(array);
    bool latest;

    int r = check_channel(array, &latest, error);
    if (r < 0)
        return r;
    const char *misfit = find_misfit(spec, info, latest);
    if (!misfit)
        return 0;
    return fail(error, CAID_ERR_INVALID,
                "channel \"%s\" is there with another %s: it is \"%s\", of %" PRId64
                " frames of %u dimensions and type %s, in \"%s\" memory of device %d",
                info->name, misfit, mode_names[latest], info->shape[0], info->ndim - 1,
                info->typestr, info->memory, info->device);
}

static int
open_there(struct caid_client *client, const struct spec *spec, struct caid_array **ret,
           struct caid_error *error)
{
    struct caid_open_options options = {.struct_size = sizeof(options),
                                        .pool = spec->options.pool,
                                        .mode = "rw",
                                        .host_only = true};
    struct caid_array *array;

    int r = caid_array_open(client, &array, spec->name, &options, error);
    if (r == 0)
        r = check_fit(spec, array, error);
    else
        return r;
    if (r == 0)
        *ret = array;
    else
        caid_array_close(array);
    return r;
}

static int
make_array(struct caid_client *client, const struct spec *spec, struct caid_array **ret,
           struct caid_error *error)
{
    const struct caid_channel_options *o = &spec->options;
    const struct caid_create_options options = {
        .struct_size = sizeof(options),
        .name = spec->name,
        .pool = o->pool,
        .device = o->device,
        .typestr = o->typestr,
        .descr = o->descr,
        .shape = spec->shape,
        .strides = spec->strides,
        .ndim = o->ndim + 1,
        .memory = o->memory,
        .metadata = metadata[spec->latest],
        .host_only = true,
    };

    return caid_array_create(client, ret, &options, error);
}

/* Others may make the name, and unlink it, meanwhile. */
static int
get_array(struct caid_client *client, const struct spec *spec, struct caid_array **ret,
          struct caid_error *error)
{
    struct caid_error why = {0};
    int r = -ENOENT;

    for (int i = 0; i < TRIES && (i == 0 || why.code == CAID_ERR_NOT_FOUND); i++) {
        r = make_array(client, spec, ret, &why);
        if (r < 0 && why.code == CAID_ERR_EXISTS)
            r = open_there(client, spec, ret, &why);
        if (r == 0)
            return 0;
    }
    return fail_again(error, &why);
}

/* ---- create ---- */

static int
read_mode(const char *name, bool *ret_latest, struct caid_error *error)
{
    *ret_latest = !name || is_text(name, mode_names[true]);
    if (*ret_latest || is_text(name, mode_names[false]))
        return 0;
    return fail(error, CAID_ERR_INVALID, "mode \"%s\" is neither \"latest\" nor \"fifo\"",
                name);
}

static int
check_spec(const struct caid_channel_options *o, struct caid_error *error)
{
    int r = check_type(o->typestr, o->descr, NULL, error);
    if (r == 0)
        r = check_shape(o->ndim, o->shape, error);
    if (r == 0 && o->ndim == PROTO_NDIM_MAX)
        r = fail(error, CAID_ERR_INVALID, "a frame has at most %d dimensions",
                 PROTO_NDIM_MAX - 1);
    if (r == 0 && (o->slots == 1 || o->slots > CHANNEL_SLOTS_MAX))
        r = fail(error, CAID_ERR_INVALID, "a channel has 2 to %d slots, not %u",
                 CHANNEL_SLOTS_MAX, o->slots);
    if (r == 0 && !is_text(o->memory, "device") && !is_text(o->memory, "pinned"))
        r = fail(error, CAID_ERR_INVALID,
                 "the memory of a channel is \"device\" or \"pinned\", not \"%s\"", o->memory);
    return r;
}

/* The steps of a frame are those of C order. */
static int
lay_out(struct spec *spec, struct caid_error *error)
{
    const struct caid_channel_options *o = &spec->options;
    uint64_t itemsize = typestr_itemsize(MSG_STR(o->typestr)), nbytes;
    char why[GEOMETRY_WHY_MAX];

    if (itemsize == 0)
        return fail(error, CAID_ERR_INVALID, "typestr \"%s\" is of no array", o->typestr);
    spec->shape[0] = o->slots;
    if (o->ndim > 0)
        memcpy(spec->shape + 1, o->shape, o->ndim * sizeof(int64_t));
    if (geometry_c_order(o->ndim, spec->shape + 1, itemsize, spec->strides + 1, &nbytes, why) <
        0)
        return fail(error, CAID_ERR_INVALID, "%s", why);
    if (nbytes == 0 || nbytes > INT64_MAX / CHANNEL_SLOTS_MAX - STEP_ALIGN)
        return fail(error, CAID_ERR_INVALID, "a frame of a channel has 1 byte or more");
    spec->strides[0] = (int64_t)((nbytes + STEP_ALIGN - 1) / STEP_ALIGN * STEP_ALIGN);
    return 0;
}

static int
read_spec(const struct caid_client *client, struct spec *ret,
          const struct caid_channel_options *options, struct caid_error *error)
{
    struct caid_channel_options *o = &ret->options;

    int r = options_read(o, sizeof(*o), options, error);
    if (r < 0)
        return r;
    if (o->slots == 0)
        o->slots = SLOTS_DEFAULT;
    if (!o->memory)
        o->memory = "device";
    ret->deadline_ns = deadline_for(client, o);
    r = read_mode(o->mode, &ret->latest, error);
    if (r == 0)
        r = check_spec(o, error);
    return r < 0 ? r : lay_out(ret, error);
}

/* One that has just closed, or was killed, may be known to the daemon yet. */
static int
join_as_producer(struct caid_channel *channel, uint64_t deadline_ns, struct caid_error *error)
{
    uint64_t until_ns = min_u64(deadline_ns, clock_now_ns() + BUSY_NS);
    struct pauses pauses = {0};

    for (;;) {
        int r = member_join(channel, false, deadline_ns, error);
        if (r != -EBUSY || clock_now_ns() >= until_ns)
            return r;
        r = interrupt_pause(channel->client, &pauses, until_ns, error);
        if (r < 0)
            return r;
    }
}

int
caid_channel_create(struct caid_client *client, struct caid_channel **ret, const char *name,
                    const struct caid_channel_options *options, struct caid_error *error)
{
    _cleanup_(caid_channel_closep) struct caid_channel *channel = NULL;
    struct spec spec = {.name = name};
    struct caid_array *array;

    int r = client_check_given(client, ret && options, ret ? "options" : "ret", error);
    if (r == 0)
        r = read_spec(client, &spec, options, error);
    if (r == 0)
        r = client_check_name(client, name, spec.options.pool, error);
    if (r == 0)
        r = get_array(client, &spec, &array, error);
    if (r < 0)
        return r;
    channel = channel_new(client, array, true, spec.latest);
    if (!channel)
        return fail_errno(error, ENOMEM, "no memory for a channel");
    r = member_take(channel, error);
    if (r == 0)
        r = join_as_producer(channel, spec.deadline_ns, error);
    if (r == 0)
        r = member_begin(channel, spec.deadline_ns, error);
    if (r == 0)
        *ret = TAKE_PTR(channel);
    return r;
}

/* ---- open ---- */

static int
open_reading(struct caid_client *client, const char *name, const struct caid_channel_options *o,
             struct caid_array **ret, struct caid_error *error)
{
    const struct caid_open_options options = {.struct_size = sizeof(options),
                                              .pool = o->pool,
                                              .device_uuid = o->device_uuid,
                                              .host_only = true};

    return caid_array_open(client, ret, name, &options, error);
}

/* What is left until the deadline. */
static uint64_t
time_left(uint64_t deadline_ns)
{
    uint64_t now = clock_now_ns();

    return deadline_ns == UINT64_MAX ? CAID_FOREVER : deadline_ns > now ? deadline_ns - now : 0;
}

/* Opens the array as soon as there is one of the name. */
static int
wait_for_array(struct caid_client *client, const char *name,
               const struct caid_channel_options *o, uint64_t deadline_ns,
               struct caid_array **ret, struct caid_error *error)
{
    struct caid_error why = {0};
    struct caid_watch *watch;
    struct caid_change change;

    int r = caid_watch_new(client, &watch, name, o->pool, NULL, NULL, error);
    if (r < 0)
        return r;
    for (;;) {
        r = open_reading(client, name, o, ret, &why);
        if (r == 0 || why.code != CAID_ERR_NOT_FOUND)
            break;
        r = caid_watch_next(watch, time_left(deadline_ns), &change, &why);
        if (r < 0)
            break;
    }
    caid_watch_close(watch);
    if (why.code == CAID_ERR_TIMEOUT)
        return fail(error, CAID_ERR_TIMEOUT, "nobody made channel \"%s\" in time", name);
    return r < 0 ? fail_again(error, &why) : 0;
}

static int
find_array(struct caid_client *client, const char *name, const struct caid_channel_options *o,
           uint64_t deadline_ns, struct caid_array **ret, struct caid_error *error)
{
    struct caid_error why = {0};

    int r = open_reading(client, name, o, ret, &why);
    if (r == 0)
        return 0;
    if (o->wait && why.code == CAID_ERR_NOT_FOUND)
        return wait_for_array(client, name, o, deadline_ns, ret, error);
    return fail_again(error, &why);
}

static int
check_depth(uint32_t depth, bool latest, struct caid_error *error)
{
    uint32_t max = latest ? CHANNEL_DEPTH_MAX : CHANNEL_DEPTH_MAX - 1;

    if (depth <= max)
        return 0;
    return fail(error, CAID_ERR_INVALID,
                "a reader of a channel \"%s\" has a depth of 1 to %u, "
                "not %u",
                mode_names[latest], max, depth);
}

static int
join(struct caid_channel *channel, const struct caid_channel_options *o, uint64_t deadline_ns,
     struct caid_error *error)
{
    struct caid_client *client = channel->client;

    int r = check_depth(o->depth, channel->latest, error);
    if (r < 0)
        return r;
    channel->depth = o->depth ? o->depth : 1;
    r = member_take(channel, error);
    if (r < 0)
        return r;
    pthread_mutex_lock(&client->lock);
    r = channel_list(channel, error);
    pthread_mutex_unlock(&client->lock);
    if (r == 0)
        r = member_join(channel, o->wait, deadline_ns, error);
    if (r == -ETIMEDOUT)
        return fail(error, CAID_ERR_TIMEOUT,
                    "channel \"%s\": no producer has let this reader in, in time",
                    channel_name(channel));
    if (r == 0)
        producer_take_answer(channel);
    return r;
}

int
caid_channel_open(struct caid_client *client, struct caid_channel **ret, const char *name,
                  const struct caid_channel_options *options, struct caid_error *error)
{
    _cleanup_(caid_channel_closep) struct caid_channel *channel = NULL;
    struct caid_channel_options o;
    struct caid_array *array;
    bool latest;

    int r = client_check_given(client, ret != NULL, "ret", error);
    if (r == 0)
        r = options_read(&o, sizeof(o), options, error);
    if (r == 0)
        r = client_check_name(client, name, o.pool, error);
    if (r < 0)
        return r;
    uint64_t deadline_ns = deadline_for(client, &o);
    r = find_array(client, name, &o, deadline_ns, &array, error);
    if (r < 0)
        return r;
    r = check_channel(array, &latest, error);
    if (r < 0) {
        caid_array_close(array);
        return r;
    }
    channel = channel_new(client, array, false, latest);
    if (!channel)
        return fail_errno(error, ENOMEM, "no memory for a channel");
    r = join(channel, &o, deadline_ns, error);
    if (r == 0)
        *ret = TAKE_PTR(channel);
    return r;
}
