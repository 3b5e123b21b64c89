/* SPDX-License-Identifier: Apache-2.0 */
#include "harness.h"

#include <stdio.h>

#include "books.h"
#include "caid_test.h"
#include "done.h"

/* With so many objects, or more, all is checked at one step of as many. */
#define CHECKED_MAX 512

bool h_known;

static const char *const uuids[H_DEVICES] = {"GPU-00000000-0000-0000-0000-000000000001",
                                             "GPU-00000000-0000-0000-0000-000000000002"};

void (*h_arm)(bool on);
void (*h_on_check)(struct harness *h);

void
books_arm(bool on)
{
    if (h_arm)
        h_arm(on);
}

static void
keep_config(struct harness *h, const struct core_config *config)
{
    cr_assert_leq(config->n_pools, H_CONFIGURED);
    if (config->pools != h->pools)
        memcpy(h->pools, config->pools, config->n_pools * sizeof(h->pools[0]));
    h->config = *config;
    h->config.pools = h->pools;
    h->config.devices = NULL;
}

void
h_init(struct harness *h, void (*tweak)(struct core_config *))
{
    static const struct core_pool_config pools[H_CONFIGURED] = {
        {.name = "shared",
         .uid = 1,
         .gid = 10,
         .mode = 0640,
         .quota = UINT64_C(16) << 20,
         .legacy = true},
        {.name = "open", .uid = 1, .gid = 10, .mode = 0666, .legacy = true},
    };
    struct core_device devices[H_DEVICES] = {
        {.name = "model", .total = H_MEMORY, .granularity = H_BLOCK},
        {.name = "second", .total = H_MEMORY, .granularity = H_BLOCK},
    };
    struct core_config config = {
        .server = "caid test",
        .driver = "soft",
        .driver_path = "/model",
        .pid = 1,
        .uid = 900,
        .hello_timeout_ns = 2000,
        .ticket_ttl_ns = H_AGE_NS,
        .ticket_age_ns = UINT64_MAX,
        .limits = {.connections = 16,
                   .arrays = 200,
                   .names = 100,
                   .leases = 100,
                   .watches = 20,
                   .jobs = 8,
                   .brackets = 40,
                   .pages = 20,
                   .fds = 1000},
        .memory = {.block_size = UINT64_C(16) << 20,
                   .pending_ratio = 0.2,
                   .pending_age_ns = H_AGE_NS},
        .blocks = 50,
        .threads = H_JOBS,
        .user_mode = 0600,
        .user_legacy = true,
        .devices = devices,
        .n_devices = 1,
        .pools = pools,
        .n_pools = ARRAY_SIZE(pools),
    };

    memset(h, 0, offsetof(struct harness, holds));
    h->next_handle = 1000;
    for (int i = 0; i < H_DEVICES; i++) {
        h->capacity[i] = H_MEMORY;
        snprintf(devices[i].uuid, sizeof(devices[i].uuid), "%s", uuids[i]);
    }
    if (tweak)
        tweak(&config);
    h->n_devices = (uint32_t)config.n_devices;
    cr_assert_eq(core_new(&h->core, &config, 0), 0);
    keep_config(h, &config);
    saved_init(h);
}

void
h_sharing(struct core_config *config)
{
    config->memory.shared_max = UINT64_C(4) << 20;
    config->memory.reserve = UINT64_C(8) << 20;
    config->memory.pending_count = 10;
}

void
h_two_devices(struct core_config *config)
{
    h_sharing(config);
    config->n_devices = 2;
}

/* Arrays without a name and without holders: what keeps them is parts, sets, or another array. */
static uint64_t
count_kept(struct harness *h)
{
    struct msg_unnamed_params params = {.all = true};
    void (*arm)(bool on) = h_arm;

    h_arm = NULL; /* what is asked here is the test's own */
    uint64_t root = h_connect(h, 0, 0);
    const struct h_reply *reply = h_request(h, root, MSG_UNNAMED, &params);
    uint32_t n = reply->n_entries;
    cr_assert_not(reply->more);
    for (uint32_t i = 0; i < n && i < ARRAY_SIZE(reply->entries); i++)
        cr_assert((reply->entries[i].parts || reply->entries[i].sets ||
                   reply->companion_of[i]) &&
                      !reply->entries[i].leases,
                  "an unnamed array outlived its holders");
    h_disconnect(h, root);
    h_arm = arm;
    return n;
}

