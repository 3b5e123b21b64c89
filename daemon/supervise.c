/* SPDX-License-Identifier: Apache-2.0 */
#include "supervise.h"

#include <fcntl.h>
#include <inttypes.h>
#include <signal.h>
#include <stdio.h>
#include <string.h>
#include <sys/prctl.h>
#include <sys/signalfd.h>
#include <sys/socket.h>
#include <sys/wait.h>

#include "base/clock.h"
#include "base/log.h"
#include "base/macros.h"
#include "keeper.h"
#include "path.h"

#define PAUSE_MIN_NS (100 * NSEC_PER_MSEC)
#define PAUSE_MAX_NS \
    NSEC_PER_SEC /* far less than clients wait: caid_options.reconnect_timeout_ns */
#define PROVEN_NS (10 * NSEC_PER_SEC) /* a daemon that has lived so long can start */

struct supervisor {
    const struct supervise_setup *setup;
    struct keeper keeper;
    sigset_t mask; /* the daemon's at its start: signals wait until it can handle them */
    int signals;   /* signalfd(2) */
    int stop_fd;   /* -1: none, or seen */
    pid_t child;   /* 0: none */
    uint64_t started_ns, pause_ns, start_ns; /* start_ns: when the next daemon is started */
    bool is_proven; /* a daemon was up, or was asked to make room for another */
    bool stops, replaces;
    bool is_over;
    int status; /* to exit with */
};

int
supervise_find_program(const char *argv0, char **ret)
{
    if (strchr(argv0, '/'))
        return path_make_absolute(argv0, ret);
    *ret = realpath("/proc/self/exe", NULL);
    return *ret ? 0 : -errno;
}

/* ---- the daemon's process ---- */

/* Gives fd the number `to` in the daemon; both may be any number from 3 up. */
static void
pass_fd(int fd, int to)
{
    if (fd == to ? fcntl(fd, F_SETFD, 0) < 0 : dup2(fd, to) < 0)
        _exit(EXIT_FAILURE);
}

static void
offer_fds(int listener, int keeper)
{
    char pid[16];
    int above = fcntl(keeper, F_DUPFD_CLOEXEC, LISTEN_KEEPER_FD + 1);

    pass_fd(listener, LISTEN_FD);
    pass_fd(above, LISTEN_KEEPER_FD);
    snprintf(pid, sizeof(pid), "%d", (int)getpid());
    setenv("LISTEN_PID", pid, 1);
    setenv("LISTEN_FDS", "2", 1);
    setenv("LISTEN_FDNAMES", "caid.socket:" LISTEN_KEEPER_NAME, 1);
}

/* The daemon's options. --socket and --stop-fd are the supervisor's own. */
static void
fill_args(const struct supervisor *s, const char *args[])
{
    const struct options *o = s->setup->options;
    const char *const passed[][2] = {{"--driver", o->driver},
                                     {"--config", o->config},
                                     {"--log-level", o->level}};

    *args++ = s->setup->program;
    *args++ = "--foreground";
    for (size_t i = 0; i < ARRAY_SIZE(passed); i++)
        if (passed[i][1]) {
            *args++ = passed[i][0];
            *args++ = passed[i][1];
        }
}

/* As in the unit. Where the kernel gives large pages, freeing and allocating them is several times
 * as fast; clients have no daemon for as long as that takes in a restart. */
static void
use_large_pages(void)
{
    setenv("GLIBC_TUNABLES", "glibc.malloc.hugetlb=1", 0);
}

static _Noreturn void
become_daemon(const struct supervisor *s, int keeper, pid_t parent)
{
    const char *args[9] = {0};

    fill_args(s, args);
    setpgid(0,
            0); /* a terminal signals its whole group: the daemon gets a signal once, from us */
    prctl(PR_SET_PDEATHSIG, SIGTERM);
    if (getppid() != parent)
        _exit(EXIT_FAILURE);
    offer_fds(s->setup->listener->fd, keeper);
    use_large_pages();
    sigprocmask(SIG_SETMASK, &s->mask, NULL);
    execv(s->setup->program, (char **)(uintptr_t)args);
    log_error("%s: %s", s->setup->program, strerror(errno));
    _exit(EXIT_FAILURE);
}

/* Puts off the next start. Each failure in a row doubles the pause. */
static void
put_off(struct supervisor *s, const char *why)
{
    s->pause_ns = s->pause_ns == 0 ? PAUSE_MIN_NS : min_u64(2 * s->pause_ns, PAUSE_MAX_NS);
    s->start_ns = clock_now_ns() + s->pause_ns;
    log_error("%s: another is started in %" PRIu64 " ms", why, s->pause_ns / NSEC_PER_MSEC);
}

