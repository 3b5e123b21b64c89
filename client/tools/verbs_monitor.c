/* SPDX-License-Identifier: Apache-2.0 */
/* The verb monitor: messages as they pass. */
#include <inttypes.h>
#include <pwd.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <time.h>

#include "base/clock.h"
#include "ctl.h"
#include "format.h"
#include "session/client.h"

#define PAUSE_NS (5 * NSEC_PER_MSEC) /* the daemon gathers messages meanwhile */
#define BATCH    64                  /* after so many messages there is no pause */
#define SEEN_MAX 4096                /* requests whose answers are known */

struct monitor {
    struct ctl *ctl;
    uint64_t wall_ns; /* the wall clock when the daemon's clock was 0 */

    struct request {
        uint64_t conn, id;
        char method[32];
        bool shown;
    } requests[SEEN_MAX]; /* hashed by connection and id; a later one takes the place */
};

/* The place of the request m, or of the request that m answers. */
static struct request *
request_of(struct monitor *monitor, const struct msg_message *m)
{
    return &monitor->requests[(m->conn * 31 + m->id) % SEEN_MAX];
}

static bool
is_wanted(const struct ctl *ctl, const struct msg_message *m)
{
    return (!ctl->method || msg_str_eq(m->method, ctl->method)) &&
           (!ctl->pool || msg_str_eq(m->pool, ctl->pool));
}

/* Whether to show the message. An answer is shown if its request was; *method is the request's. */
static bool
look_up(struct monitor *monitor, const struct msg_message *m, char method[static 32])
{
    struct request *request = request_of(monitor, m), this = {.conn = m->conn, .id = m->id};
    bool is_known = m->type == MSG_RESPONSE && request->conn == m->conn && request->id == m->id;

    snprintf(this.method, sizeof(this.method), "%.*s", (int)m->method.n,
             m->method.p ? m->method.p : "?");
    this.shown = is_wanted(monitor->ctl, m);
    if (m->type == MSG_REQUEST)
        *request = this;
    memcpy(method, is_known ? request->method : this.method, sizeof(this.method));
    return is_known ? request->shown : this.shown;
}

/* The caller frees it. */
static char *
name_of(const struct msg_message *m, uint32_t i)
{
    return format_text("%.*s", (int)m->names.v[i].n, m->names.v[i].p);
}

static void
print_json(const struct msg_message *m, const char *client, const char *method,
           const char *type)
{
    struct json out;

    json_init(&out, stdout);
    out.flat = true;
    json_object(&out, NULL);
    json_u64(&out, "at_ns", m->at_ns);
    json_u64(&out, "conn", m->conn);
    json_u64(&out, "uid", m->uid);
    json_u64(&out, "pid", m->pid);
    json_str(&out, "client", *client ? client : NULL);
    json_str(&out, "type", type);
    json_str(&out, "method", method);
    json_u64(&out, "id", m->id);
    json_value(&out, "body", "%.*s", (int)m->body.n, m->body.p);
    json_list(&out, "names");
    for (uint32_t i = 0; i < m->names.n; i++) {
        _cleanup_free_ char *name = name_of(m, i);
        json_str(&out, NULL, name);
    }
    json_list_end(&out);
    json_u64(&out, "more_names", m->more_names);
    json_object_end(&out);
}

static void
print_names(const struct msg_message *m)
{
    for (uint32_t i = 0; i < m->names.n; i++) {
        _cleanup_free_ char *name = name_of(m, i);
        _cleanup_free_ char *plain = format_plain(name);
        printf("%s%s", i ? ", " : "", plain);
    }
    if (m->more_names)
        printf("%s%" PRIu64 " more", m->names.n ? ", " : "", m->more_names);
    if (m->names.n || m->more_names)
        printf("  ");
}