void
h_deinit(struct harness *h)
{
    struct core_counts counts;

    for (uint64_t conn = 1; conn <= h->next_conn; conn++)
        h_disconnect(h, conn);
    saved_finish(h);
    h_tick(h, H_AGE_NS); /* tickets run out */
    h_finish_all(h);
    h_age(h);
    counts = h_counts(h);
    cr_assert_eq(counts.connections + counts.departed, 0);
    cr_assert_eq(counts.leases, 0);
    cr_assert_eq(counts.watches, 0);
    cr_assert_eq(counts.jobs, 0);
    cr_assert_eq(counts.brackets + counts.pages + counts.timelines, 0);
    cr_assert_eq(h->n_pages, 0, "a page outlives its owner");
    cr_assert_eq(counts.arrays, counts.names + count_kept(h),
                 "an unnamed array outlived its holders");
    cr_assert_eq(counts.bytes, h->live_bytes, "memory and books differ");
    cr_assert_eq(counts.names, saved_count(h, false), "records and names differ (I9)");
    cr_assert_eq(counts.blocks, saved_count(h, true), "records and blocks differ (I9)");
    cr_assert_eq(counts.pending, 0);
    cr_assert_eq(counts.reserve_bytes, 0, "empty blocks are kept for ever");
    cr_assert(counts.names || !counts.users, "a uid that holds nothing is kept");
    saved_check(h);
    core_free(h->core);
    saved_deinit(h);
}

struct core_counts
h_counts(const struct harness *h)
{
    struct core_counts counts;

    core_get_counts(h->core, &counts);
    return counts;
}

/* ---- what comes out ---- */

static void
note_job(struct harness *h, const struct core_action *a)
{
    cr_assert_lt(h->n_jobs, H_JOBS);
    h->jobs[h->n_jobs++] = (struct h_job){.id = a->job,
                                          .type = a->type,
                                          .kind = a->kind,
                                          .size = a->size,
                                          .handle = a->handle,
                                          .device = a->device,
                                          .fd = a->fd};
    if (a->type == CORE_RELEASE)
        h->jobs[h->n_jobs - 1].size = books_release(h, a->handle, a->fd);
}

void
h_note(struct harness *h, const char *text)
{
    if (h->n_records < H_RECORDS)
        snprintf(h->records[h->n_records++], sizeof(h->records[0]), "%s", text);
}

static void
carry_out(struct harness *h)
{
    struct core_action a;

    saved_read(h);
    while (core_next(h->core, &a)) {
        switch (a.type) {
        case CORE_SEND:
            cr_assert_not(h->gone[a.conn], "sent to a connection that has hung up");
            h_note(h, "send");
            h->n_sent++;
            books_reply(h, &a);
            break;
        case CORE_CLOSE:
            cr_assert_not(h->closed[a.conn]);
            h->closed[a.conn] = true;
            snprintf(h->reasons[a.conn], sizeof(h->reasons[0]), "%s", a.reason);
            break;
        case CORE_ALLOC:
        case CORE_RELEASE:
        case CORE_MEMORY: note_job(h, &a); break;
        case CORE_KEEP: core_process_kept(h->core, a.conn, (uint32_t)a.conn); break;
        case CORE_LET_GO: cr_assert_gt(a.kept, 0); break;
        case CORE_FORGET:
            cr_assert(h->gone[a.conn] && !h->forgotten[a.conn]);
            h->forgotten[a.conn] = true;
            break;
        case CORE_PAGE_NEW: books_page_new(h, &a); break;
        case CORE_PAGE_SEAL: books_page_seal(h, a.page); break;
        case CORE_PAGE_KILL: books_page_kill(h, a.page); break;
        case CORE_PAGE_FREE: books_page_free(h, a.page); break;
        case CORE_AUDIT:
            h->n_audits += 1 + a.audit->n_lost;
            h->n_audits_lost += a.audit->n_lost;
            h->audit = *a.audit;
            break;
        }
    }
    if (h_known || !core_is_whole(h->core))
        return;
    if (core_objects(h->core) < CHECKED_MAX || ++h->n_unchecked % CHECKED_MAX == 0)
        core_check(h->core);
}

