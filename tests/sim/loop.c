/* SPDX-License-Identifier: Apache-2.0 */
/*
 * The daemon's loop is the real one of libuv, on the world's clock. Signals, work for other threads
 * and the opening of the driver come from the world, when the daemon lets libuv run.
 */
#include <uv.h>

#include "boot_timer.h"
#include "conn.h"
#include "conns.h"
#include "opening.h"
#include "sim.h"

#define WORK_NS (200 * NSEC_PER_USEC) /* at most, for a call of the driver */

struct work {
    STAILQ_ENTRY(work) next;
    uv_work_t *work;
    uv_work_cb run;
    uv_after_work_cb after;
};

STAILQ_HEAD(works, work);

static struct loop {
    void (*came_round)(void);
    struct conns *conns;
    struct opening *opening; /* that is to be told of */
    int fd;                  /* libuv's */
    struct works waiting, done;
    struct event worked; /* the first that waits is done */
    uv_signal_t *signal;
    uv_signal_cb on_signal;
    int signum;        /* that has come; 0: none */
    uint64_t began_ns; /* since when clients are served; 0: they are not */
    uint32_t n_holds;
    void *(*run)(void *arg); /* of a thread; NULL: there is none, or it has ended */
    void *arg;
    struct event ran;
} l;

static void on_worked(struct event *event);
static void on_ran(struct event *event);

void
loop_init(void (*came_round)(void))
{
    l = (struct loop){.came_round = came_round, .worked.run = on_worked, .ran.run = on_ran};
    STAILQ_INIT(&l.waiting);
    STAILQ_INIT(&l.done);
}

void
loop_end(void)
{
    uint32_t n_holds = l.n_holds;

    event_cancel(&l.worked);
    event_cancel(&l.ran);
    loop_init(l.came_round);
    l.n_holds = n_holds;
}

int __real_conns_init(struct conns *set, uv_loop_t *loop, uint32_t max_fds,
                      const struct conns_ops *ops, void *userdata);

WRAPPED(int, conns_init, struct conns *set, uv_loop_t *loop, uint32_t max_fds,
        const struct conns_ops *ops, void *userdata)
{
    l.conns = set;
    return __real_conns_init(set, loop, max_fds, ops, userdata);
}

struct conns *
loop_conns(void)
{
    return l.conns;
}

/* A stalled connection waits for a pool that is not back yet, and delays nobody. */
void __real_conns_stall(struct conns *set, struct conn *c);

WRAPPED(void, conns_stall, struct conns *set, struct conn *c)
{
    struct packet *p = STAILQ_FIRST(&file_get(c->sock)->remote->to_daemon);

    l.n_holds++;
    p->n_heard = UINT64_MAX;
    file_list(c->sock, false);
    __real_conns_stall(set, c);
}

void __real_conns_unstall(struct conns *set);

WRAPPED(void, conns_unstall, struct conns *set)
{
    const struct conn *c;

    LIST_FOREACH(c, &set->stalled, of_stalled)
        file_list(c->sock, true);
    __real_conns_unstall(set);
}

bool
loop_is_whole(void)
{
    return !l.conns || l.conns->admits_all;
}

uint32_t
loop_holds(void)
{
    return l.n_holds;
}

/* ---- what comes ---- */

WRAPPED(int, uv_backend_fd, const uv_loop_t *loop UNUSED)
{
    l.fd = file_new(FILE_LIBUV, NULL, 0);
    return l.fd;
}

bool
loop_is_ready(void)
{
    return l.opening || l.signum || !STAILQ_EMPTY(&l.done);
}

void
loop_signal(int signum)
{
    l.signum = signum;
    file_wake(l.fd);
}

int __real_uv_signal_start(uv_signal_t *handle, uv_signal_cb cb, int signum);

WRAPPED(int, uv_signal_start, uv_signal_t *handle, uv_signal_cb cb, int signum)
{
    l.signal = handle;
    l.on_signal = cb;
    return __real_uv_signal_start(handle, cb, signum);
}

