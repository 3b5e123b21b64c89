/* SPDX-License-Identifier: Apache-2.0 */
/*
 * From packet to handler.
 */
#include "request.h"

#include "device.h"
#include "former.h"
#include "monitor.h"
#include "suspect.h"

/* Records of all devices, with the lists that these refer to. The caller frees them. NULL: out of
 * memory. */
struct device_records {
    struct msg_str (*kinds)[N_KINDS];
    struct msg_device devices[];
};

static struct msg_strs
device_kinds(const struct core_device *info, struct msg_str kinds[static N_KINDS])
{
    uint32_t n = 0;

    for (enum core_kind kind = 0; kind < N_KINDS; kind++)
        if (!info->lacks[kind])
            kinds[n++] = MSG_STR(core_kind_name(kind));
    return (struct msg_strs){.v = kinds, .n = n};
}

static struct device_records *
device_records(const struct core *core)
{
    size_t n = core->config.n_devices;
    size_t n_records = sizeof(struct device_records) + n * sizeof(struct msg_device);
    struct device_records *records = calloc(1, n_records + n * sizeof(*records->kinds));

    if (!records)
        return NULL;
    records->kinds = (struct msg_str(*)[N_KINDS])(void *)((char *)records + n_records);
    for (size_t i = 0; i < n; i++) {
        const struct core_device *info = &core->devices[i].info;
        records->devices[i] = (struct msg_device){
            .uuid = MSG_STR(info->uuid),
            .name = MSG_STR(info->name),
            .total = info->total,
            .granularity = info->granularity,
            .handoff = MSG_STR(core_handoff_name(info->handoff)),
            .kinds = device_kinds(info, records->kinds[i]),
            .memops = info->memops,
            .readonly_host = info->readonly_host,
            .mps = info->mps,
            .persistence = msg_str_opt(info->persistence),
            .compute_mode = msg_str_opt(info->compute_mode),
            .pci = MSG_STR(info->pci),
            .rdma = info->rdma,
        };
    }
    return records;
}

/* Notes whether the client will resume after a restart. If its token shows that it is resuming,
 * *conn becomes the connection that it had. */
static int
hello_resume(struct core *core, struct conn **conn, const struct msg_hello_params *p,
             struct refusal *r)
{
    struct conn *was = *conn, *former;

    for (uint32_t i = 0; i < p->features.n; i++) {
        was->resumes |= msg_str_eq(p->features.v[i], "resume");
        was->is_told |= msg_str_eq(p->features.v[i], "told");
    }
    was->resumes &= core->persist.journal != NULL;
    former = was->resumes ? former_find(was, p->token) : NULL;
    if (former && former->ending)
        return refuse(r, PROTO_ERR_NOT_READY, "the connection's place is not free yet");
    if (!former)
        return former_was_kicked(core, p->token, r) ? REFUSED : 0;
    conn_take_over(core, former, was);
    former_resume(core, former, p->token.v);
    *conn = former;
    return 0;
}