static void
tick(struct harness *h)
{
    books_arm(true);
    core_set_boottime(h->core, h->now_ns + h->asleep_ns);
    core_tick(h->core, h->now_ns);
    books_arm(false);
    carry_out(h);
}

/* All that comes of an event. */
static void
drain(struct harness *h)
{
    carry_out(h);
    while (!h->by_hand &&
           (core_is_behind(h->core) || core_expiry_ns(h->core) <= h->now_ns + h->asleep_ns))
        tick(h);
}

int
h_reconfigure(struct harness *h, const struct core_config *config)
{
    books_arm(true);
    int r = core_reconfigure(h->core, config, h->now_ns);
    books_arm(false);

    drain(h);
    if (r == 0)
        keep_config(h, config);
    return r;
}

/* ---- connections ---- */

uint64_t
h_connect_as(struct harness *h, uid_t uid, gid_t gid, pid_t pid)
{
    uint64_t conn = h->next_conn + 1;
    struct core_peer peer = {.uid = uid,
                             .gid = gid,
                             .pid = pid,
                             .token = {conn, ~conn},
                             .groups = (gid_t[]){7, 8},
                             .n_groups = 2};
    books_arm(true);
    int r = core_connect(h->core, conn, &peer, h->now_ns);
    books_arm(false);

    cr_assert_lt(conn, H_CONNS);
    drain(h);
    if (r == -EDQUOT || r == -EMFILE || (h->lenient && r == -ENOMEM))
        return 0;
    cr_assert_eq(r, 0);
    h->pids[conn] = pid;
    return h->next_conn = conn;
}

uint64_t
h_connect_raw(struct harness *h, uid_t uid, gid_t gid)
{
    return h_connect_as(h, uid, gid, 101 + (pid_t)h->next_conn);
}

uint64_t
h_connect(struct harness *h, uid_t uid, gid_t gid)
{
    uint64_t conn = h_connect_raw(h, uid, gid);
    struct msg_hello_params hello = {.version_min = 1, .version_max = 1};

    cr_assert_eq(h_request(h, conn, MSG_HELLO, &hello)->error, 0);
    return conn;
}

struct h_reply *
h_hello(struct harness *h, uint64_t conn, uint64_t token)
{
    const struct msg_str features[] = {MSG_STR("resume"), MSG_STR("told")};
    const uint64_t words[] = {token, ~token};
    const struct msg_hello_params hello = {.version_min = 1,
                                           .version_max = 1,
                                           .features = {features, 2},
                                           .client = MSG_STR("it"),
                                           .token = {words, token ? 2 : 0}};

    return h_request(h, conn, MSG_HELLO, &hello);
}

bool
h_hangup(struct harness *h, uint64_t conn)
{
    h->gone[conn] = true;
    books_hung_up(h, conn);
    books_arm(true);
    bool waits = core_hangup(h->core, conn);
    books_arm(false);
    drain(h);
    return waits && !h->forgotten[conn];
}

void
h_exit(struct harness *h, uint64_t conn)
{
    h->gone[conn] = true;
    h->exited[conn] = true;
    books_exited(h, conn);
    books_arm(true);
    core_exited(h->core, conn);
    books_arm(false);
    drain(h);
}

void
h_disconnect(struct harness *h, uint64_t conn)
{
    h_hangup(h, conn);
    h_exit(h, conn);
}

/* ---- what goes in ---- */

