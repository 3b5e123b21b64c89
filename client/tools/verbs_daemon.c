/* SPDX-License-Identifier: Apache-2.0 */
/* Verbs on the daemon as a whole: status, info, flush, ping, version. */
#include <inttypes.h>
#include <stdio.h>
#include <stdlib.h>

#include "base/clock.h"
#include "format.h"
#include "report.h"

/* ---- status ---- */

static void
status_json(struct ctl *ctl, const struct caid_status *s)
{
    const struct caid_device *const *devices;
    int n = caid_client_devices(ctl->client, &devices);
    struct json *out = &ctl->out;

    json_object(out, NULL);
    record_answer(out, &answer_status, s);
    json_list(out, "devices");
    for (int i = 0; i < n; i++) {
        json_object(out, NULL);
        json_i64(out, "index", i);
        record_answer(out, &answer_device, devices[i]);
        json_object_end(out);
    }
    json_list_end(out);
    json_object_end(out);
}

static void
status_devices(struct ctl *ctl, struct table *table)
{
    const struct caid_device *const *devices;
    int n = caid_client_devices(ctl->client, &devices);

    for (int i = 0; i < n; i++) {
        char name[32];
        _cleanup_free_ char *total = format_bytes(devices[i]->total, ctl->bytes);
        snprintf(name, sizeof(name), "device %d", i);
        table_fact(table, name, "%s, %s, %s, hand-off by %s", devices[i]->name, total,
                   devices[i]->uuid, devices[i]->handoff);
    }
}

static void
status_keeper(struct ctl *ctl, struct table *table, const struct caid_status *s)
{
    _cleanup_free_ char *journal = format_bytes(s->journal_bytes, ctl->bytes);

    if (!s->keeper)
        table_fact(table, "keeper", "none: arrays end with the daemon");
    else
        table_fact(table, "keeper", "%" PRIu64 " fds, a journal of %s, %" PRIu64 " restarts",
                   s->kept, journal, s->restarts);
}

static void
status_table(struct ctl *ctl, const struct caid_status *s)
{
    _cleanup_table_ struct table table;
    _cleanup_free_ char *uptime = format_duration(s->uptime_ns);
    bool soft = s->driver[0] == 's';

    table_init_facts(&table);
    table_fact(&table, "server", "%s, pid %" PRIu64 ", up %s", s->server, s->pid, uptime);
    table_fact(&table, "socket", "%s", s->socket);
    table_fact(&table, "driver", "%s, CUDA %" PRIu64 ".%" PRIu64 ", %s%s", s->driver,
               s->driver_version / 1000, s->driver_version % 1000 / 10, s->driver_path,
               soft ? " (SOFTWARE: no GPU is used)" : "");
    status_devices(ctl, &table);
    table_fact(&table, "your pool", "%s", s->pool);
    table_fact(&table, "holds",
               "%" PRIu64 " names, %" PRIu64 " arrays, %" PRIu64 " blocks, %" PRIu64
               " pools, %" PRIu64 " timelines",
               s->names, s->arrays, s->blocks, s->pools, s->timelines);
    table_fact(&table, "serves",
               "%" PRIu64 " connections, %" PRIu64 " leases, %" PRIu64 " brackets, %" PRIu64
               " watches, %" PRIu64 " driver calls",
               s->connections, s->leases, s->brackets, s->watches, s->jobs);
    table_fact(&table, "longest turn", "%.3f ms, %.3f ms by the wall clock",
               (double)s->turn_cpu_ns / 1e6, (double)s->turn_wall_ns / 1e6);
    table_fact(&table, "waits", "%" PRIu64 " entries to be freed", s->pending);
    status_keeper(ctl, &table, s);
    if (s->draining)
        table_fact(&table, "drain", "no new arrays, until caidctl drain --undo");
    if (s->contexts > 0)
        table_fact(&table, "contexts", "%" PRIu64 ", for legacy handles", s->contexts);
    if (s->drops > 0)
        table_fact(&table, "dropped", "%" PRIu64 " sets, to make room", s->drops);
    if (s->release_errors > 0)
        table_fact(&table, "lost", "%" PRIu64 " blocks that the driver did not take back",
                   s->release_errors);
    table_print(&table, false);
}

