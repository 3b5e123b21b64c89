/* SPDX-License-Identifier: Apache-2.0 */
/*
 * caid-keeper(8): keeps the fds that the daemon gives it, until this daemon drops them or the next
 * one asks for them (keeper.h). One thread, which sleeps most of the time. A stop closes all.
 */
#include <getopt.h>
#include <signal.h>
#include <stdio.h>
#include <string.h>
#include <sys/signalfd.h>

#include "base/log.h"
#include "base/macros.h"
#include "fds.h"
#include "inherited.h"
#include "keeper.h"
#include "listen.h"
#include "notify.h"

static const char usage[] = "Usage: caid-keeper [OPTION]...\n"
                            "Keep GPU memory for caid while it is restarted.\n"
                            "\n"
                            "  -s, --socket=PATH       listen on PATH, for this user and root\n"
                            "  -V, --version           print the version and exit\n"
                            "  -h, --help              print this and exit\n"
                            "\n"
                            "See caid-keeper(8).\n";

static const struct option long_options[] = {
    {"socket", required_argument, NULL, 's'},
    {"version", no_argument, NULL, 'V'},
    {"help", no_argument, NULL, 'h'},
    {0},
};

static int
bad_usage(void)
{
    fputs("Try 'caid-keeper --help'.\n", stderr);
    return -EINVAL;
}

/* As options_parse(). */
static int
parse(int argc, char *argv[], const char **ret_socket)
{
    int option;

    while ((option = getopt_long(argc, argv, "s:Vh", long_options, NULL)) >= 0) {
        switch (option) {
        case 's': *ret_socket = optarg; break;
        case 'V': puts("caid-keeper " CAID_VERSION); return 1;
        case 'h': fputs(usage, stdout); return 1;
        default: return bad_usage(); /* getopt has printed the reason */
        }
    }
    if (optind < argc) {
        fprintf(stderr, "caid-keeper: %s: no arguments are taken\n", argv[optind]);
        return bad_usage();
    }
    if (!*ret_socket == !listener_is_offered()) {
        fputs(*ret_socket ? "caid-keeper: --socket: the service manager passes one already\n"
                          : "caid-keeper: --socket=PATH is missing\n",
              stderr);
        return bad_usage();
    }
    return 0;
}

/* SIGTERM and SIGINT are read from *ret_fd from here on. SIGHUP, of a terminal, is ignored. */
static int
open_signals(int *ret_fd)
{
    sigset_t set;

    signal(SIGHUP, SIG_IGN);
    sigemptyset(&set);
    sigaddset(&set, SIGTERM);
    sigaddset(&set, SIGINT);
    sigprocmask(SIG_BLOCK, &set, NULL);
    *ret_fd = signalfd(-1, &set, SFD_CLOEXEC | SFD_NONBLOCK);
    return *ret_fd < 0 ? -errno : 0;
}

static void
serve(struct keeper *k, struct notify *notify, int signals)
{
    struct pollfd polls[] = {[KEEPER_POLLS] = {.fd = signals, .events = POLLIN}};

    notify_send(notify, "READY=1");
    do
        keeper_turn(k, polls, ARRAY_SIZE(polls), -1);
    while (!polls[KEEPER_POLLS].revents);
    log_info("stopping: %u files closed", k->n);
    notify_send(notify, "STOPPING=1");
}

static int
keeper_serve(const char *path)
{
    _cleanup_(notify_deinit) struct notify notify = {.fd = -1};
    _cleanup_(listener_deinit) struct listener listener = {.fd = -1, .lock_fd = -1};
    _cleanup_(keeper_deinit) struct keeper keeper = KEEPER_CLOSED;
    _cleanup_fd_ int signals = -1;
    int r;

    notify_init(&notify);
    fds_prepare();
    r = open_signals(&signals);
    if (r < 0)
        log_error("cannot start: %s", strerror(-r));
    if (r == 0)
        r = path ? listener_open(&listener, path, 0600) : listener_inherit(&listener);
    if (r == 0)
        r = keeper_init(&keeper, listener.fd);
    if (r == 0)
        r = listener_start(&listener);
    if (r < 0)
        return r;
    log_info("keeping up to %u files, on %s", keeper.limit, listener.path);
    serve(&keeper, &notify, signals);
    return 0;
}

int
main(int argc, char *argv[])
{
    const char *path = NULL;
    int r;

    fds_fill_standard();
    r = parse(argc, argv, &path);
    if (r != 0)
        return r < 0 ? EXIT_FAILURE : EXIT_SUCCESS;
    log_init("caid-keeper");
    inherited_prepare();
    return keeper_serve(path) < 0 ? EXIT_FAILURE : EXIT_SUCCESS;
}