static void
print_line(const struct monitor *monitor, const struct msg_message *m, const char *client,
           const char *method, const char *type)
{
    uint64_t ns = monitor->wall_ns + m->at_ns;
    time_t seconds = (time_t)(ns / NSEC_PER_SEC);
    _cleanup_free_ char *plain = format_plain(client);
    _cleanup_free_ char *user = format_user((uint32_t)m->uid);
    char text[16];

    strftime(text, sizeof(text), "%T", localtime(&seconds));
    printf("%s.%06u  %s  pid %" PRIu64 "  %s  #%" PRIu64 ".%" PRIu64 "  %s %s  ", text,
           (unsigned)(ns % NSEC_PER_SEC / 1000), user, m->pid, *plain ? plain : "-", m->conn,
           m->id, method, type);
    print_names(m);
    printf("%.*s\n", (int)m->body.n, m->body.p);
}

static void
show(struct monitor *monitor, const struct msg_message *m)
{
    static const char *const types[] = {"request", "answer", "notification"};
    const char *type = m->refused                    ? "refusal"
                       : m->type < ARRAY_SIZE(types) ? types[m->type]
                                                     : "?";
    _cleanup_free_ char *client =
        format_text("%.*s", (int)m->client.n, m->client.p ? m->client.p : "");
    char method[32];

    if (!look_up(monitor, m, method))
        return;
    if (monitor->ctl->json)
        print_json(m, client, method, type);
    else
        print_line(monitor, m, client, method, type);
}

static void
show_all(struct monitor *monitor, const struct msg_monitor_result *result)
{
    for (uint32_t i = 0; i < result->n_messages; i++)
        show(monitor, &result->messages[i]);
    if (result->lost)
        printf(monitor->ctl->json ? "{\"lost\": %" PRIu64 "}\n"
                                  : "%" PRIu64 " messages were lost: there were too many\n",
               result->lost);
}

/* --uid is "all", a name or a number; NULL: the daemon takes the caller's. */
static int
parse_uid(struct ctl *ctl, struct msg_monitor_params *params, uint64_t *uid)
{
    const struct passwd *user = ctl->uid ? getpwnam(ctl->uid) : NULL;
    unsigned long number = 0;

    if (!ctl->uid)
        return CTL_OK;
    params->all = strcmp(ctl->uid, "all") == 0;
    if (!params->all && !user && !ctl_number(ctl->uid, UINT32_MAX, &number)) {
        ctl_complain(ctl->uid, "no such user");
        return CTL_LOCAL;
    }
    *uid = user ? user->pw_uid : number;
    params->uid = (struct msg_u64s){uid, 1};
    return CTL_OK;
}

int
verb_monitor(struct ctl *ctl, int argc UNUSED, char **argv UNUSED)
{
    _cleanup_free_ struct monitor *monitor = calloc(1, sizeof(*monitor));
    struct msg_monitor_params params = {0};
    struct timespec now;
    uint64_t uid;

    if (!monitor)
        out_of_memory();
    if (parse_uid(ctl, &params, &uid) != CTL_OK)
        return CTL_LOCAL;
    clock_gettime(CLOCK_REALTIME, &now);
    monitor->ctl = ctl;
    monitor->wall_ns =
        (uint64_t)now.tv_sec * NSEC_PER_SEC + (uint64_t)now.tv_nsec - clock_now_ns();
    ctl->client->call_timeout_ns = CAID_FOREVER; /* no message may come for long */
    while (!ferror(stdout)) {
        _cleanup_reply_ struct reply reply = {0};
        struct msg_monitor_result result;
        if (reply_get(&reply, ctl->client, MSG_MONITOR, &params, &result, &ctl->error) < 0)
            return ctl_failed(ctl, "monitor");
        show_all(monitor, &result);
        fflush(stdout);
        if (result.n_messages < BATCH)
            nanosleep(&(struct timespec){.tv_nsec = PAUSE_NS}, NULL);
    }
    return CTL_OK; /* flush_stdout() reports an error of stdout at the end */
}
