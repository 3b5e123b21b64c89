/* SPDX-License-Identifier: Apache-2.0 */
/* Checks of the daemon as a whole, and of this process. */
#include <errno.h>
#include <inttypes.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/resource.h>
#include <unistd.h>

#include "doctor.h"
#include "format.h"

/* ---- the daemon, this process ---- */

static void
socket_no_access(const struct doctor *doctor, struct finding *ret)
{
    _cleanup_free_ char *user = NULL, *group = NULL;
    char mode[10];

    if (doctor->socket_stat.st_mode == 0) { /* not even stat(2) was allowed */
        finding_problem(ret, "socket_hidden", "%s%s: no permission to look there",
                        doctor->socket, doctor->origin);
        finding_remedy(ret, "ask the owner of the folders above it for permission to pass (x)");
        return;
    }
    user = format_user(doctor->socket_stat.st_uid);
    group = format_group(doctor->socket_stat.st_gid);
    format_mode(doctor->socket_stat.st_mode, mode);
    finding_problem(ret, "socket_no_access", "%s%s: no permission to connect: %s, %s:%s",
                    doctor->socket, doctor->origin, mode, user, group);
    finding_remedy(ret,
                   "socket_mode in caid.conf, or SocketMode= of caid.socket, says who may; or "
                   "become a member of the group");
}

static void
look_socket(const struct doctor *doctor, int32_t device UNUSED, struct finding *ret)
{
    const char *path = doctor->socket, *origin = doctor->origin;

    switch (-doctor->socket_error) {
    case 0: finding_ok(ret, "socket_ok", "%s%s", path, origin); break;
    case ENOENT:
        finding_problem(ret, "socket_missing", "%s%s: no such socket", path, origin);
        finding_remedy(ret, "start the daemon (systemctl start caid.socket, or caid), or say "
                            "where it is: --socket, $CAID_SOCKET");
        break;
    case ENOTSOCK:
        finding_problem(ret, "socket_other", "%s%s: not a socket", path, origin);
        finding_remedy(ret, "say where the daemon's socket is: --socket, $CAID_SOCKET");
        break;
    case EACCES: socket_no_access(doctor, ret); break;
    case ENAMETOOLONG:
        finding_problem(ret, "socket_too_long", "%s", doctor->ctl->error.message);
        finding_remedy(ret, "say where the daemon's socket is: --socket, $CAID_SOCKET");
        break;
    default:
        finding_problem(ret, "socket_bad", "%s%s: %s", path, origin,
                        strerror(-doctor->socket_error));
        finding_remedy(ret, "say where the daemon's socket is: --socket, $CAID_SOCKET");
    }
}

static void
look_no_daemon(const struct doctor *doctor, struct finding *ret)
{
    const struct caid_error *error = &doctor->ctl->error;

    if (doctor->socket_error) {
        finding_problem(ret, "daemon_out_of_reach", "not asked: its socket cannot be reached");
        finding_remedy(ret, "see \"socket\"");
    } else if (doctor->silent) {
        finding_problem(ret, "daemon_silent", "no answer within %d seconds", DOCTOR_PATIENCE_S);
        finding_remedy(ret, "its log and the kernel's may say what it waits for; restart it");
    } else if (error->code == CAID_ERR_NO_DAEMON) {
        finding_problem(ret, "daemon_none", "%s", error->message);
        finding_remedy(ret, "restart it (systemctl restart caid); its log says why it ended");
    } else if (error->code == CAID_ERR_VERSION) {
        finding_problem(ret, "daemon_version", "%s", error->message);
        finding_remedy(ret, "install caid and caidctl of one version, and restart the daemon");
    } else if (error->code == CAID_ERR_NOT_READY) {
        finding_problem(ret, "daemon_not_ready", "%s", error->message);
        finding_remedy(
            ret,
            "see its log; to give the service another driver: systemctl edit caid.service, "
            "Environment=CAID_CUDA_DRIVER=soft");
    } else {
        finding_problem(ret, "daemon_error", "%s", error->message);
        finding_remedy(ret, "caid's log says more");
    }
}

static void
look_daemon(const struct doctor *doctor, int32_t device UNUSED, struct finding *ret)
{
    const struct caid_status *status = &doctor->status;
    char own[64];

    if (!doctor->ctl->client) {
        look_no_daemon(doctor, ret);
        return;
    }
    snprintf(own, sizeof(own), "caid %s", caid_version());
    if (strcmp(status->server, own) != 0) {
        finding_warning(ret, "daemon_other_version", "%s, and this caidctl is of %s",
                        status->server, own);
        finding_remedy(ret, "install both of one version, and restart the daemon");
        return;
    }
    _cleanup_free_ char *uptime = format_duration(status->uptime_ns);
    finding_ok(ret, "daemon_ok", "%s, pid %" PRIu64 ", up %s", status->server, status->pid,
               uptime);
}

