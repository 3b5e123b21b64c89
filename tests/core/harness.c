/* SPDX-License-Identifier: Apache-2.0 */
#include "harness.h"

#include <stdio.h>

#include "caid_test.h"

static const char uuid[] = "GPU-00000000-0000-0000-0000-000000000001";

void
h_init(struct harness *h, void (*tweak)(struct core_config *))
{
    static const struct core_pool_config pools[] = {
        {.name = "shared", .uid = 1, .gid = 10, .mode = 0640, .quota = UINT64_C(16) << 20},
        {.name = "open", .uid = 1, .gid = 10, .mode = 0666},
    };
    struct core_device device = {.name = "model", .total = H_MEMORY, .granularity = H_BLOCK};
    struct core_config config = {
        .server = "caid test",
        .driver = "soft",
        .driver_path = "/model",
        .pid = 1,
        .hello_timeout_ns = 2000,
        .limits = {.connections = 16, .names = 100, .leases = 100, .blocks = 50, .jobs = 8},
        .threads = H_JOBS,
        .user_mode = 0600,
        .devices = &device,
        .n_devices = 1,
        .pools = pools,
        .n_pools = ARRAY_SIZE(pools),
    };

    memset(h, 0, sizeof(*h));
    h->next_handle = 1000;
    snprintf(device.uuid, sizeof(device.uuid), "%s", uuid);
    if (tweak)
        tweak(&config);
    cr_assert_eq(core_new(&h->core, &config, 0), 0);
}

void
h_deinit(struct harness *h)
{
    struct core_counts counts;

    for (uint64_t conn = 1; conn <= h->next_conn; conn++)
        h_disconnect(h, conn);
    h_finish_all(h);
    core_get_counts(h->core, &counts);
    cr_assert_eq(counts.connections, 0);
    cr_assert_eq(counts.leases, 0);
    cr_assert_eq(counts.arrays, counts.names, "an unnamed array outlived its holders");
    cr_assert_eq(counts.bytes, h->live_bytes, "memory and books differ");
    core_free(h->core);
}

/* ---- what comes out ---- */

static void
note_arrays(struct h_reply *reply, const struct msg_arrays_result *result)
{
    reply->n_arrays = result->n_arrays;
    reply->n_blocks = result->n_blocks;
    if (result->n_arrays) {
        reply->lease = result->arrays[0].lease;
        reply->block = result->arrays[0].block;
        reply->generation = result->arrays[0].generation;
    }
}

static void
note_list(struct h_reply *reply, const struct msg_list_result *result)
{
    reply->n_entries = result->n_entries;
    reply->more = result->more;
    for (uint32_t i = 0; i < result->n_entries && i < ARRAY_SIZE(reply->names); i++)
        snprintf(reply->names[i], sizeof(reply->names[i]), "%.*s",
                 (int)result->entries[i].name.n, result->entries[i].name.p);
}

static void
note_reply(struct harness *h, const struct core_action *a)
{
    struct h_reply *reply = &h->replies[a->conn];

    union {
        struct msg_arrays_result arrays;
        struct msg_list_result list;
        struct msg_hello_result hello;
        struct msg_status_result status;
        struct msg_show_result show;
        struct msg_pools_result pools;
        struct msg_memory_result memory;
    } result;
    struct msg m;

    cr_assert_leq(a->n_packet, PROTO_PACKET_MAX);
    cr_assert_eq(msg_parse(&m, a->packet, a->n_packet), 0);
    cr_assert_eq(m.type, MSG_RESPONSE);
    *reply = (struct h_reply){.seen = true, .id = m.id, .error = m.error, .n_fds = a->n_fds};
    snprintf(reply->text, sizeof(reply->text), "%.*s", (int)m.error_text.n,
             m.error_text.p ? m.error_text.p : "");
    for (size_t i = 0; i < a->n_fds && i < ARRAY_SIZE(reply->fds); i++)
        reply->fds[i] = a->fds[i];
    if (!m.error) {
        enum msg_method method = h->asked[a->conn];
        cr_assert_eq(msg_decode_result(&m, method, &result), 0);
        if (method == MSG_CREATE || method == MSG_OPEN)
            note_arrays(reply, &result.arrays);
        else if (method == MSG_LIST)
            note_list(reply, &result.list);
        else if (method == MSG_MEMORY_INFO)
            reply->n_entries = result.memory.n_devices;
    }
    msg_deinit(&m);
}

static void
note_job(struct harness *h, const struct core_action *a)
{
    cr_assert_lt(h->n_jobs, H_JOBS);
    h->jobs[h->n_jobs++] = (struct h_job){.id = a->job,
                                          .type = a->type,
                                          .size = a->size,
                                          .handle = a->handle,
                                          .device = a->device,
                                          .fd = a->fd};
}

static void
note(struct harness *h, const char *text)
{
    if (h->n_records < H_RECORDS)
        snprintf(h->records[h->n_records++], sizeof(h->records[0]), "%s", text);
}

