/* SPDX-License-Identifier: Apache-2.0 */
/* The commands, and the socket on which they come. */
#include "control.h"

#include <inttypes.h>
#include <stdio.h>
#include <string.h>

#include "base/clock.h"
#include "errors.h"
#include "soft.h"
#include "trace.h"

/* Each command gets what is behind its name and returns 0 or -errno. Of its reply what does not fit
 * is cut off. */

static uint64_t
calls_of(const char *function, bool *ret_known)
{
    uint64_t n = 0;
    *ret_known = false;
    for (int i = 0; i < N_ENTRIES; i++) {
        if (strcmp(function, entry_points[i].name) != 0 &&
            strcmp(function, entry_points[i].base) != 0)
            continue;
        *ret_known = true;
        n += soft->watch.n_calls[i];
    }
    return n;
}

static int
do_calls(const char *args, FILE *reply)
{
    bool known;
    uint64_t n = calls_of(args, &known);
    if (*args && !known)
        return -ENOENT;
    if (*args) {
        fprintf(reply, "%" PRIu64 "\n", n);
        return 0;
    }
    for (int i = 0; i < N_ENTRIES; i++)
        if (soft->watch.n_calls[i])
            fprintf(reply, "%s %" PRIu64 "\n", entry_points[i].name, soft->watch.n_calls[i]);
    return 0;
}

static int
do_reset(const char *args, FILE *reply UNUSED)
{
    if (*args)
        return -EINVAL;
    for (int i = 0; i < N_ENTRIES; i++)
        soft->watch.n_calls[i] = 0;
    return 0;
}

static int
do_live(const char *args, FILE *reply)
{
    static const char *const objects[] = {
        [OBJECT_CONTEXT] = "contexts", [OBJECT_STREAM] = "streams", [OBJECT_EVENT] = "events",
        [OBJECT_MEMORY] = "handles",   [OBJECT_POOL] = "pools",     [OBJECT_GRAPH] = "graphs",
    };
    static const char *const ranges[] = {
        [RANGE_RESERVATION] = "reservations",
        [RANGE_MAPPING] = "mappings",
        [RANGE_DEVICE] = "allocations",
        [RANGE_HOST] = "host_allocations",
        [RANGE_OPENED] = "opened",
        [RANGE_REGISTERED] = "registrations",
        [RANGE_MANAGED] = "managed_allocations",
        [RANGE_POOL] = "pool_allocations",
        [RANGE_POOL_HOST] = "pool_host_allocations",
    };
    if (*args)
        return -EINVAL;
    for (size_t i = 0; i < ARRAY_SIZE(objects); i++)
        if (objects[i])
            fprintf(reply, "%s %zu\n", objects[i], object_count((enum object_kind)i));
    for (size_t i = 0; i < ARRAY_SIZE(ranges); i++)
        if (ranges[i])
            fprintf(reply, "%s %zu\n", ranges[i], range_count((enum range_kind)i));
    return 0;
}

static int
do_fail(const char *args, FILE *reply UNUSED)
{
    int r = fault_add(&soft->watch.faults, args);
    if (r == 0)
        soft->watch.active = true;
    return r;
}

static int
do_clear(const char *args, FILE *reply UNUSED)
{
    if (*args)
        return -EINVAL;
    fault_clear(&soft->watch.faults);
    soft->watch.active = soft->watch.trace_fd >= 0;
    return 0;
}

/* "ORDINAL RESULT", and without a result it vanishes. */
static int
fault_device(const char *args, int n_wanted)
{
    char name[64];
    int ordinal, result = 0, end = 0;
    int n = sscanf(args, "%d %n%63s %n", &ordinal, &end, name, &end);
    if (n != n_wanted || args[end] || (n == 2 && result_parse(name, &result) < 0) ||
        soft_setup() != CUDA_SUCCESS)
        return -EINVAL;
    struct device *device = device_find(ordinal);
    if (!device)
        return -ENODEV;
    if (n == 2)
        device_fault(device, (CUresult)result);
    else
        device_vanish(device);
    return 0;
}