void
h_packet(struct harness *h, uint64_t conn, const void *packet, size_t n)
{
    h->replies[conn].seen = false;
    books_arm(true);
    core_set_boottime(h->core, h->now_ns + h->asleep_ns);
    for (bool waits = false; !core_admits(h->core, conn, packet, n) ||
                             (waits && core_is_behind(h->core)); /* with exits till then */
         waits = true)
        core_tick(h->core, h->now_ns);
    core_receive(h->core, conn, packet, n, h->now_ns);
    books_arm(false);
    drain(h);
}

/* What is answered by numbers alone. */
static void
note_request(struct harness *h, uint64_t conn, enum msg_method method,
             const struct msg_buf *packet)
{
    if (h->done.conn == conn && (h->next_id - h->done.id) % DONE_MAX == 0)
        h->done.id = 0;
    if ((method != MSG_PUBLISH && method != MSG_PUBLISH_PART && method != MSG_STAGE &&
         method != MSG_STAGE_PARTS && method != MSG_RENAME && method != MSG_UNLINK &&
         method != MSG_SEND) ||
        packet->n > sizeof(h->asking.packet))
        return;
    h->asking = (struct h_done){.conn = conn, .id = h->next_id, .n_packet = packet->n};
    memcpy(h->asking.packet, packet->data, packet->n);
}

void
h_repeat(struct harness *h, uint64_t of, uint64_t conn)
{
    struct h_done done = h->done;

    if (!done.id || done.conn != of)
        return;
    h->asking = done;
    h->asking.conn = conn;
    h_packet(h, conn, done.packet, done.n_packet);
    cr_assert(h->done.conn == conn && h->done.n_answer == done.n_answer, "not answered so");
    cr_assert_arr_eq(h->done.answer, done.answer, done.n_answer, "answered in another way");
}

struct h_reply *
h_request(struct harness *h, uint64_t conn, enum msg_method method, const void *params)
{
    struct msg_buf buf = {0};
    uint32_t id = ++h->next_id;

    h->asked[id % H_ASKED] = method;
    h->asked_ids[id % H_ASKED] = id;
    cr_assert_eq(msg_encode_request(&buf, id, method, params), 0);
    note_request(h, conn, method, &buf);
    h_packet(h, conn, buf.data, buf.n);
    msg_buf_deinit(&buf);
    return &h->replies[conn];
}

void
h_notify(struct harness *h, uint64_t conn, enum msg_method method, const void *params)
{
    struct msg_buf buf = {0};

    cr_assert_eq(msg_encode_notify(&buf, method, params), 0);
    h_packet(h, conn, buf.data, buf.n);
    msg_buf_deinit(&buf);
}

struct h_reply *
h_create_as(struct harness *h, uint64_t conn, int64_t bytes, struct msg_create_params params)
{
    params.typestr = MSG_STR("|u1");
    params.shape = (struct msg_i64s){.v = &bytes, .n = 1};
    return h_request(h, conn, MSG_CREATE, &params);
}

struct h_reply *
h_create(struct harness *h, uint64_t conn, const char *name, const char *pool, int64_t bytes)
{
    return h_create_as(h, conn, bytes,
                       (struct msg_create_params){.name = msg_str_opt(name),
                                                  .pool = msg_str_opt(pool)});
}

struct h_reply *
h_create_now(struct harness *h, uint64_t conn, const char *name, const char *pool,
             int64_t bytes)
{
    h_create(h, conn, name, pool, bytes);
    h_finish_all(h);
    cr_assert(h->replies[conn].seen);
    return &h->replies[conn];
}

struct h_reply
h_made(struct harness *h, uint64_t conn, int64_t bytes, struct msg_create_params params)
{
    h_create_as(h, conn, bytes, params);
    h_finish_all(h);
    cr_assert(h->replies[conn].seen);
    cr_assert_eq(h->replies[conn].error, 0, "%s", h->replies[conn].text);
    return h->replies[conn];
}

struct h_reply *
h_open_generation(struct harness *h, uint64_t conn, const char *name, const char *pool,
                  uint64_t generation)
{
    struct msg_str names = MSG_STR(name);
    struct msg_open_params params = {.names = {.v = &names, .n = 1},
                                     .pool = msg_str_opt(pool),
                                     .mode = MSG_STR("r"),
                                     .generation = generation};

    return h_request(h, conn, MSG_OPEN, &params);
}

