/* SPDX-License-Identifier: Apache-2.0 */
/*
 * libuv's loop is libuv's, on the world's clock; but signals, work for other threads and the
 * opening of the driver are the world's, and come when the daemon lets libuv run.
 */
#include <uv.h>

#include "boot_timer.h"
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
} l;

static void on_worked(struct event *event);

void
loop_init(void (*came_round)(void))
{
    l = (struct loop){.came_round = came_round, .worked.run = on_worked};
    STAILQ_INIT(&l.waiting);
    STAILQ_INIT(&l.done);
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