static void
note_record(struct harness *h, const struct core_action *a)
{
    static const char *const kinds[] = {"block", "block gone", "name", "name gone"};
    char text[64];

    if (a->name)
        snprintf(text, sizeof(text), "%s %.20s:%.20s", kinds[a->record], a->pool, a->name);
    else
        snprintf(text, sizeof(text), "%s %llu", kinds[a->record], (unsigned long long)a->block);
    note(h, text);
}

static void
drain(struct harness *h)
{
    struct core_action a;

    while (core_next(h->core, &a)) {
        switch (a.type) {
        case CORE_SEND:
            note(h, "send");
            note_reply(h, &a);
            break;
        case CORE_CLOSE:
            cr_assert(!h->closed[a.conn]);
            h->closed[a.conn] = true;
            snprintf(h->reasons[a.conn], sizeof(h->reasons[0]), "%s", a.reason);
            break;
        case CORE_ALLOC:
        case CORE_RELEASE:
        case CORE_MEMORY: note_job(h, &a); break;
        case CORE_PERSIST: note_record(h, &a); break;
        }
    }
    core_check(h->core);
}

/* ---- what goes in ---- */

uint64_t
h_connect_raw(struct harness *h, uid_t uid, gid_t gid)
{
    struct core_peer peer = {.uid = uid, .gid = gid, .pid = 100};
    uint64_t conn = h->next_conn + 1;
    int r = core_connect(h->core, conn, &peer, h->now_ns);

    cr_assert_lt(conn, H_CONNS);
    drain(h);
    if (r == -EDQUOT)
        return 0;
    cr_assert_eq(r, 0);
    return h->next_conn = conn;
}

uint64_t
h_connect(struct harness *h, uid_t uid, gid_t gid)
{
    uint64_t conn = h_connect_raw(h, uid, gid);
    struct msg_hello_params hello = {.version_min = 1, .version_max = 1};

    cr_assert_eq(h_request(h, conn, MSG_HELLO, &hello)->error, 0);
    return conn;
}

void
h_disconnect(struct harness *h, uint64_t conn)
{
    core_disconnect(h->core, conn);
    drain(h);
}

void
h_packet(struct harness *h, uint64_t conn, const void *packet, size_t n)
{
    h->replies[conn].seen = false;
    core_receive(h->core, conn, packet, n, h->now_ns);
    drain(h);
}

struct h_reply *
h_request(struct harness *h, uint64_t conn, enum msg_method method, const void *params)
{
    struct msg_buf buf = {0};

    h->asked[conn] = method;
    cr_assert_eq(msg_encode_request(&buf, ++h->next_id, method, params), 0);
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
h_create(struct harness *h, uint64_t conn, const char *name, const char *pool, int64_t bytes)
{
    struct msg_create_params params = {.name = msg_str_opt(name),
                                       .pool = msg_str_opt(pool),
                                       .typestr = MSG_STR("|u1"),
                                       .shape = {.v = &bytes, .n = 1}};

    return h_request(h, conn, MSG_CREATE, &params);
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

void
h_close(struct harness *h, uint64_t conn, uint64_t lease)
{
    struct msg_close_params params = {.leases = {.v = &lease, .n = 1}};

    h_notify(h, conn, MSG_CLOSE, &params);
}

/* ---- the driver ---- */

static void
finish_alloc(struct harness *h, const struct h_job *job, int error)
{
    struct core_alloc_result result = {.error = error,
                                       .cuda = error ? 2 : 0,
                                       .text = "model",
                                       .fd = -1};

    if (!error && h->live_bytes + job->size > H_MEMORY)
        result = (struct core_alloc_result){.error = -ENOMEM,
                                            .cuda = 2,
                                            .text = "model memory is full",
                                            .fd = -1};
    if (!result.error) {
        result.handle = ++h->next_handle;
        result.fd = (int)result.handle; /* a number that the core only passes on */
        h->live_bytes += job->size;
    }
    core_alloc_done(h->core, job->id, &result);
}

void
h_finish(struct harness *h, size_t i, int error)
{
    struct h_job job = h->jobs[i];
    struct core_memory_result memory = {.error = error,
                                        .text = "model",
                                        .total = H_MEMORY,
                                        .free = H_MEMORY - h->live_bytes};

    memmove(&h->jobs[i], &h->jobs[i + 1], (--h->n_jobs - i) * sizeof(job));
    if (job.type == CORE_ALLOC) {
        finish_alloc(h, &job, error);
    } else if (job.type == CORE_RELEASE) {
        cr_assert_eq(job.fd, (int)job.handle); /* I3: the fd goes with its block */
        h->live_bytes -= job.size;
        core_release_done(h->core, job.id, error);
    } else {
        core_memory_done(h->core, job.id, &memory, 1);
    }
    drain(h);
}

void
h_finish_all(struct harness *h)
{
    while (h->n_jobs)
        h_finish(h, 0, 0);
}