const struct msg_create_params exclusive = {.exclusive = true};
const struct msg_create_params in_shared = {.pool = {"shared", 6}, .exclusive = true};

struct h_reply
h_small(struct harness *h, uint64_t conn, int64_t bytes)
{
    return h_made(h, conn, bytes, (struct msg_create_params){0});
}

struct h_reply *
h_open(struct harness *h, uint64_t conn, const char *name, const char *pool, const char *mode)
{
    struct msg_str names = MSG_STR(name);
    struct msg_open_params params = {.names = {.v = &names, .n = 1},
                                     .pool = msg_str_opt(pool),
                                     .mode = MSG_STR(mode)};

    return h_request(h, conn, MSG_OPEN, &params);
}

struct h_reply *
h_unlink(struct harness *h, uint64_t conn, const char *name, const char *pool)
{
    struct msg_name_params params = {.name = MSG_STR(name), .pool = msg_str_opt(pool)};

    return h_request(h, conn, MSG_UNLINK, &params);
}

struct h_reply *
h_publish(struct harness *h, uint64_t conn, uint64_t lease, const char *name)
{
    return h_request(h, conn, MSG_PUBLISH,
                     &(struct msg_publish_params){.lease = lease, .name = MSG_STR(name)});
}

struct h_reply *
h_part_as(struct harness *h, uint64_t conn, int64_t bytes,
          struct msg_publish_part_params params)
{
    params.typestr = MSG_STR("|u1");
    params.shape = (struct msg_i64s){.v = &bytes, .n = 1};
    return h_request(h, conn, MSG_PUBLISH_PART, &params);
}

struct h_reply *
h_part(struct harness *h, uint64_t conn, uint64_t lease, uint64_t offset, int64_t bytes,
       const char *name)
{
    return h_part_as(h, conn, bytes,
                     (struct msg_publish_part_params){.lease = lease,
                                                      .offset = offset,
                                                      .name = MSG_STR(name)});
}

struct h_reply *
h_stage_parts(struct harness *h, uint64_t conn, uint64_t set, uint64_t whole,
              const struct msg_member *parts, uint32_t n, bool told)
{
    return h_request(h, conn, MSG_STAGE_PARTS,
                     &(struct msg_stage_parts_params){set, whole, parts, n, told});
}

struct h_reply *
h_vacate(struct harness *h, uint64_t conn, uint64_t set, uint64_t own, uint64_t timeout_ns)
{
    return h_request(h, conn, MSG_VACATE,
                     &(struct msg_vacate_params){.leases = {&set, 1},
                                                 .own = {&own, own != 0},
                                                 .timeout_ns = timeout_ns});
}

struct h_reply *
h_parts(struct harness *h, uint64_t conn)
{
    return h_request(h, conn, MSG_PARTS, &(struct msg_none){});
}

struct h_reply *
h_watch(struct harness *h, uint64_t conn, const char *name, const char *pool, uint64_t seen)
{
    struct msg_watch_params params = {.name = MSG_STR(name),
                                      .pool = msg_str_opt(pool),
                                      .seen = seen};

    return h_request(h, conn, MSG_WATCH, &params);
}

struct h_reply *
h_show(struct harness *h, uint64_t conn, const char *name, const char *pool)
{
    struct msg_name_params params = {.name = MSG_STR(name), .pool = msg_str_opt(pool)};

    return h_request(h, conn, MSG_SHOW, &params);
}

struct h_reply *
h_flush(struct harness *h, uint64_t conn)
{
    return h_request(h, conn, MSG_FLUSH, &(struct msg_flush_params){0});
}

struct h_reply *
h_defer(struct harness *h, uint64_t conn, bool begin)
{
    return h_request(h, conn, MSG_DEFER, &(struct msg_defer_params){.begin = begin});
}

const struct msg_memory_info *
h_memory_info(struct harness *h, uint64_t conn)
{
    h_request(h, conn, MSG_MEMORY_INFO, &(struct msg_memory_params){0});
    size_t i = h_job(h, CORE_MEMORY);
    cr_assert_lt(i, H_JOBS);
    h_finish(h, i, 0);
    cr_assert(h->replies[conn].seen && !h->replies[conn].error);
    return h->replies[conn].memory;
}

