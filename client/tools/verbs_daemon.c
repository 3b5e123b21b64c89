/* SPDX-License-Identifier: Apache-2.0 */
/* Verbs on the daemon as a whole: status, info, flush, ping, version. */
#include <inttypes.h>
#include <stdio.h>
#include <stdlib.h>

#include "base/clock.h"
#include "format.h"
#include "report.h"

static const struct column facts[] = {{"", false}, {"", false}};

/* ---- status ---- */

/* A string of the daemon's that is "" where it is not known. */
static const char *
known(const char *text)
{
    return text[0] ? text : NULL;
}

static void
status_device_json(struct json *out, const struct caid_device *device)
{
    json_str(out, "kinds", device->kinds);
    json_str(out, "handoff", device->handoff);
    json_bool(out, "memops", device->memops);
    json_bool(out, "readonly_host", device->readonly_host);
    json_bool(out, "mps", device->mps);
    json_str(out, "persistence", known(device->persistence));
    json_str(out, "compute_mode", known(device->compute_mode));
}

static void
status_json(struct ctl *ctl, const struct caid_status *s)
{
    const struct caid_device *devices;
    int n = caid_client_devices(ctl->client, &devices);
    struct json *out = &ctl->out;

    json_object(out, NULL);
    json_str(out, "server", s->server);
    json_u64(out, "pid", s->pid);
    json_u64(out, "uptime_ns", s->uptime_ns);
    json_str(out, "socket", s->socket);
    json_str(out, "driver", s->driver);
    json_str(out, "driver_path", s->driver_path);
    json_u64(out, "driver_version", s->driver_version);
    json_str(out, "pool", s->pool);
    json_u64(out, "connections", s->connections);
    json_u64(out, "pools", s->pools);
    json_u64(out, "blocks", s->blocks);
    json_u64(out, "arrays", s->arrays);
    json_u64(out, "names", s->names);
    json_u64(out, "leases", s->leases);
    json_u64(out, "jobs", s->jobs);
    json_u64(out, "release_errors", s->release_errors);
    json_u64(out, "watches", s->watches);
    json_u64(out, "pending", s->pending);
    json_u64(out, "contexts", s->contexts);
    json_u64(out, "brackets", s->brackets);
    json_u64(out, "pages", s->pages);
    json_u64(out, "timelines", s->timelines);
    json_list(out, "devices");
    for (int i = 0; i < n; i++) {
        json_object(out, NULL);
        json_i64(out, "index", i);
        json_str(out, "uuid", devices[i].uuid);
        json_str(out, "name", devices[i].name);
        json_u64(out, "total", devices[i].total);
        json_u64(out, "granularity", devices[i].granularity);
        status_device_json(out, &devices[i]);
        json_object_end(out);
    }
    json_list_end(out);
    json_object_end(out);
}

static void
status_devices(struct ctl *ctl, struct table *table)
{
    const struct caid_device *devices;
    int n = caid_client_devices(ctl->client, &devices);

    for (int i = 0; i < n; i++) {
        _cleanup_free_ char *total = format_bytes(devices[i].total, ctl->bytes);
        table_add(table, "device %d", i);
        table_add(table, "%s, %s, %s, hand-off by %s", devices[i].name, total, devices[i].uuid,
                  devices[i].handoff);
    }
}

static void
status_table(struct ctl *ctl, const struct caid_status *s)
{
    _cleanup_table_ struct table table;
    _cleanup_free_ char *uptime = format_duration(s->uptime_ns);
    bool soft = s->driver[0] == 's';

    table_init(&table, facts, ARRAY_SIZE(facts));
    table_add(&table, "server");
    table_add(&table, "%s, pid %" PRIu64 ", up %s", s->server, s->pid, uptime);
    table_add(&table, "socket");
    table_add(&table, "%s", s->socket);
    table_add(&table, "driver");
    table_add(&table, "%s, CUDA %" PRIu64 ".%" PRIu64 ", %s%s", s->driver,
              s->driver_version / 1000, s->driver_version % 1000 / 10, s->driver_path,
              soft ? " (SOFTWARE: no GPU is used)" : "");
    status_devices(ctl, &table);
    table_add(&table, "your pool");
    table_add(&table, "%s", s->pool);
    table_add(&table, "holds");
    table_add(&table,
              "%" PRIu64 " names, %" PRIu64 " arrays, %" PRIu64 " blocks, %" PRIu64
              " pools, %" PRIu64 " timelines",
              s->names, s->arrays, s->blocks, s->pools, s->timelines);
    table_add(&table, "serves");
    table_add(&table,
              "%" PRIu64 " connections, %" PRIu64 " leases, %" PRIu64 " brackets, %" PRIu64
              " watches, %" PRIu64 " driver calls",
              s->connections, s->leases, s->brackets, s->watches, s->jobs);
    table_add(&table, "waits");
    table_add(&table, "%" PRIu64 " entries to be freed", s->pending);
    if (s->contexts > 0) {
        table_add(&table, "contexts");
        table_add(&table, "%" PRIu64 ", for legacy handles", s->contexts);
    }
    if (s->release_errors > 0) {
        table_add(&table, "lost");
        table_add(&table, "%" PRIu64 " blocks that the driver did not take back",
                  s->release_errors);
    }
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
    int status = report_devices(ctl, "devices", device, &table);
    if (status != CTL_OK)
        return status;
    json_object_end(&ctl->out);
    if (!ctl->json)
        table_print(&table, true);
    return CTL_OK;
}

/* ---- flush ---- */

static void
flush_json(struct json *out, const struct caid_flushed *flushed)
{
    json_object(out, NULL);
    json_u64(out, "entries", flushed->entries);
    json_u64(out, "blocks", flushed->blocks);
    json_u64(out, "bytes", flushed->bytes);
    json_object_end(out);
}

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
        flush_json(&ctl->out, &flushed);
        return CTL_OK;
    }
    _cleanup_free_ char *bytes = format_bytes(flushed.bytes, ctl->bytes);
    printf("%" PRIu64 " entries freed, %" PRIu64 " blocks of %s given back to the driver\n",
           flushed.entries, flushed.blocks, bytes);
    return CTL_OK;
}

/* ---- ping ---- */

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
    _cleanup_free_ uint64_t *times = calloc(ctl->count, sizeof(*times));

    if (!times)
        out_of_memory();
    for (uint32_t i = 0; i < ctl->count; i++) {
        uint64_t start = clock_now_ns();
        if (caid_client_ping(ctl->client, &ctl->error) < 0)
            return ctl_failed(ctl, "ping");
        times[i] = clock_now_ns() - start;
    }
    qsort(times, ctl->count, sizeof(*times), cmp_u64);
    ping_print(ctl, times, ctl->count);
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
