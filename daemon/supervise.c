/* SPDX-License-Identifier: Apache-2.0 */
#include "supervise.h"

#include <fcntl.h>
#include <inttypes.h>
#include <limits.h>
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
#define PROVEN_NS (10 * NSEC_PER_SEC) /* who has lived so long did not die of its start */
#define N_POLLS   (KEEPER_POLLS + 2)

enum outcome {
    GOES_ON,
    ENDS
};

struct supervisor {
    const struct supervise_setup *setup;
    struct keeper keeper;
    sigset_t mask; /* the daemon's: what comes before it can take it waits */
    int signals;   /* signalfd(2) */
    int stop_fd;   /* -1: none, or seen */
    pid_t child;   /* 0: none */
    uint64_t started_ns, pause_ns, start_ns; /* the next one is started then */
    bool is_proven; /* a daemon was up, or was asked to make room for another */
    bool stops, replaces;
    int status;
};

int
supervise_find_program(const char *argv0, char **ret)
{
    ssize_t n;

    if (strchr(argv0, '/'))
        return path_make_absolute(argv0, ret);
    *ret = calloc(1, PATH_MAX);
    if (!*ret)
        return -ENOMEM;
    n = readlink("/proc/self/exe", *ret, PATH_MAX - 1);
    return n < 0 ? -errno : 0;
}

/* ---- the daemon's process ---- */

/* To be number `to` there; both may be anything from 3 up. */
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

static size_t
add(const char *argv[], size_t n, const char *option, const char *value)
{
    if (!value)
        return n;
    argv[n] = option;
    argv[n + 1] = value;
    return n + 2;
}

/* What is ours, socket and end, it is not told of. */
static _Noreturn void
become_daemon(const struct supervisor *s, int keeper, pid_t parent)
{
    const struct options *o = s->setup->options;
    const char *argv[9] = {s->setup->program, "--foreground"};
    size_t n = 2;

    n = add(argv, n, "--driver", o->driver);
    n = add(argv, n, "--config", o->config);
    add(argv, n, "--log-level", o->level);
    setpgid(0, 0); /* what a terminal says to all comes from us, once */
    prctl(PR_SET_PDEATHSIG, SIGTERM);
    if (getppid() != parent)
        _exit(EXIT_FAILURE);
    offer_fds(s->setup->listener->fd, keeper);
    sigprocmask(SIG_SETMASK, &s->mask, NULL);
    execv(s->setup->program, (char **)(uintptr_t)argv);
    log_error("%s: %s", s->setup->program, strerror(errno));
    _exit(EXIT_FAILURE);
}

/* The next start: those who fail one after the other wait ever longer. */
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

/* What becomes of us when the daemon has ended. */
static enum outcome
after(struct supervisor *s, int status)
{
    bool was_up = clock_now_ns() - s->started_ns >= PROVEN_NS,
         failed = exit_status(status) != 0;
    char why[64];

    s->is_proven = s->is_proven || was_up || WIFSIGNALED(status);
    if (s->stops || (!s->replaces && (!failed || !s->is_proven))) {
        s->status = exit_status(status);
        return ENDS;
    }
    if (WIFSIGNALED(status))
        snprintf(why, sizeof(why), "the daemon was killed: %s", strsignal(WTERMSIG(status)));
    else
        snprintf(why, sizeof(why), "the daemon has ended with status %d", exit_status(status));
    if (was_up || s->replaces) {
        s->pause_ns = s->start_ns = 0;
        log_notice("%s: another takes its place", why);
    } else {
        put_off(s, why);
    }
    s->replaces = false;
    return GOES_ON;
}

static enum outcome
reap(struct supervisor *s)
{
    int status;

    if (s->child == 0 || waitpid(s->child, &status, WNOHANG) != s->child)
        return GOES_ON;
    s->child = 0;
    return after(s, status);
}

/* ---- signals ---- */

static enum outcome
stop(struct supervisor *s)
{
    s->stops = true;
    if (s->child == 0)
        return ENDS;
    kill(s->child, SIGTERM);
    return GOES_ON;
}

static void
replace(struct supervisor *s)
{
    s->is_proven = true;
    s->start_ns = s->pause_ns = 0;
    if (s->child == 0 || s->stops)
        return;
    s->replaces = true;
    kill(s->child, SIGTERM);
}

static enum outcome
on_signal(struct supervisor *s)
{
    struct signalfd_siginfo info;

    if (read(s->signals, &info, sizeof(info)) != sizeof(info))
        return GOES_ON;
    switch (info.ssi_signo) {
    case SIGCHLD: return reap(s);
    case SIGUSR2: replace(s); return GOES_ON;
    case SIGHUP:
        if (s->child > 0)
            kill(s->child, SIGHUP);
        return GOES_ON;
    default: return stop(s);
    }
}

/* ---- the loop ---- */

/* Until the next daemon is due, or longer. */
static int
next_timeout_ms(const struct supervisor *s, int keeper_ms)
{
    uint64_t now_ns = clock_now_ns(), due_ms;

    if (s->child > 0)
        return keeper_ms;
    due_ms = s->start_ns > now_ns ? (s->start_ns - now_ns) / NSEC_PER_MSEC + 1 : 0;
    return keeper_ms < 0 ? (int)due_ms : (int)min_u64(due_ms, (uint64_t)keeper_ms);
}

static enum outcome
turn(struct supervisor *s)
{
    struct pollfd polls[N_POLLS], *of_signals = polls + KEEPER_POLLS, *of_stop = of_signals + 1;
    int timeout_ms;

    if (s->child == 0 && clock_now_ns() >= s->start_ns)
        start(s);
    timeout_ms = next_timeout_ms(s, keeper_polls(&s->keeper, polls));
    *of_signals = (struct pollfd){.fd = s->signals, .events = POLLIN};
    *of_stop = (struct pollfd){.fd = s->stop_fd, .events = POLLIN};
    if (poll(polls, N_POLLS, timeout_ms) < 0)
        return GOES_ON; /* stopped, and continued */
    keeper_serve(&s->keeper, polls);
    if (of_stop->revents) {
        s->stop_fd = -1;
        return stop(s);
    }
    return of_signals->revents ? on_signal(s) : GOES_ON;
}

static int
open_signals(struct supervisor *s)
{
    static const int taken[] = {SIGTERM, SIGINT, SIGHUP, SIGUSR2, SIGCHLD};
    sigset_t set;

    sigemptyset(&set);
    for (size_t i = 0; i < ARRAY_SIZE(taken); i++)
        sigaddset(&set, taken[i]);
    signal(SIGCHLD, SIG_DFL); /* ignored, it would not be told */
    sigprocmask(SIG_BLOCK, &set, &s->mask);
    s->signals = signalfd(-1, &set, SFD_CLOEXEC | SFD_NONBLOCK);
    return s->signals < 0 ? -errno : 0;
}

int
supervise(const struct supervise_setup *setup)
{
    struct supervisor s = {.setup = setup,
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
    while (r == 0 && turn(&s) == GOES_ON)
        ;
    keeper_deinit(&s.keeper);
    fd_close(s.signals);
    return s.status;
}
