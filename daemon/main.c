/* SPDX-License-Identifier: Apache-2.0 */
/*
 * caid(8): the start-up, in the order in which things can fail: command line, settings, socket,
 * driver. Nothing is announced, to the service manager or to the shell that started the daemon,
 * before clients can be served.
 */
#include <signal.h>
#include <stdbool.h>
#include <stdio.h>
#include <string.h>

#include "base/log.h"
#include "base/macros.h"
#include "config.h"
#include "detach.h"
#include "fds.h"
#include "gpu.h"
#include "inherited.h"
#include "kept.h"
#include "listen.h"
#include "notify.h"
#include "options.h"
#include "path.h"
#include "server.h"
#include "supervise.h"

/* Returns whether the command line or the environment sets the level: then the settings do not. */
static bool
set_log_level(const struct options *o, const struct config *c)
{
    const char *env = getenv("CAID_LOG");
    bool by_env = env && log_level_parse(env) >= 0;

    if (o->log_level >= 0)
        log_set_level((enum log_level)o->log_level);
    else if (!by_env)
        log_set_level((enum log_level)c->log_level);
    return o->log_level >= 0 || by_env;
}

/* The signal waits until the server takes it. */
static void
block_signal(int signum)
{
    sigset_t set;

    sigemptyset(&set);
    sigaddset(&set, signum);
    sigprocmask(SIG_BLOCK, &set, NULL);
}

/* r: why it cannot listen where a daemon does that nobody told where. */
static void
explain_usual(int r)
{
    if (r < 0 && r != -EADDRINUSE && geteuid() != 0 && !getenv("XDG_RUNTIME_DIR"))
        log_error(
            "XDG_RUNTIME_DIR is not set: --socket=PATH or CAID_SOCKET says where a user's "
            "own daemon listens, caid.LocalDaemon() of Python finds a place itself");
}

static int
open_listener(struct listener *ret, const struct options *o, const struct config *c)
{
    _cleanup_free_ char *usual = NULL;
    const char *path = o->socket ? o->socket : c->start.socket;
    int r;

    if (listener_is_offered()) {
        if (o->socket) {
            log_error("--socket=%s: the service manager passes a socket already", o->socket);
            return -EINVAL;
        }
        return listener_inherit(ret);
    }
    if (!path || !*path) {
        r = listener_default_path(&usual);
        if (r < 0)
            return r;
        path = usual;
    }
    r = listener_open(ret, path, c->start.socket_mode);
    if (usual)
        explain_usual(r);
    return r;
}

DEFINE_CLEANUP(struct server *, server_free)

/* The absolute path of --config, for reloads; NULL without it. -errno, logged. */
static int
get_config_path(const struct options *o, char **ret)
{
    int r = o->config ? path_make_absolute(o->config, ret) : 0;

    if (r < 0)
        log_error("%s: %s", o->config, strerror(-r));
    return r;
}

/* ready_fd: of detach_start(), or -1. Every failure has been logged. */
static int
serve(const struct options *o, struct config *c, int ready_fd)
{
    _cleanup_free_ char *config_path = NULL;
    _cleanup_(notify_deinit) struct notify notify = {.fd = -1};
    _cleanup_(listener_deinit) struct listener listener = {.fd = -1, .lock_fd = -1};
    _cleanup_(gpu_deinit) struct gpu gpu = {0};
    _cleanup_(kept_deinit) struct kept kept = {.sock = -1, .wake = -1};
    _cleanup_(server_freep) struct server *server = NULL;
    bool keeps_log_level = set_log_level(o, c);
    int keeper_fd = listener_keeper(), r;

    notify_init(&notify);
    fds_prepare();
    block_signal(SIGTERM); /* so that no early stop leaves a socket behind */
    block_signal(SIGINT);
    r = get_config_path(o, &config_path);
    if (r == 0)
        r = open_listener(&listener, o, c);
    if (r == 0)
        r = fds_check(listener.fd); /* before the driver fails for want of fds */
    if (r == 0)
        r = kept_init(&kept, o->keeper, keeper_fd);
    if (r < 0)
        return r;
    const struct server_setup setup = {
        .config = c,
        .config_path = config_path,
        .keeps_log_level = keeps_log_level,
        .driver = o->driver ? o->driver : c->start.driver,
        .gpu = &gpu,
        .listener = &listener,
        .notify = &notify,
        .kept = &kept,
        .stop_fd = o->stop_fd,
        .ready_fd = ready_fd,
    };
    r = server_new(&server, &setup);
    return r < 0 ? r : server_run(server);
}

/* Returns the exit status. */
static int
run_supervised(const struct options *o, const struct config *c, const char *argv0)
{
    _cleanup_free_ char *program = NULL;
    _cleanup_(listener_deinit) struct listener listener = {.fd = -1, .lock_fd = -1};
    int r = supervise_find_program(argv0, &program);

    set_log_level(o, c);
    fds_prepare();
    block_signal(SIGTERM);
    block_signal(SIGINT);
    if (r < 0)
        log_error("%s: %s", argv0, strerror(-r));
    else
        r = open_listener(&listener, o, c);
    const struct supervise_setup setup = {.options = o,
                                          .listener = &listener,
                                          .program = program};
    return r < 0 ? EXIT_FAILURE : supervise(&setup);
}

/* The daemon detaches if it was started by hand: no parent waits for it or supervises it. */
static bool
detaches(const struct options *o)
{
    return !o->foreground && !o->supervise && !getenv("NOTIFY_SOCKET") &&
           !listener_is_offered();
}

static int
daemon_run(const struct options *o, struct config *c)
{
    int ready_fd = -1, r;

    if (detaches(o)) {
        r = detach_start(&ready_fd);
        if (r < 0) {
            log_error("cannot detach: %s", strerror(-r));
            return r;
        }
    }
    return serve(o, c, ready_fd);
}

int
main(int argc, char *argv[])
{
    _cleanup_(config_deinit) struct config config = {0};
    struct options options;
    int r;

    fds_fill_standard();
    r = options_parse(&options, argc, argv);
    if (r != 0)
        return r < 0 ? EXIT_FAILURE : EXIT_SUCCESS;
    if (detaches(&options))
        fds_close_others(options.stop_fd);
    log_init("caid");
    block_signal(SIGHUP); /* one that comes after the files were read must cause a reload */
    if (config_init(&config) < 0 || config_load(&config, options.config) < 0)
        return EXIT_FAILURE;
    if (options.check_config) {
        config_print(&config, stdout);
        return EXIT_SUCCESS;
    }
    inherited_prepare();
    if (options.supervise)
        return run_supervised(&options, &config, argv[0]);
    return daemon_run(&options, &config) < 0 ? EXIT_FAILURE : EXIT_SUCCESS;
}