int
opening_start(struct opening *o, uv_loop_t *loop UNUSED)
{
    l.opening = o;
    file_wake(l.fd);
    return 0;
}

int
opening_end(struct opening *o UNUSED)
{
    return 0;
}

void
opening_reason(struct opening *o UNUSED, char *ret, size_t size UNUSED)
{
    *ret = '\0';
}

/* ---- names that expire, of which there are none ---- */

int
boot_timer_init(struct boot_timer *timer UNUSED, uv_loop_t *loop UNUSED,
                void (*fired)(void *userdata) UNUSED, void *userdata UNUSED)
{
    return 0;
}

void
boot_timer_deinit(struct boot_timer *timer UNUSED)
{
}

void
boot_timer_set(struct boot_timer *timer UNUSED, uint64_t at_ns)
{
    SIM_CHECK(at_ns == UINT64_MAX, "a name that expires is not simulated");
}

/* ---- work of another thread, of which there is one ---- */

WRAPPED(int, uv_queue_work, uv_loop_t *loop, uv_work_t *work, uv_work_cb run,
        uv_after_work_cb after)
{
    struct work *w = malloc(sizeof(*w));

    work->loop = loop;
    *w = (struct work){.work = work, .run = run, .after = after};
    STAILQ_INSERT_TAIL(&l.waiting, w, next);
    if (!l.worked.at_ns)
        event_in(&l.worked, sim_random(WORK_NS));
    return 0;
}

static void
on_worked(struct event *event)
{
    struct work *w = STAILQ_FIRST(&l.waiting);

    STAILQ_REMOVE_HEAD(&l.waiting, next);
    w->run(w->work);
    STAILQ_INSERT_TAIL(&l.done, w, next);
    file_wake(l.fd);
    if (!STAILQ_EMPTY(&l.waiting))
        event_in(event, sim_random(WORK_NS));
}

static void
end_works(void)
{
    struct work *w;

    while ((w = STAILQ_FIRST(&l.done))) {
        uint64_t began_ns = world_now_ns();
        STAILQ_REMOVE_HEAD(&l.done, next);
        if (w->after)
            w->after(w->work, 0);
        fair_call("after work", began_ns);
        free(w);
    }
}

/* ---- a thread, which takes none of the daemon's time ---- */

static void
on_ran(struct event *event)
{
    void *(*run)(void *arg) = TAKE_PTR(l.run);
    uint64_t now_ns = world_now_ns();

    run(l.arg);
    if (event)
        world.now_ns = now_ns;
}

WRAPPED(int, pthread_create, pthread_t *ret UNUSED, const pthread_attr_t *attr UNUSED,
        void *(*run)(void *arg), void *arg)
{
    SIM_CHECK(!l.run, "two threads");
    l.run = run;
    l.arg = arg;
    event_in(&l.ran, sim_random(WORK_NS));
    return 0;
}

WRAPPED(int, pthread_join, pthread_t thread UNUSED, void **ret UNUSED)
{
    event_cancel(&l.ran);
    if (l.run)
        on_ran(NULL);
    return 0;
}

/* ---- a turn of the loop ---- */

static void
end_serving(void)
{
    fair_serve(NULL);
    if (l.began_ns)
        fair_call("for clients", l.began_ns);
    l.began_ns = 0;
}

void
loop_sleeps(void)
{
    end_serving();
    l.came_round();
    world.blocks = 0; /* what that does takes no time */
}

void
loop_wakes(void)
{
    l.began_ns = world_now_ns();
}

int __real_uv_run(uv_loop_t *loop, uv_run_mode mode);

WRAPPED(int, uv_run, uv_loop_t *loop, uv_run_mode mode)
{
    struct opening *opening = TAKE_PTR(l.opening);
    int signum = l.signum, r;
    uint64_t began_ns;

    end_serving();
    l.signum = 0;
    if (opening)
        opening->changed(opening->userdata);
    if (signum)
        l.on_signal(l.signal, signum);
    end_works();
    began_ns = world_now_ns();
    r = __real_uv_run(loop, mode);
    fair_serve(NULL);
    fair_call("libuv", began_ns);
    return r;
}
