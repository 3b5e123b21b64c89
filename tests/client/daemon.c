/* SPDX-License-Identifier: Apache-2.0 */
#include "daemon.h"

#include <fcntl.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/prctl.h>
#include <sys/stat.h>
#include <sys/wait.h>
#include <time.h>
#include <unistd.h>

#include "caid_test.h"
#include "drv.h"

#define START_TRIES 4000
#define START_STEP                 \
    {                              \
        .tv_nsec = 5 * 1000 * 1000 \
    }

__thread struct caid_error error;

#if defined(__SANITIZE_ADDRESS__)
/* CAID_TEST looks for leaks inside each test. Criterion's own runner loses a few bytes now and
 * then, which is no failure of ours. */
__attribute__((weak, visibility("default"))) const char *__asan_default_options(void);

const char *
__asan_default_options(void)
{
    return "leak_check_at_exit=0";
}
#endif

const char *
build_path(const char *program)
{
    static char path[512];
    const char *build = getenv("CAID_BUILD_DIR");

    cr_assert(build, "CAID_BUILD_DIR names the build folder");
    snprintf(path, sizeof(path), "%s/%s", build, program);
    return path;
}

static const char *
driver(void)
{
    const char *choice = getenv("CAID_CUDA_DRIVER");
    return choice && choice[0] ? choice : "soft";
}

static void
exec_daemon(const struct daemon *daemon, const char *config, bool supervised, pid_t parent)
{
    char socket[96], driver_option[512], config_option[112];

    snprintf(socket, sizeof(socket), "--socket=%s", daemon->socket);
    snprintf(driver_option, sizeof(driver_option), "--driver=%s", driver());
    snprintf(config_option, sizeof(config_option), "--config=%s", config);
    prctl(PR_SET_PDEATHSIG, SIGKILL);
    if (getppid() != parent)
        _exit(1);
    execl(build_path("bin/caid"), "caid", supervised ? "--supervise" : "--foreground", socket,
          driver_option, config_option, "--log-level=warning", (char *)NULL);
    perror(build_path("bin/caid"));
    _exit(127);
}

static void
wait_until_it_answers(struct daemon *daemon)
{
    const struct timespec step = START_STEP;
    struct caid_client *client;
    int status;

    OPTIONS(caid_connect_options, options, .socket = daemon->socket);
    for (int i = 0; i < START_TRIES; i++) {
        if (caid_connect(&client, &options, &error) == 0) {
            caid_client_close(client);
            return;
        }
        cr_assert_eq(waitpid(daemon->pid, &status, WNOHANG), 0, "the daemon has ended");
        nanosleep(&step, NULL);
    }
    cr_assert_fail("the daemon does not answer: %s", error.message);
}

static void
make_folder(struct daemon *daemon)
{
    strcpy(daemon->dir, "/tmp/caid-test-XXXXXX");
    cr_assert(mkdtemp(daemon->dir));
    snprintf(daemon->socket, sizeof(daemon->socket), "%s/s", daemon->dir);
}

static void
start(struct daemon *daemon, const char *config, bool supervised)
{
    pid_t parent = getpid();

    daemon->pid = fork();
    cr_assert(daemon->pid >= 0);
    if (daemon->pid == 0)
        exec_daemon(daemon, config, supervised, parent);
    wait_until_it_answers(daemon);
}

void
daemon_start(struct daemon *daemon)
{
    daemon_start_with(daemon, "[user-pools]\nlegacy = yes\n");
}

void
daemon_start_with(struct daemon *daemon, const char *config)
{
    char path[96];

    make_folder(daemon);
    snprintf(path, sizeof(path), "%s/c", daemon->dir);
    FILE *file = fopen(path, "w");
    cr_assert(file && fputs(config, file) >= 0 && fclose(file) == 0);
    start(daemon, path, false);
    unlink(path);
}

void
daemon_start_supervised(struct daemon *daemon)
{
    make_folder(daemon);
    start(daemon, "/dev/null", true);
}

