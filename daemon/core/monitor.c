/* SPDX-License-Identifier: Apache-2.0 */
#include "monitor.h"

#include "pool.h"
#include "state.h"

#define TELL_MAX 128   /* messages in one answer */
#define BODY_MAX 16384 /* bytes of a message's text */

struct kept {
    struct msg_message message; /* its names, then all strings, lie behind the struct */
    size_t bytes;
};

/* ---- sending ---- */

static void
monitor_send(struct core *core, struct monitor *m)
{
    struct msg_message messages[TELL_MAX];
    struct portion portion = PORTION(core, messages, TELL_MAX);
    struct msg_monitor_result result = {.messages = messages};
    const struct kept *kept;

    for (; m->start < m->end; m->start += kept->bytes) {
        kept = (const struct kept *)(m->kept + m->start);
        if (!portion_add(&portion, &kept->message, msg_message_size(&kept->message)))
            break;
    }
    result.n_messages = portion.n;
    if (m->start == m->end) {
        result.lost = m->n_lost;
        m->start = m->end = m->n_lost = 0;
    }
    m->asks = false;
    send_result(core, m->conn, m->request, MSG_MONITOR, &result, NULL, 0);
}

/* ---- keeping ---- */

static struct msg_str
keep_str(char **at, struct msg_str s)
{
    struct msg_str kept = {s.p ? memcpy(*at, s.p, s.n) : NULL, s.n};

    *at += s.n;
    return kept;
}

static size_t
kept_bytes(const struct msg_message *message)
{
    size_t n = message->client.n + message->pool.n + message->body.n;

    for (uint32_t i = 0; i < message->names.n; i++)
        n += sizeof(struct msg_str) + message->names.v[i].n;
    return ALIGN_UP(sizeof(struct kept) + n, _Alignof(struct kept));
}

static void
keep(struct monitor *m, const struct msg_message *message)
{
    size_t bytes = kept_bytes(message);
    struct kept *kept = (struct kept *)(m->kept + m->end);
    struct msg_str *names = (struct msg_str *)(kept + 1);
    char *at = (char *)(names + message->names.n);

    if (m->n_lost || bytes > sizeof(m->kept) - m->end) {
        m->n_lost++;
        return;
    }
    *kept = (struct kept){.message = *message, .bytes = bytes};
    kept->message.client = keep_str(&at, message->client);
    kept->message.pool = keep_str(&at, message->pool);
    kept->message.body = keep_str(&at, message->body);
    for (uint32_t i = 0; i < message->names.n; i++)
        names[i] = keep_str(&at, message->names.v[i]);
    kept->message.names.v = message->names.n ? names : NULL;
    m->end += bytes;
}

/* ---- seeing ---- */

/* The names in pools that the monitor may read. */
static uint32_t
readable_names(const struct monitor *m, const struct subject *subject,
               struct msg_str ret[static SUBJECT_NAMES])
{
    uint32_t n = 0;

    for (uint32_t i = 0; i < subject->n; i++)
        if (pool_may(subject->names[i].pool, m->conn, MAY_READ))
            ret[n++] = subject->names[i].name;
    return n;
}

void
monitor_see(struct core *core, struct conn *conn, enum msg_type type, enum msg_method method,
            uint32_t id, const void *value, struct subject subject)
{
    const struct monitor_list *lists[] = {&core->monitors, &conn->user->monitors};
    struct monitor *m;
    struct msg_str names[SUBJECT_NAMES];
    char body[BODY_MAX];
    struct msg_message message = {
        .at_ns = core->now_ns,
        .conn = conn->id,
        .uid = conn->user->uid,
        .pid = (uint64_t)conn->pid,
        .client = msg_str_opt(*conn->client ? conn->client : NULL),
        .type = type,
        .refused = type == MSG_RESPONSE && method == MSG_UNKNOWN,
        .method = msg_str_opt(msg_method_name(method)),
        .id = id,
        .pool = subject.pool,
        .body = {.p = body},
        .names = {.v = names},
        .more_names = subject.n_more,
    };

    for (size_t i = 0; i < ARRAY_SIZE(lists) && !conn->monitor; i++)
        LIST_FOREACH(m, lists[i], link) {
            if (!m->all && m->uid != message.uid)
                continue;
            if (message.body.n == 0)
                message.body.n = (uint32_t)msg_print(body, sizeof(body), type, method, value);
            message.names.n = readable_names(m, &subject, names);
            keep(m, &message);
            if (m->asks)
                monitor_send(core, m);
        }
}

/* ---- life ---- */

static int
monitor_new(struct core *core, struct conn *conn, struct refusal *r)
{
    struct monitor_list *list = is_administrator(core, conn->user) ? &core->monitors
                                                                   : &conn->user->monitors;
    struct monitor *m, *other;
    uint32_t n = 0;

    LIST_FOREACH(other, list, link)
        n++;
    if (n >= MONITORS_MAX)
        return refuse(r, PROTO_ERR_LIMIT, "uid %u: limit of %d monitors reached",
                      (unsigned)conn->user->uid, MONITORS_MAX);
    m = malloc(sizeof(*m));
    if (!m)
        return -ENOMEM;
    m->conn = conn;
    m->start = m->end = m->n_lost = 0;
    if (charge_init(&m->charge, conn->user, RES_WATCHES, 1, sizeof(*m), r)) {
        free(m);
        return REFUSED;
    }
    LIST_INSERT_HEAD(list, m, link);
    conn->monitor = m;
    core->n_monitors++;
    core->n_watches++;
    return 0;
}

void
monitor_free(struct core *core, struct monitor *m)
{
    LIST_REMOVE(m, link);
    charge_deinit(&m->charge);
    m->conn->monitor = NULL;
    core->n_monitors--;
    core->n_watches--;
    free(m);
}

int
monitor_ask(struct core *core, struct conn *conn, uint32_t request, bool all, uid_t uid,
            struct refusal *r)
{
    int rc = conn->monitor ? 0 : monitor_new(core, conn, r);
    struct monitor *m = conn->monitor;

    if (rc)
        return rc;
    m->all = all;
    m->uid = uid;
    m->request = request;
    m->asks = true;
    if (m->start < m->end || m->n_lost)
        monitor_send(core, m);
    return 0;
}
