/* SPDX-License-Identifier: Apache-2.0 */
/* The verb stat: a line for each device, again and again, for logs and pipes. */
#include <inttypes.h>
#include <stdio.h>
#include <time.h>

#include "base/clock.h"
#include "format.h"
#include "report.h"

#define DELAY_S      1.0
#define HEADING_EACH 20 /* lines, as vmstat(8) */

static const char heading[] =
    "TIME      DEVICE  CLIENTS   ARRAYS   LEASES    OPENS/S HAND-OFFS/S         CAID         FREE  "
    "    PENDING\n";

struct stat_line {
    struct timespec at;
    int32_t device;
    const struct caid_status *status;
    struct caid_memory_info memory;
    double opens, begun; /* each second, since the look before */
};

static void
print_json(const struct stat_line *line)
{
    const struct caid_status *s = line->status;
    struct json out;

    json_init(&out, stdout);
    out.flat = true;
    json_object(&out, NULL);
    json_u64(&out, "time_ns",
             (uint64_t)line->at.tv_sec * NSEC_PER_SEC + (uint64_t)line->at.tv_nsec);
    json_i64(&out, "device", line->device);
    json_str(&out, "device_uuid", line->memory.uuid);
    json_u64(&out, "connections", s->connections);
    json_u64(&out, "arrays", s->arrays);
    json_u64(&out, "leases", s->leases);
    json_value(&out, "opens_per_s", "%.1f", line->opens);
    json_value(&out, "hand_offs_per_s", "%.1f", line->begun);
    json_u64(&out, "used", line->memory.used);
    json_u64(&out, "free", line->memory.free);
    json_u64(&out, "total", line->memory.total);
    json_u64(&out, "pending_bytes", line->memory.pending_bytes);
    json_object_end(&out);
}

static void
print_line(const struct ctl *ctl, const struct stat_line *line)
{
    _cleanup_free_ char *used = format_bytes(line->memory.used, ctl->bytes);
    _cleanup_free_ char *left = format_bytes(line->memory.free, ctl->bytes);
    _cleanup_free_ char *pending = format_bytes(line->memory.pending_bytes, ctl->bytes);
    char at[16];

    strftime(at, sizeof(at), "%T", localtime(&line->at.tv_sec));
    printf("%s  %6" PRId32 " %8" PRIu64 " %8" PRIu64 " %8" PRIu64
           " %10.1f %11.1f %12s %12s %12s\n",
           at, line->device, line->status->connections, line->status->arrays,
           line->status->leases, line->opens, line->begun, used, left, pending);
}

/* Rates are 0 if the daemon was restarted since the look before: it counts from 0 again. */
static int
print_look(struct ctl *ctl, const struct caid_status *was, const struct caid_status *is,
           double seconds)
{
    const struct caid_device *const *devices;
    int32_t n = caid_client_devices(ctl->client, &devices);
    bool same = is->pid == was->pid && is->opens >= was->opens && is->begun >= was->begun;
    struct stat_line line = {.status = is};

    clock_gettime(CLOCK_REALTIME, &line.at);
    if (same) {
        line.opens = (double)(is->opens - was->opens) / seconds;
        line.begun = (double)(is->begun - was->begun) / seconds;
    }
    for (line.device = 0; line.device < n; line.device++) {
        line.memory = (struct caid_memory_info)CAID_INIT(line.memory);
        if (caid_memory_info(ctl->client, line.device, &line.memory, &ctl->error) < 0)
            return ctl_failed(ctl, devices[line.device]->uuid);
        if (ctl->json)
            print_json(&line);
        else
            print_line(ctl, &line);
    }
    return CTL_OK;
}

/* *was: the look before. */
static int
look_again(struct ctl *ctl, struct caid_status *was, uint64_t *was_ns, double delay)
{
    struct caid_status is = CAID_INIT(is);
    uint64_t now_ns;
    int status;

    clock_pause_ns((uint64_t)(delay * NSEC_PER_SEC));
    if (caid_client_status(ctl->client, &is, &ctl->error) < 0)
        return ctl_failed(ctl, "stat");
    now_ns = clock_now_ns();
    status = print_look(ctl, was, &is, (double)(now_ns - *was_ns) / NSEC_PER_SEC);
    *was = is;
    *was_ns = now_ns;
    return status;
}

int
verb_stat(struct ctl *ctl, int argc, char **argv)
{
    struct caid_status was = CAID_INIT(was);
    uint64_t was_ns = clock_now_ns();
    double delay = DELAY_S;
    int status = CTL_OK;

    if (argc > 0 && !ctl_seconds(argv[0], &delay))
        return CTL_LOCAL;
    if (caid_client_status(ctl->client, &was, &ctl->error) < 0)
        return ctl_failed(ctl, "stat");
    for (uint32_t i = 0; status == CTL_OK && !ferror(stdout) && (!ctl->count || i < ctl->count);
         i++) {
        if (i % HEADING_EACH == 0 && !ctl->json)
            fputs(heading, stdout);
        status = look_again(ctl, &was, &was_ns, delay);
        fflush(stdout);
    }
    return status; /* flush_stdout() reports an error of stdout at the end */
}