static void
look_driver(const struct doctor *doctor, int32_t device UNUSED, struct finding *ret)
{
    const struct caid_status *status = &doctor->status;
    uint64_t major = status->driver_version / 1000, minor = status->driver_version % 1000 / 10;

    if (!doctor->ctl->client) {
        finding_warning(ret, "driver_unknown", "not known: no daemon answers");
        finding_remedy(ret, "see \"daemon\"");
    } else if (strcmp(status->driver, "soft") == 0) {
        finding_warning(ret, "driver_soft",
                        "soft, CUDA %" PRIu64 ".%" PRIu64 ": no GPU is used", major, minor);
        finding_remedy(
            ret, "on a machine with a GPU, start caid with --driver=cuda: if that fails, it "
                 "says why");
    } else {
        finding_ok(ret, "driver_ok", "%s, CUDA %" PRIu64 ".%" PRIu64 ", %s", status->driver,
                   major, minor, status->driver_path);
    }
}

#define DEVICE_NODE "/dev/nvidiactl"

static void
look_no_driver(const struct doctor *doctor, struct finding *ret)
{
    if (access(DEVICE_NODE, R_OK | W_OK) < 0 && errno == EACCES) {
        finding_problem(ret, "here_no_access", "%s: %s", DEVICE_NODE, strerror(EACCES));
        finding_remedy(ret, "ls -l /dev/nvidia* shows whose group to join");
        return;
    }
    const char *visible = getenv("CUDA_VISIBLE_DEVICES");
    if (visible && doctor->driver_error.result == CUDA_ERROR_NO_DEVICE) {
        finding_problem(ret, "here_hidden", "CUDA_VISIBLE_DEVICES=%s hides every device",
                        visible);
        finding_remedy(ret, "name the devices to use, or unset it");
        return;
    }
    finding_problem(ret, "here_none", "%s", doctor->driver_error.message);
    finding_remedy(ret,
                   "this process needs the driver that the daemon has; in a container, pass "
                   "the GPU and the driver's libraries in");
}

static void
look_own_driver(const struct doctor *doctor, int32_t device UNUSED, struct finding *ret)
{
    const struct drv *drv = doctor->drv;

    if (!drv) {
        look_no_driver(doctor, ret);
        return;
    }
    const char *kind = drv_kind_name(drv->kind);
    if (doctor->ctl->client && strcmp(kind, doctor->status.driver) != 0) {
        finding_problem(ret, "here_other",
                        "%s, and the daemon's is %s: neither can map the "
                        "other's memory",
                        kind, doctor->status.driver);
        finding_remedy(ret, "unset CAID_CUDA_DRIVER, which is \"%s\"", doctor->driver_choice);
    } else if (doctor->driver_error.message[0]) { /* auto fell back */
        finding_warning(ret, "here_soft", "%s, since no real one works: %s", kind,
                        doctor->driver_error.message);
        finding_remedy(ret, "with a GPU, install NVIDIA's driver");
    } else {
        finding_ok(ret, "here_ok", "%s, CUDA %d.%d, %s", kind, drv->version / 1000,
                   drv->version % 1000 / 10, drv->path);
    }
}

/* A message of the daemon carries up to 253 fds; the software driver keeps one for each block. */
#define FEW_FILES 512

static void
look_open_files(const struct doctor *doctor UNUSED, int32_t device UNUSED, struct finding *ret)
{
    struct rlimit limit;

    if (getrlimit(RLIMIT_NOFILE, &limit) < 0)
        limit.rlim_cur = 0;
    if (limit.rlim_cur == RLIM_INFINITY) {
        finding_ok(ret, "files_ok", "without limit");
    } else if (limit.rlim_cur >= FEW_FILES) {
        finding_ok(ret, "files_ok", "%ju at once", (uintmax_t)limit.rlim_cur);
    } else {
        finding_warning(ret, "files_few",
                        "%ju at once: opening many arrays takes up to 253 more",
                        (uintmax_t)limit.rlim_cur);
        finding_remedy(ret, "ulimit -n 4096, or LimitNOFILE= of a service");
    }
}

const struct check doctor_checks_first[] = {
    {"socket", look_socket},          {"daemon", look_daemon},         {"driver", look_driver},
    {"driver here", look_own_driver}, {"open files", look_open_files}, {NULL, NULL},
};

/* ---- the daemon's state ---- */

struct usage {
    uint32_t uid;
    struct caid_user user;
};

static int
usage_take(const struct caid_user *user, void *userdata)
{
    struct usage *usage = userdata;

    if (user->uid != usage->uid)
        return 0;
    usage->user = *user;
    return 1;
}