static void
start(struct supervisor *s)
{
    pid_t parent = getpid();
    int fds[2];

    if (socketpair(AF_UNIX, SOCK_SEQPACKET | SOCK_CLOEXEC, 0, fds) < 0) {
        put_off(s, strerror(errno));
        return;
    }
    s->started_ns = clock_now_ns();
    s->child = fork();
    if (s->child == 0)
        become_daemon(s, fds[1], parent);
    fd_close(fds[1]);
    if (s->child < 0) {
        fd_close(fds[0]);
        s->child = 0;
        put_off(s, strerror(errno));
        return;
    }
    keeper_adopt(&s->keeper, fds[0]);
    log_info("the daemon is process %d", (int)s->child);
}

static int
exit_status(int status)
{
    return WIFEXITED(status) ? WEXITSTATUS(status) : EXIT_FAILURE;
}

/* The daemon has ended: starts another, or ends this process, too. */
static void
after(struct supervisor *s, int status)
{
    bool was_up = clock_now_ns() - s->started_ns >= PROVEN_NS;
    char why[64];

    s->status = exit_status(status);
    s->is_proven = s->is_proven || was_up || WIFSIGNALED(status);
    s->is_over = s->stops || (!s->replaces && (s->status == 0 || !s->is_proven));
    if (s->is_over)
        return;
    if (WIFSIGNALED(status))
        snprintf(why, sizeof(why), "the daemon was killed: %s", strsignal(WTERMSIG(status)));
    else
        snprintf(why, sizeof(why), "the daemon has ended with status %d", s->status);
    if (was_up || s->replaces) {
        s->pause_ns = s->start_ns = 0;
        log_notice("%s: another takes its place", why);
    } else {
        put_off(s, why);
    }
    s->replaces = false;
}

/* ---- signals ---- */

static void
reap(struct supervisor *s)
{
    int status;
    pid_t pid;

    /* As PID 1 of a container it is also the parent of orphans. */
    while ((pid = waitpid(-1, &status, WNOHANG)) > 0)
        if (pid == s->child) {
            s->child = 0;
            after(s, status);
        }
}

static void
pass_on(const struct supervisor *s, int signum)
{
    if (s->child > 0)
        kill(s->child, signum);
}

static void
stop(struct supervisor *s)
{
    s->stops = true;
    s->is_over = s->child == 0;
    pass_on(s, SIGTERM);
}

static void
replace(struct supervisor *s)
{
    s->is_proven = true;
    s->start_ns = s->pause_ns = 0;
    if (s->child == 0 || s->stops)
        return;
    s->replaces = true;
    pass_on(s, SIGTERM);
}

static void
on_signal(struct supervisor *s)
{
    struct signalfd_siginfo info;

    if (read(s->signals, &info, sizeof(info)) != sizeof(info))
        return;
    switch (info.ssi_signo) {
    case SIGCHLD: reap(s); break;
    case SIGUSR2: replace(s); break;
    case SIGHUP: pass_on(s, SIGHUP); break;
    default: stop(s);
    }
}

/* ---- the loop ---- */

/* The time until the next daemon is to be started. */
static int
next_timeout_ms(const struct supervisor *s)
{
    uint64_t now_ns = clock_now_ns();

    if (s->child > 0)
        return -1;
    return s->start_ns > now_ns ? (int)((s->start_ns - now_ns) / NSEC_PER_MSEC) + 1 : 0;
}

static void
turn(struct supervisor *s)
{
    struct pollfd polls[] = {[KEEPER_POLLS] = {.fd = s->signals, .events = POLLIN},
                             {.fd = s->stop_fd, .events = POLLIN}};

    if (s->child == 0 && clock_now_ns() >= s->start_ns)
        start(s);
    keeper_turn(&s->keeper, polls, ARRAY_SIZE(polls), next_timeout_ms(s));
    if (polls[KEEPER_POLLS].revents)
        on_signal(s);
    if (polls[KEEPER_POLLS + 1].revents) {
        s->stop_fd = -1;
        stop(s);
    }
}

static int
open_signals(struct supervisor *s)
{
    static const int taken[] = {SIGTERM, SIGINT, SIGHUP, SIGUSR2, SIGCHLD};
    sigset_t set;

    sigemptyset(&set);
    for (size_t i = 0; i < ARRAY_SIZE(taken); i++)
        sigaddset(&set, taken[i]);
    signal(SIGCHLD, SIG_DFL); /* an ignored SIGCHLD would not be delivered */
    sigprocmask(SIG_BLOCK, &set, &s->mask);
    s->signals = signalfd(-1, &set, SFD_CLOEXEC | SFD_NONBLOCK);
    return s->signals < 0 ? -errno : 0;
}

int
supervise(const struct supervise_setup *setup)
{
    struct supervisor s = {.setup = setup,
                           .keeper = KEEPER_CLOSED,
                           .stop_fd = setup->options->stop_fd,
                           .signals = -1,
                           .status = EXIT_FAILURE};
    int r = open_signals(&s);

    if (r < 0)
        log_error("cannot start: %s", strerror(-r));
    if (r == 0)
        r = keeper_init(&s.keeper, -1);
    if (r == 0)
        r = listener_start(setup->listener);
    while (r == 0 && !s.is_over)
        turn(&s);
    keeper_deinit(&s.keeper);
    fd_close(s.signals);
    return s.status;
}