HANDLER(on_hello)
{
    const struct msg_hello_params *p = params;
    _cleanup_free_ struct device_records *records = NULL;
    struct msg_hello_result result;

    if (p->version_min > p->version_max || p->version_min > PROTO_VERSION_MAX ||
        p->version_max < PROTO_VERSION_MIN)
        return refuse(r, PROTO_ERR_VERSION,
                      "protocol versions %d to %d are spoken here, %llu to %llu there",
                      PROTO_VERSION_MIN, PROTO_VERSION_MAX, (unsigned long long)p->version_min,
                      (unsigned long long)p->version_max);
    if (p->client.n > PROTO_CLIENT_MAX)
        return refuse(r, PROTO_ERR_INVALID, "a client's name has at most %d bytes",
                      PROTO_CLIENT_MAX);
    if (p->client.p) {
        if (p->client.n && name_check(p->client, r))
            return REFUSED;
        memcpy(conn->client, p->client.p, p->client.n);
    }
    records = device_records(core);
    if (!records)
        return -ENOMEM;
    if (hello_check(core, conn, r))
        return REFUSED;

    conn->greeted = true;
    TAILQ_REMOVE(&core->waiting, conn, waiting);
    if (hello_resume(core, &conn, p, r))
        return REFUSED;
    if (conn->lacks_place)
        return refuse(r, PROTO_ERR_LIMIT, "uid %u: its places are for those who come back",
                      (unsigned)conn->user->uid);
    if (conn->resumes)
        suspects_follow(core, p->token, conn->token[0]);
    result = (struct msg_hello_result){
        .version = p->version_max < PROTO_VERSION_MAX ? p->version_max : PROTO_VERSION_MAX,
        .features = {.v = (const struct msg_str[]){{0}}, .n = 0},
        .server = MSG_STR(core->config.server),
        .driver = MSG_STR(core->config.driver),
        .pool = MSG_STR(conn->user->pool->name),
        .devices = records->devices,
        .n_devices = (uint32_t)core->config.n_devices,
        .packet_max = PROTO_PACKET_MAX,
        .fds_max = PROTO_FDS_MAX,
        .open_max = PROTO_OPEN_MAX,
        .token = {.v = conn->resumes ? conn->token : NULL, .n = conn->resumes ? 2 : 0},
        .resumed = conn->resumed,
        .machine_id = MSG_STR(core->config.machine_id),
        .daemon_id = MSG_STR(core->config.daemon_id),
        .set_max = PROTO_SET_MAX,
    };
    send_result(core, conn, id, MSG_HELLO, &result, NULL, 0);
    return 0;
}

HANDLER(on_ping)
{
    send_result(core, conn, id, MSG_PING, &(struct msg_none){}, NULL, 0);
    return 0;
}

/* The sums over all devices. */
static void
status_add_devices(const struct core *core, struct msg_status *result)
{
    for (size_t i = 0; i < core->config.n_devices; i++) {
        result->pending += core->devices[i].queue.n;
        result->contexts += core->devices[i].n_legacy > 0;
    }
}

HANDLER(on_status)
{
    _cleanup_free_ struct device_records *records = device_records(core);
    struct core_figures figures = {0};

    if (!records)
        return -ENOMEM;
    if (core->figures)
        core->figures(core->figures_userdata, &figures);
    struct msg_status result = {
        .server = MSG_STR(core->config.server),
        .pid = (uint64_t)core->config.pid,
        .uptime_ns = core->now_ns - core->started_ns,
        .driver = MSG_STR(core->config.driver),
        .driver_path = MSG_STR(core->config.driver_path),
        .driver_version = core->config.driver_version,
        .connections = core->n_conns,
        .pools = core->n_pools,
        .blocks = core->n_blocks,
        .arrays = core->n_arrays,
        .names = core->n_names,
        .leases = core->n_leases,
        .jobs = core->n_jobs,
        .release_errors = core->n_release_errors,
        .watches = core->n_watches,
        .brackets = core->n_brackets,
        .opens = core->counts[COUNT_LEASES],
        .begun = core->counts[COUNT_BRACKETS_BEGUN],
        .drops = core->counts[COUNT_DROPS],
        .pages = core->n_pages,
        .timelines = core->n_timelines,
        .turn_cpu_ns = figures.turn_cpu_ns,
        .turn_wall_ns = figures.turn_wall_ns,
        .keeper = figures.keeper,
        .kept = figures.n_kept,
        .restarts = figures.restarts,
        .journal_bytes = figures.journal_bytes,
        .draining = core->draining,
        .devices = records->devices,
        .n_devices = (uint32_t)core->config.n_devices,
    };
    status_add_devices(core, &result);
    send_result(core, conn, id, MSG_STATUS, &result, NULL, 0);
    return 0;
}

/* ---- dispatch ---- */