void
h_close(struct harness *h, uint64_t conn, uint64_t lease)
{
    struct msg_close_params params = {.leases = {.v = &lease, .n = 1}};

    books_closed(h, conn, lease);
    h_notify(h, conn, MSG_CLOSE, &params);
}

void
h_forget(struct harness *h, uint64_t conn, uint64_t block)
{
    struct msg_close_params params = {.leases = {.v = (uint64_t[]){0}, .n = 0},
                                      .forget = {.v = &block, .n = 1}};

    books_forgotten(h, conn, block);
    h_notify(h, conn, MSG_CLOSE, &params);
}

/* ---- the driver ---- */

size_t
h_job(const struct harness *h, enum core_action_type type)
{
    for (size_t i = 0; i < h->n_jobs; i++)
        if (h->jobs[i].type == type)
            return i;
    return H_JOBS;
}

static void
finish_alloc(struct harness *h, const struct h_job *job, int error)
{
    struct core_alloc_result result = {.error = error,
                                       .cuda = error ? 2 : 0,
                                       .text = "model",
                                       .free = CORE_FREE_UNKNOWN,
                                       .fd = -1};
    bool full = job->kind != KIND_PINNED &&
                h->device_bytes[job->device] + job->size > h->capacity[job->device];

    h->n_allocs++;
    if (!error && full)
        result = (struct core_alloc_result){.error = -ENOMEM,
                                            .cuda = 2,
                                            .text = "model memory is full",
                                            .free = h->capacity[job->device] -
                                                    h->device_bytes[job->device],
                                            .fd = -1};
    if (!result.error) {
        result.handle = ++h->next_handle;
        if (job->kind == KIND_LEGACY)
            result.ipc[0] = result.handle;
        else
            result.fd = (int)result.handle; /* a number that the core only passes on */
        result.kept = (uint32_t)result.handle;
        books_allocated(h, job, result.handle);
    }
    books_arm(true);
    core_alloc_done(h->core, job->id, &result);
    books_arm(false);
}

static void
finish_memory(struct harness *h, const struct h_job *job, int error)
{
    struct core_memory_result results[H_DEVICES];
    size_t n = job->device < h->n_devices ? 1 : h->n_devices;

    for (size_t i = 0; i < n; i++) {
        size_t d = n == 1 ? job->device % h->n_devices : i;
        results[i] = (struct core_memory_result){.error = error,
                                                 .text = "model",
                                                 .total = H_MEMORY,
                                                 .free = h->capacity[d] - h->device_bytes[d]};
    }
    books_arm(true);
    core_memory_done(h->core, job->id, results, n);
    books_arm(false);
}

void
h_finish(struct harness *h, size_t i, int error)
{
    struct h_job job = h->jobs[i];

    memmove(&h->jobs[i], &h->jobs[i + 1], (--h->n_jobs - i) * sizeof(job));
    if (job.type == CORE_ALLOC) {
        finish_alloc(h, &job, error);
    } else if (job.type == CORE_RELEASE) {
        h->n_releases += !error;
        books_released(h, job.handle, error);
        books_arm(true);
        core_release_done(h->core, job.id, error, error ? 999 : 0, "model");
        books_arm(false);
    } else {
        finish_memory(h, &job, error);
    }
    drain(h);
}

void
h_finish_all(struct harness *h)
{
    while (h->n_jobs)
        h_finish(h, 0, 0);
}

void
h_tick(struct harness *h, uint64_t ns)
{
    h->now_ns += ns;
    tick(h);
    drain(h);
}

void
h_age(struct harness *h)
{
    for (int i = 0; i < 100 && core_deadline_ns(h->core) != UINT64_MAX; i++) {
        uint64_t deadline = core_deadline_ns(h->core);
        h_tick(h, deadline > h->now_ns ? deadline - h->now_ns : 0);
        h_finish_all(h);
    }
}