void
daemon_start_by(struct daemon *daemon, const char *handoff)
{
    char config[64];

    snprintf(config, sizeof(config), "[handoff]\nmode = %s\n", handoff);
    daemon_start_with(daemon, config);
}

void
daemon_end(struct daemon *daemon, int signal)
{
    int status;

    kill(daemon->pid, signal);
    cr_assert_eq(waitpid(daemon->pid, &status, 0), daemon->pid);
    if (signal == SIGTERM)
        cr_assert(WIFEXITED(status) && WEXITSTATUS(status) == 0, "exit status %#x", status);
    daemon->pid = 0;
}

static void
remove_in(const char *dir, const char *name)
{
    char path[96];
    snprintf(path, sizeof(path), "%s/%s", dir, name);
    unlink(path);
}

void
daemon_stop(struct daemon *daemon)
{
    if (daemon->pid > 0)
        daemon_end(daemon, SIGTERM);
    remove_in(daemon->dir, "s");
    remove_in(daemon->dir, "s.lock");
    cr_assert_eq(rmdir(daemon->dir), 0, "%s is not empty", daemon->dir);
}

struct caid_client *
daemon_connect(const struct daemon *daemon)
{
    struct caid_client *client;

    OPTIONS(caid_connect_options, options, .socket = daemon->socket);
    assert_ok(caid_connect(&client, &options, &error));
    return client;
}

void
driver_warm_up(void)
{
    struct drv_error cause = {0};
    CUcontext context;
    struct drv *drv;

    cr_assert_eq(drv_open(&drv, driver(), &cause), 0, "%s", cause.message);
    cr_assert_eq(drv->cu.cuDevicePrimaryCtxRetain(&context, 0), CUDA_SUCCESS); /* for good */
    drv_free(drv);
}

void
driver_warm_up_events(void)
{
    struct drv_error cause = {0};
    CUipcEventHandle handle;
    CUcontext context;
    struct drv *drv;
    CUevent event;

    driver_warm_up();
    cr_assert_eq(drv_open(&drv, driver(), &cause), 0, "%s", cause.message);
    cr_assert_eq(drv->cu.cuDevicePrimaryCtxRetain(&context, 0), CUDA_SUCCESS);
    cr_assert_eq(drv->cu.cuCtxPushCurrent(context), CUDA_SUCCESS);
    cr_assert_eq(drv->cu.cuEventCreate(&event, CU_EVENT_DISABLE_TIMING | CU_EVENT_INTERPROCESS),
                 CUDA_SUCCESS);
    cr_assert_eq(drv->cu.cuIpcGetEventHandle(&handle, event), CUDA_SUCCESS);
    cr_assert_eq(drv->cu.cuEventDestroy(event), CUDA_SUCCESS);
    drv->cu.cuCtxPopCurrent(&context);
    drv_free(drv);
}

void
soft_warm_up(void)
{
    setenv("CAID_CUDA_DRIVER", "soft", 1);
    driver_warm_up();
}

void
soft_warm_up_events(void)
{
    setenv("CAID_CUDA_DRIVER", "soft", 1);
    driver_warm_up_events();
}

struct caid_status
status_of(struct caid_client *client)
{
    struct caid_status status = CAID_INIT(status);

    assert_ok(caid_client_status(client, &status, &error));
    return status;
}

void
wait_for_leases(struct caid_client *client, uint64_t n)
{
    const struct timespec step = START_STEP;

    for (int i = 0; i < START_TRIES && status_of(client).leases != n; i++)
        nanosleep(&step, NULL);
    cr_assert_eq(status_of(client).leases, n);
}

struct caid_array *
make_bytes(struct caid_client *client, const char *name, int64_t n)
{
    struct caid_array *array;

    OPTIONS(caid_create_options, options, .name = name, .typestr = "|u1", .shape = &n,
            .ndim = 1);
    assert_ok(caid_array_create(client, &array, &options, &error));
    return array;
}