static int
do_fault(const char *args, FILE *reply UNUSED)
{
    return fault_device(args, 2);
}

static int
do_vanish(const char *args, FILE *reply UNUSED)
{
    return fault_device(args, 1);
}

static int
do_delay(const char *args, FILE *reply UNUSED)
{
    uint64_t delay_us, seed = 0;
    int end = 0, n = sscanf(args, "%" SCNu64 " %n%" SCNu64 " %n", &delay_us, &end, &seed, &end);
    if (n < 1 || args[end] || strchr(args, '-') || delay_us > MAX_DELAY_US ||
        soft_setup() != CUDA_SUCCESS) /* the settings would be read over it later */
        return -EINVAL;
    soft->settings.jitter_seed = seed;
    soft->settings.jitter = n == 2;
    soft->settings.delay_ns = delay_us * NSEC_PER_USEC;
    return 0;
}

struct command {
    const char *name;
    int (*run)(const char *args, FILE *reply);
};

static const struct command commands[] = {
    {"calls", do_calls}, {"live", do_live},   {"reset", do_reset},   {"fail", do_fail},
    {"clear", do_clear}, {"fault", do_fault}, {"vanish", do_vanish}, {"delay", do_delay},
};

int
caid_softcuda_control(const char *command, char *reply, size_t size)
{
    size_t n = command ? strcspn(command, " ") : 0;
    int r = -EOPNOTSUPP;
    char why[128];
    if (!reply || size == 0)
        return -EINVAL;
    *reply = '\0';
    if (watch_setup() < 0)
        return -EINVAL;
    FILE *out = fmemopen(reply, size, "w");
    if (!out)
        return -ENOMEM;
    for (size_t i = 0; n && i < ARRAY_SIZE(commands); i++)
        if (strlen(commands[i].name) == n && strncmp(commands[i].name, command, n) == 0)
            r = commands[i].run(command + n + strspn(command + n, " "), out);
    if (r < 0)
        fprintf(out, "error: %s\n", strerror_r(-r, why, sizeof(why)));
    fclose(out);
    return r;
}

static ssize_t
control_answer(const struct ucred *peer, const char *request, size_t n UNUSED, char *reply,
               int *ret_fd UNUSED)
{
    if (peer->uid != geteuid() && peer->uid != 0)
        return -1;
    caid_softcuda_control(request, reply, SERVE_MAX_REPLY);
    return (ssize_t)strlen(reply) + 1;
}

/* A path's socket is removed when the process ends in order. */
static char control_path[sizeof(((struct sockaddr_un *)0)->sun_path)];
static pid_t control_pid;

__attribute__((destructor)) static void
control_stop(void)
{
    if (control_path[0] && control_pid == getpid())
        unlink(control_path);
}

/* A SIGKILL leaves the path behind, with nobody there. */
static void
remove_stale(const struct sockaddr_un *address)
{
    _cleanup_fd_ int fd = socket(AF_UNIX, SOCK_SEQPACKET | SOCK_CLOEXEC, 0);
    if (fd >= 0 && connect(fd, (const struct sockaddr *)address, sizeof(*address)) < 0 &&
        errno == ECONNREFUSED)
        unlink(address->sun_path);
}

int
control_start(struct server *server, const char *where)
{
    struct sockaddr_un address = {.sun_family = AF_UNIX};
    int r = trace_expand(where, address.sun_path, sizeof(address.sun_path));
    if (r < 0)
        return r;
    size_t n = strlen(address.sun_path);
    socklen_t size = (socklen_t)(offsetof(struct sockaddr_un, sun_path) + n);
    bool abstract = address.sun_path[0] == '@';
    if (abstract)
        address.sun_path[0] = '\0';
    else
        remove_stale(&address);
    r = serve_start(server, &address, abstract ? size : sizeof(address), control_answer);
    if (r == 0 && !abstract) {
        strcpy(control_path, address.sun_path);
        control_pid = getpid();
    }
    return r;
}