int
verb_status(struct ctl *ctl, int argc UNUSED, char **argv UNUSED)
{
    struct caid_status status = CAID_INIT(status);

    if (caid_client_status(ctl->client, &status, &ctl->error) < 0)
        return ctl_failed(ctl, "status");
    if (ctl->json)
        status_json(ctl, &status);
    else
        status_table(ctl, &status);
    return CTL_OK;
}

/* ---- info ---- */

int
verb_info(struct ctl *ctl, int argc, char **argv)
{
    _cleanup_table_ struct table table = {0};
    int32_t device = argc > 0 ? ctl_device(ctl, argv[0]) : -1;

    if (argc > 0 && device < 0)
        return CTL_LOCAL;
    json_object(&ctl->out, NULL);
    return report_end(ctl, report_devices(ctl, "devices", device, &table), &table);
}

/* ---- flush ---- */

int
verb_flush(struct ctl *ctl, int argc UNUSED, char **argv UNUSED)
{
    struct caid_flushed flushed = CAID_INIT(flushed);
    int32_t device = ctl->device ? ctl_device(ctl, ctl->device) : -1;

    if (ctl->device && device < 0)
        return CTL_LOCAL;
    if (caid_flush(ctl->client, device, &flushed, &ctl->error) < 0)
        return ctl_failed(ctl, "flush");
    if (ctl->json) {
        json_object(&ctl->out, NULL);
        record_answer(&ctl->out, &answer_flushed, &flushed);
        json_object_end(&ctl->out);
        return CTL_OK;
    }
    _cleanup_free_ char *bytes = format_bytes(flushed.bytes, ctl->bytes);
    printf("%" PRIu64 " entries freed, %" PRIu64 " blocks of %s given back to the driver\n",
           flushed.entries, flushed.blocks, bytes);
    return CTL_OK;
}

/* ---- ping ---- */

#define COUNT_DEFAULT 10

static int
cmp_u64(const void *a, const void *b)
{
    uint64_t x = *(const uint64_t *)a, y = *(const uint64_t *)b;
    return (x > y) - (x < y);
}

struct figure {
    const char *key, *text;
    uint64_t ns;
};

/* times is sorted */
static void
ping_print(struct ctl *ctl, const uint64_t *times, uint32_t n)
{
    const struct figure figures[] = {
        {"min_ns", "min", times[0]},
        {"median_ns", "median", times[n / 2]},
        {"p99_ns", "p99", times[(uint64_t)n * 99 / 100]},
        {"max_ns", "max", times[n - 1]},
    };

    if (!ctl->json) {
        printf("%" PRIu32 " round trips", n);
        for (size_t i = 0; i < ARRAY_SIZE(figures); i++)
            printf(", %s %.1f us", figures[i].text, (double)figures[i].ns / NSEC_PER_USEC);
        putchar('\n');
        return;
    }
    json_object(&ctl->out, NULL);
    json_u64(&ctl->out, "count", n);
    for (size_t i = 0; i < ARRAY_SIZE(figures); i++)
        json_u64(&ctl->out, figures[i].key, figures[i].ns);
    json_object_end(&ctl->out);
}

int
verb_ping(struct ctl *ctl, int argc UNUSED, char **argv UNUSED)
{
    uint32_t n = ctl->count ? ctl->count : COUNT_DEFAULT;
    _cleanup_free_ uint64_t *times = calloc(n, sizeof(*times));

    if (!times)
        out_of_memory();
    for (uint32_t i = 0; i < n; i++) {
        uint64_t start = clock_now_ns();
        if (caid_client_ping(ctl->client, &ctl->error) < 0)
            return ctl_failed(ctl, "ping");
        times[i] = clock_now_ns() - start;
    }
    qsort(times, n, sizeof(*times), cmp_u64);
    ping_print(ctl, times, n);
    return CTL_OK;
}

/* ---- version ---- */

int
verb_version(struct ctl *ctl, int argc UNUSED, char **argv UNUSED)
{
    if (!ctl->json) {
        printf("caidctl %s\n", caid_version());
        return CTL_OK;
    }
    json_object(&ctl->out, NULL);
    json_str(&ctl->out, "version", caid_version());
    json_object_end(&ctl->out);
    return CTL_OK;
}