static int (*const handlers[MSG_N_METHODS])(struct core *, struct conn *, uint32_t,
                                            const void *, struct refusal *) = {
#define REQUEST(NAME, name, params, result) [MSG_##NAME] = on_##name,
#define NOTIFY(NAME, name, params)          [MSG_##NAME] = on_##name,
#include "messages.def"
};

/* The reason to close the connection for this packet, or NULL. */
static const char *
violation(const struct conn *conn, const struct msg *m)
{
    if (m->type == MSG_RESPONSE)
        return "a response, where nothing was asked";
    if (m->method != MSG_UNKNOWN &&
        msg_method_is_request(m->method) != (m->type == MSG_REQUEST))
        return "a request sent as a notification, or the other way round";
    if (!conn->greeted && m->method != MSG_HELLO)
        return "the first message is not hello";
    if (conn->greeted && m->method == MSG_HELLO)
        return "a second hello";
    return NULL;
}

/* A resuming client says what it has before anything else. */
static bool
is_early(const struct conn *conn, enum msg_method method, const union params *params)
{
    bool tells = method == MSG_RESUME || (method == MSG_BEGIN && params->begin.again);

    return conn->resuming && !tells;
}

static int
dispatch(struct core *core, struct conn *conn, struct msg *m, struct refusal *r)
{
    union params params;

    if (m->method == MSG_UNKNOWN)
        return refuse(r, PROTO_ERR_UNKNOWN_METHOD, "unknown method \"%.*s\"",
                      STR_FMT(m->method_name));
    int rc = msg_decode_params(m, &params);
    if (rc == -EPROTO)
        return refuse(r, PROTO_ERR_PROTOCOL, "%s: a parameter is missing or of the wrong type",
                      msg_method_name(m->method));
    if (rc < 0)
        return rc;
    MONITOR(core, conn, m->type, m->method, m->id, &params,
            request_subject(core, conn, m->method, &params));
    if (is_early(conn, m->method, &params))
        return refuse(r, PROTO_ERR_INVALID, "%s: resume is not done",
                      msg_method_name(m->method));
    const struct done *done = done_find(conn, m->id, m->method);
    if (done && done_answer(core, conn, done))
        return 0;
    return handlers[m->method](core, conn, m->id, &params, r);
}

/* A request that the client would repeat after a restart is noted as in hand. */
static int
handle(struct core *core, struct conn *conn, struct msg *m, struct refusal *r)
{
    uint64_t token = conn->token[0];

    if (m->type != MSG_REQUEST || m->method == MSG_UNKNOWN || !conn->resumes)
        return dispatch(core, conn, m, r);
    if (suspect_take(core, conn, m, r))
        return REFUSED;
    int rc = dispatch(core, conn, m, r);
    suspect_put(core, token, m);
    return rc;
}

void
request_handle(struct core *core, struct conn *conn, const void *packet, size_t n)
{
    struct msg m;
    struct refusal r;
    const char *why;
    int rc = msg_parse(&m, packet, n);

    if (rc < 0) {
        conn_end(core, conn, rc == -ENOMEM ? "out of memory" : "a malformed packet");
        return;
    }
    why = violation(conn, &m);
    rc = why ? -EPROTO : handle(core, conn, &m, &r);
    if (rc == REFUSED && m.type == MSG_REQUEST)
        send_refusal(core, conn, m.id, m.method, &r);
    if (rc >= 0 && m.type == MSG_NOTIFY)
        metrics_count_outcome(conn->user, m.method, rc == REFUSED ? &r : NULL);
    /* Notifications have no answer: bad parameters close the connection. An unknown notification is
     * a newer client's, and ignored. */
    if (rc == REFUSED && m.type == MSG_NOTIFY && m.method != MSG_UNKNOWN)
        conn_end(core, conn, "bad parameters in a notification");
    if (rc == REFUSED && m.method == MSG_HELLO)
        conn_end(core, conn, "hello was refused");
    if (rc < 0)
        conn_end(core, conn, rc == -ENOMEM ? "out of memory" : why);
    msg_deinit(&m);
}