static void
look_usage(const struct doctor *doctor, int32_t device UNUSED, struct finding *ret)
{
    struct usage usage = {.uid = geteuid()};
    const struct caid_user *u = &usage.user;

    if (caid_users(doctor->ctl->client, usage_take, &usage, &doctor->ctl->error) < 0) {
        finding_no_answer(ret, doctor);
        return;
    }
    if (u->deferred > 0) {
        finding_warning(ret, "usage_deferred",
                        "%" PRIu64 " of your connections hold back what waits to be freed",
                        u->deferred);
        finding_remedy(ret,
                       "they do so until they leave defer_cleanup() (caid_defer_end()), or "
                       "end");
        return;
    }
    finding_ok(ret, "usage_ok",
               "%" PRIu64 " connections, %" PRIu64 " arrays, %" PRIu64 " leases, %" PRIu64
               " brackets, %" PRIu64 " pages of timelines",
               u->connections, u->arrays, u->leases, u->brackets, u->pages);
}

/* The findings report how long a list is, and its first names. */
#define N_NAMES 3

struct some {
    uint64_t n;
    char names[512];
};

static void
some_add(struct some *some, const char *name)
{
    size_t n = strlen(some->names);

    if (some->n++ < N_NAMES)
        snprintf(some->names + n, sizeof(some->names) - n, "%s%.150s", n > 0 ? ", " : "", name);
}

static const char *
some_more(const struct some *some)
{
    return some->n > N_NAMES ? ", ..." : "";
}

/* The daemon's quota bounds blocks on devices. */
static int
pool_is_full(const struct caid_pool *pool, void *userdata)
{
    if (pool->quota > 0 && pool->used >= pool->quota / 10 * 9)
        some_add(userdata, pool->name);
    return 0;
}

static void
look_pools(const struct doctor *doctor, int32_t device UNUSED, struct finding *ret)
{
    struct some full = {0};

    if (caid_pools(doctor->ctl->client, pool_is_full, &full, &doctor->ctl->error) < 0) {
        finding_no_answer(ret, doctor);
        return;
    }
    if (full.n == 0) {
        finding_ok(ret, "pools_ok", "none that you may read is near its quota");
        return;
    }
    finding_warning(ret, "pools_full",
                    "%" PRIu64 " with more than 90 %% of the quota used: %s%s", full.n,
                    full.names, some_more(&full));
    finding_remedy(ret, "caidctl list --pool=POOL shows what to unlink; quota in caid.conf");
}

static int
entry_is_abandoned(const struct caid_entry *entry, void *userdata)
{
    if (entry->abandoned)
        some_add(userdata, entry->name);
    return 0;
}

static void
look_abandoned(const struct doctor *doctor, int32_t device UNUSED, struct finding *ret)
{
    struct caid_list_options options = CAID_INIT(options);
    struct some left = {0};

    options.all = true;
    if (caid_list(doctor->ctl->client, &options, entry_is_abandoned, &left,
                  &doctor->ctl->error) < 0) {
        finding_no_answer(ret, doctor);
        return;
    }
    if (left.n == 0) {
        finding_ok(ret, "abandoned_none", "none that you may read");
        return;
    }
    finding_warning(ret, "abandoned_some", "%" PRIu64 " whose writer died or gave up: %s%s",
                    left.n, left.names, some_more(&left));
    finding_remedy(ret, "write them anew, or take them as they are: discard()");
}

static bool
daemon_has(const struct doctor *doctor, const char *uuid)
{
    for (int32_t i = 0; i < doctor->n_devices; i++)
        if (strcmp(doctor->devices[i]->uuid, uuid) == 0)
            return true;
    return false;
}

/* If this process has another driver than the daemon, none of its devices is the daemon's. */
static void
look_left_out(const struct doctor *doctor, int32_t device UNUSED, struct finding *ret)
{
    const struct drv *drv = doctor->drv;
    struct some left = {0};
    struct drv_device here;
    int n = 0;

    if (drv && strcmp(drv_kind_name(drv->kind), doctor->status.driver) == 0)
        drv_device_count(drv, &n, NULL);
    for (int i = 0; i < n; i++)
        if (drv_device_get(drv, i, &here, NULL) == 0 && !daemon_has(doctor, here.uuid))
            some_add(&left, here.uuid);
    if (left.n == 0) {
        finding_ok(ret, "left_out_none", "the daemon has all that this process sees");
        return;
    }
    finding_warning(ret, "left_out_some", "%" PRIu64 " that the daemon does not have: %s%s",
                    left.n, left.names, some_more(&left));
    finding_remedy(ret,
                   "caid's log says at its start why it left them out; CUDA_VISIBLE_DEVICES "
                   "of its service hides them, too");
}

const struct check doctor_checks_daemon[] = {
    {"other devices", look_left_out},
    {"your use", look_usage},
    {"pools", look_pools},
    {"abandoned arrays", look_abandoned},
    {NULL, NULL},
};
