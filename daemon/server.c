/* SPDX-License-Identifier: Apache-2.0 */
#include "server.h"

#include <fcntl.h>
#include <inttypes.h>
#include <limits.h>
#include <signal.h>
#include <string.h>
#include <sys/random.h>
#include <sys/socket.h>
#include <unistd.h>
#include <uv.h>

#include "arrivals.h"
#include "audit.h"
#include "base/clock.h"
#include "base/log.h"
#include "base/macros.h"
#include "base/presence.h"
#include "boot_timer.h"
#include "conns.h"
#include "core_setup.h"
#include "detach.h"
#include "fds.h"
#include "opening.h"
#include "refusals.h"
#include "reload.h"
#include "restart.h"
#include "service.h"
#include "shared_page.h"
#include "spin.h"
#include "trim.h"
#include "worker.h"

#define STOP_MS        10000
#define RESTORE_NS     20000 /* a turn restores for so long, and for as long as it has served */
#define GRACE_MS       5000  /* after that, without a driver: READY=1, and refusals */
#define REPLY_BUSY     2048  /* bytes of records in a reply to a greedy uid */
#define LOG_MAX_LINES  20    /* in a window, about mistakes of clients that are not audited */
#define LOG_MAX_BLOCKS 1     /* about blocks: a failed device refuses to free any of them */

struct server {
    struct server_setup setup;
    uv_loop_t loop;
    struct core *core;
    struct conns conns;
    struct arrivals arrivals;
    struct refusals refusals;
    struct opening opening;
    struct worker worker; /* with the core, when the driver is open */
    struct shared_pages pages;
    struct restart restart;
    struct trim trim;
    struct spin spin;
    struct reload reload;
    struct service service;
    struct poll_source libuv;
    uv_poll_t stop_poll;
    uv_idle_t overdue;
    struct boot_timer expiry_timer;
    uv_timer_t deadline_timer, stop_timer, grace_timer, pages_timer;
    uv_async_t keeper_spoke; /* kept_mapped() may have another answer */
    uv_signal_t sigterm, sigint, sighup;
    struct audit audit;
    struct log_window about_clients, about_blocks;
    int presence;         /* an fd by whose lock clients see that a daemon is there */
    uint64_t deadline_ns; /* for which deadline_timer or `overdue` is set */
    int r;                /* the result of server_run() */
    bool carrying_out;
    bool wants_reload;
    bool leaving; /* connections end because this process ends, not theirs */
    bool stopping;
    bool uv_is_ready; /* libuv's fd has had an event in this turn */
    bool over;
};

/* ---- the log ---- */

#define audit_client(s, of, client, ...)                                                      \
    audit_log(&(s)->audit, uv_now(&(s)->loop),                                                \
              &(struct core_audit){.kind = (of), .pid = (client)->pid, .uid = (client)->uid}, \
              __VA_ARGS__)
#define log_client(s, ...)                                                         \
    (log_admits(&(s)->about_clients, uv_now(&(s)->loop), LOG_MAX_LINES, "clients") \
         ? log_notice(__VA_ARGS__)                                                 \
         : (void)0)

/* ---- the core's actions ---- */

static void
send_action(struct server *s, const struct core_action *a)
{
    struct conn *c = conns_find(&s->conns, a->conn);
    int r;

    if (!c || s->leaving) /* a packet would tell of deaths that have not happened */
        return;
    r = conn_send(c, a->packet, a->n_packet, a->fds, a->n_fds);
    if (r < 0)
        conn_fail(c, r);
}

static void
close_action(struct server *s, const struct core_action *a)
{
    struct conn *c = conns_find(&s->conns, a->conn);

    if (!c)
        return;
    audit_client(s, AUDIT_CLIENT, c, "is disconnected: %s", a->reason);
    conn_discard_input(c);
    conn_lose(c, a->reason);
}

static void
alloc_action(struct server *s, const struct core_action *a)
{
    if (worker_alloc(&s->worker, a->job, a->kind, a->device, a->size) < 0)
        core_alloc_done(s->core, a->job,
                        &(struct core_alloc_result){.error = -ENOMEM,
                                                    .text = "out of host memory",
                                                    .fd = -1});
}

static void
memory_action(struct server *s, const struct core_action *a)
{
    if (worker_memory(&s->worker, a->job, a->device) < 0)
        core_memory_done(s->core, a->job,
                         &(struct core_memory_result){.error = -ENOMEM,
                                                      .text = "out of host memory"},
                         1);
}

static void
page_done(struct server *s, uint64_t page, const struct core_page_result *result)
{
    if (result->error < 0)
        log_client(s, "no page of timelines could be made: %s", result->text);
    core_page_done(s->core, page, result);
}

static void on_pages_timer(uv_timer_t *timer);

static void
arm_pages_timer(struct server *s)
{
    uint64_t deadline = shared_pages_deadline_ns(&s->pages), now = clock_now_ns();

    if (deadline != UINT64_MAX && !uv_is_active((uv_handle_t *)&s->pages_timer))
        uv_timer_start(&s->pages_timer, on_pages_timer,
                       deadline > now ? (deadline - now) / NSEC_PER_MSEC + 1 : 0, 0);
}

static void
page_new_action(struct server *s, const struct core_action *a)
{
    struct core_page_result result;

    if (shared_page_new(&s->pages, a->page, a->size, &result) == KEPT_LATER)
        arm_pages_timer(s);
    else
        page_done(s, a->page, &result);
}

/* Sealing fails where the owner has added a seal that forbids further ones. */
static void
page_seal_action(struct server *s, const struct core_action *a)
{
    if (!shared_page_seal(&s->pages, a->page))
        log_client(s,
                   "page %" PRIu64
                   " of timelines cannot be sealed: others are told that it is dead",
                   a->page);
}

/* When the daemon stops, the owners of pages live on, and others still wait for what they signal:
 * pages are not killed then. */
static void
page_kill_action(struct server *s, const struct core_action *a)
{
    if (!s->leaving)
        shared_page_kill(&s->pages, a->page);
}

static void
page_free_action(struct server *s, const struct core_action *a)
{
    page_kill_action(s, a);
    shared_page_free(&s->pages, a->page);
}

/* The pidfd may not have been sent yet. A daemon that starts before it is finds the process by its
 * pid. */
static void
keep_action(struct server *s, const struct core_action *a)
{
    const struct conn *c = conns_find(&s->conns, a->conn);
    uint32_t kept = 0;

    if (kept_put(s->setup.kept, c->process->pidfd, &kept) < 0)
        kept = 0;
    c->process->is_kept = kept;
    core_process_kept(s->core, a->conn, kept);
}

static void
carry_out(struct server *s, const struct core_action *a)
{
    switch (a->type) {
    case CORE_SEND: send_action(s, a); break;
    case CORE_CLOSE: close_action(s, a); break;
    case CORE_ALLOC: alloc_action(s, a); break;
    case CORE_RELEASE: worker_release(&s->worker, a->job, a->handle); break;
    case CORE_MEMORY: memory_action(s, a); break;
    case CORE_KEEP: keep_action(s, a); break;
    case CORE_LET_GO: fd_close(kept_drop(s->setup.kept, a->kept)); break;
    case CORE_FORGET: conns_forget(&s->conns, a->conn); break;
    case CORE_PAGE_NEW: page_new_action(s, a); break;
    case CORE_PAGE_SEAL: page_seal_action(s, a); break;
    case CORE_PAGE_KILL: page_kill_action(s, a); break;
    case CORE_PAGE_FREE: page_free_action(s, a); break;
    case CORE_AUDIT:
        audit_log(&s->audit, uv_now(&s->loop), a->audit, "%s", a->audit->text);
        break;
    }
}

static void on_deadline(uv_timer_t *timer);
static void on_overdue(uv_idle_t *idle);
static void reload(struct server *s);

/* A deadline that has passed is for an idle handle: a timer that is set anew for the past, over and
 * over, would keep libuv from looking at its fds. */
static void
arm_deadline(struct server *s)
{
    uint64_t deadline = core_deadline_ns(s->core), now;

    if (deadline == s->deadline_ns)
        return;
    s->deadline_ns = deadline;
    uv_timer_stop(&s->deadline_timer);
    uv_idle_stop(&s->overdue);
    if (deadline == UINT64_MAX)
        return;
    now = deadline ? clock_now_ns() : 0;
    if (deadline <= now)
        uv_idle_start(&s->overdue, on_overdue);
    else
        uv_timer_start(&s->deadline_timer, on_deadline, (deadline - now) / NSEC_PER_MSEC + 1,
                       0);
}

static void server_leave(struct server *s, int status);

/* Ends the process. What is not restored yet stays for the next daemon. */
static void
server_give_up(struct server *s)
{
    kept_stop(s->setup.kept);
    server_leave(s, EXIT_FAILURE);
}

/* After a restart, until all is back: lets requests go on whose pool is back. */
static void
look_who_waits(struct server *s)
{
    bool was_whole = s->conns.admits_all;

    s->conns.admits_all = core_is_whole(s->core);
    if (was_whole)
        return;
    if (s->conns.admits_all || core_admits_more(s->core))
        conns_unstall(&s->conns);
    if (s->conns.admits_all)
        reload(s);
}

/* Called after every event. An action may end a connection, which is an event itself: then the call
 * that is already running carries out the actions that follow. */
static void
run_core(struct server *s)
{
    struct core_action a;

    if (s->carrying_out || !s->core)
        return;
    s->carrying_out = true;
    while (core_next(s->core, &a))
        carry_out(s, &a);
    s->carrying_out = false;
    if (restart_look(&s->restart, s->core) < 0)
        server_give_up(s);
    look_who_waits(s);
    arm_deadline(s);
    boot_timer_set(&s->expiry_timer, core_expiry_ns(s->core));
    trim_look(&s->trim, core_objects(s->core));
    spin_look(&s->spin, s->core);
    if (s->stopping && core_jobs(s->core) == 0)
        s->over = true;
}

/* ---- events ---- */

static void
tick(struct server *s)
{
    s->deadline_ns =
        UINT64_MAX; /* the timer is off: arm_deadline() sets it, even for that time */
    core_set_boottime(s->core, clock_boot_ns());
    core_tick(s->core, conns_charge(&s->conns, NULL));
    run_core(s);
}

static void
on_deadline(uv_timer_t *timer)
{
    tick(timer->data);
}

static void
on_expiry(void *userdata)
{
    tick(userdata);
}

/* Called in each turn of the loop. While arrays come back after a restart, half of the loop's time
 * is for them. */
static void
on_overdue(uv_idle_t *idle)
{
    struct server *s = idle->data;
    uint64_t until_ns = clock_now_ns() + RESTORE_NS + min_u64(s->conns.heard_ns, NSEC_PER_MSEC);

    uv_idle_stop(idle);
    do
        tick(s);
    while (!s->conns.admits_all && clock_now_ns() < until_ns);
}

static void
on_figures(void *userdata, struct core_figures *ret)
{
    struct server *s = userdata;

    ret->dying = shared_pages_are_dying(&s->pages);
    ret->turn_cpu_ns = s->conns.laps.cpu_ns;
    ret->turn_wall_ns = s->conns.laps.wall_ns;
    ret->turns = s->conns.laps.n;
    ret->n_turns = LAPS_N;
    ret->turn_sum_ns = s->conns.laps.sum_ns;
    restart_figures(&s->restart, ret);
}

static void
on_packet(void *userdata, struct conn *c, const void *packet, size_t n)
{
    struct server *s = userdata;

    if (c->refused) {
        char reason[OPENING_REASON_MAX] = "";
        if (c->refused == -EAGAIN)
            opening_reason(&s->opening, reason, sizeof(reason));
        refusals_answer(&s->refusals, c, reason, packet, n);
        return;
    }
    core_set_reply_max(s->core,
                       conns_is_greedy(&s->conns, c->owner) ? REPLY_BUSY : PROTO_PACKET_MAX);
    core_set_boottime(s->core, clock_boot_ns());
    core_receive(s->core, c->id, packet, n, s->conns.now_ns);
    run_core(s);
}

static bool
on_admits(void *userdata, struct conn *c, const void *packet, size_t n)
{
    struct server *s = userdata;

    return c->refused || core_admits(s->core, c->id, packet, n);
}

static void
set_time(struct server *s)
{
    core_set_time(s->core, clock_now_ns());
    core_set_boottime(s->core, clock_boot_ns());
}

static void
on_lost(void *userdata, struct conn *c, const char *reason)
{
    struct server *s = userdata;
    bool exit_matters = false;

    log_debug("connection of pid %d, uid %u: %s", (int)c->pid, (unsigned)c->uid, reason);
    if (c->refused) {
        refusals_remove(&s->refusals, c);
        conn_close(c);
        return;
    }
    set_time(s);
    if (c->exited)
        core_exited(s->core, c->id);
    else
        exit_matters = core_hangup(s->core, c->id);
    if (exit_matters)
        conn_depart(c);
    else
        conn_close(c);
    run_core(s);
}

static void
look_at_pages(struct server *s)
{
    struct core_page_result result;
    uint64_t page;

    if (!s->core)
        return;
    core_set_time(s->core, conns_charge(&s->conns, NULL));
    while (shared_pages_next(&s->pages, &page, &result))
        page_done(s, page, &result);
    arm_pages_timer(s);
    run_core(s);
}

static void
on_pages_timer(uv_timer_t *timer)
{
    look_at_pages(timer->data);
}

static void
on_keeper_spoke(uv_async_t *async)
{
    look_at_pages(async->data);
}

/* By the keeper's thread. */
static void
on_kept(void *userdata)
{
    uv_async_send(&((struct server *)userdata)->keeper_spoke);
}

/* A departed process has exited: the core frees the memory that waited for that. */
static void
on_departed(void *userdata, uint64_t conn_id)
{
    struct server *s = userdata;

    set_time(s);
    core_exited(s->core, conn_id);
    run_core(s);
}

static void
on_spent(void *userdata, uid_t uid, uint64_t ns)
{
    struct server *s = userdata;

    if (s->core)
        core_spent(s->core, uid, ns);
}

static const struct conns_ops conns_ops = {.packet = on_packet,
                                           .admits = on_admits,
                                           .lost = on_lost,
                                           .departed = on_departed,
                                           .spent = on_spent};

static void
on_alloc_done(void *userdata, uint64_t job, const struct core_alloc_result *result)
{
    struct server *s = userdata;

    core_set_time(s->core, conns_charge(&s->conns, NULL));
    core_alloc_done(s->core, job, result);
    run_core(s);
}

static void
on_release_done(void *userdata, uint64_t job, int error, int cuda, const char *text)
{
    struct server *s = userdata;

    if (error < 0 && log_admits(&s->about_blocks, uv_now(&s->loop), LOG_MAX_BLOCKS, "blocks"))
        log_error("a block is written off, since the driver failed to take it back: %s", text);
    core_set_time(s->core, conns_charge(&s->conns, NULL));
    core_release_done(s->core, job, error, cuda, text);
    run_core(s);
}

static void
on_memory_done(void *userdata, uint64_t job, const struct core_memory_result *results, size_t n)
{
    struct server *s = userdata;

    core_set_time(s->core, conns_charge(&s->conns, NULL));
    core_memory_done(s->core, job, results, n);
    run_core(s);
}

static const struct worker_ops worker_ops = {
    .alloc_done = on_alloc_done,
    .release_done = on_release_done,
    .memory_done = on_memory_done,
};

/* ---- new connections ---- */

static bool
is_refusal(int r)
{
    return r == -EDQUOT || r == -EMFILE || r == -EAGAIN || r == -ENOTSUP;
}

static int
connect_core(struct server *s, uint64_t id, const struct peer *p)
{
    struct core_peer peer = {.uid = p->uid,
                             .gid = p->gid,
                             .pid = p->pid,
                             .groups = p->groups,
                             .n_groups = p->n_groups};
    ssize_t n UNUSED =
        getrandom(peer.token, sizeof(peer.token), 0); /* whole, up to 256 bytes */
    int r = p->pidfd < 0 ? p->pidfd
            : s->core    ? core_connect(s->core, id, &peer, clock_now_ns())
                         : -EAGAIN;

    if (r == -ENOTSUP)
        audit_client(s, AUDIT_CLIENT, p,
                     "is refused: it is in another pid namespace, " NEEDS_PEERPIDFD);
    if (r == -EDQUOT)
        audit_client(s, AUDIT_LIMIT, p,
                     "is refused: the uid has %u connections, as many as it may",
                     s->setup.config->limits.connections);
    if (r == -EMFILE)
        audit_client(s, AUDIT_LIMIT, p,
                     "is refused: the uid has its share of file descriptors");
    return r;
}

/* Watches a connection that the core knows, or has refused. */
static int
add_conn(struct server *s, uint64_t id, int sock_consume, struct peer *peer, int refused)
{
    struct conn *c;
    int r = conn_new(&s->conns, id, sock_consume, peer, &c);

    if (r < 0 && !refused)
        core_exited(s->core, id);
    if (r < 0 || !refused)
        return r;
    c->refused = refused;
    refusals_add(&s->refusals, c);
    return 0;
}

static int
take_up(struct server *s, int sock_consume)
{
    _cleanup_fd_ int sock = sock_consume;
    _cleanup_(peer_deinit) struct peer peer = {.pidfd = -1};
    uint64_t id = conns_next_id(&s->conns, sock);
    int r = peer_init(&peer, sock);

    if (r < 0)
        return r;
    r = connect_core(s, id, &peer);
    if (r < 0 && !is_refusal(r)) /* -ESRCH: has exited already */
        return r;
    return add_conn(s, id, TAKE_FD(sock), &peer, r);
}

static void
on_arrival(void *userdata, int sock_consume)
{
    struct server *s = userdata;
    int r = take_up(s, sock_consume);

    if (r == -E2BIG)
        log_client(s, "a process with more than %d groups is refused", PEER_GROUPS_MAX);
    else if (r < 0)
        log_debug("a connection was not taken up: %s", strerror(-r));
    run_core(s);
}

static void
on_listen_failed(void *userdata)
{
    server_leave(userdata, EXIT_FAILURE);
}

static const struct arrivals_ops arrivals_ops = {.take_up = on_arrival,
                                                 .failed = on_listen_failed};

/* ---- stop ---- */

/* Does not wait for the thread that opens the driver: it may hang there. */
static void
server_leave(struct server *s, int status)
{
    listener_deinit(s->setup.listener);
    _exit(status);
}

static void
on_stop_timer(uv_timer_t *timer)
{
    struct server *s = timer->data;

    log_error("driver calls are still under way after %d s: left to the kernel",
              STOP_MS / 1000);
    server_leave(s, EXIT_FAILURE);
}

static void
stop(struct server *s, const char *why)
{
    log_info("%s: stopping", why);
    s->presence = fd_close(s->presence); /* clients see it, and do not start another daemon */
    if (!s->core || !core_is_whole(s->core)) {
        kept_stop(s->setup.kept);
        server_leave(s, s->r < 0 ? EXIT_FAILURE : EXIT_SUCCESS);
    }
    service_tell(&s->service, "STOPPING=1\nSTATUS=Stopping");
    arrivals_stop(&s->arrivals);
    uv_timer_start(&s->stop_timer, on_stop_timer, STOP_MS, 0);
    core_stop(s->core);
    restart_stop(&s->restart, s->core); /* the ends that follow are not recorded */
    conns_lose_exited(&s->conns); /* nobody will signal in their pages, so these are killed */
    while (core_deadline_ns(s->core) == 0)
        tick(s);
    s->leaving = true;
    conns_lose_all(&s->conns, "the daemon stops");
    conns_drop_all_departed(&s->conns);
    worker_stop(&s->worker);
    s->stopping = true; /* from here on the loop ends when no driver call is under way */
    run_core(s);
}

static void
on_signal(uv_signal_t *handle, int signum)
{
    struct server *s = handle->data;

    if (s->stopping)
        server_leave(s, EXIT_FAILURE);
    stop(s, strsignal(signum));
}

static void
on_stop_fd(uv_poll_t *handle, int status UNUSED, int events UNUSED)
{
    struct server *s = handle->data;

    uv_poll_stop(handle);
    if (!s->stopping)
        stop(s, "--stop-fd");
}

/* ---- settings ---- */

/* Applies the settings that are not the core's. */
static void
apply_config(struct server *s)
{
    const struct config *c = s->setup.config;

    s->arrivals.max_of_uid = (uint64_t)c->limits.connections + REFUSALS_MAX;
    s->refusals.max_of_uid = c->limits.connections;
    s->refusals.timeout_ms = c->hello_timeout_ns / NSEC_PER_MSEC;
    spin_set_limit(&s->spin, c->spin_us * NSEC_PER_USEC);
    if (!s->setup.keeps_log_level)
        log_set_level((enum log_level)c->log_level);
}

static void
on_reloaded(void *userdata, int error)
{
    struct server *s = userdata;

    if (error == 0)
        apply_config(s);
    run_core(s);
    if (s->stopping)
        return;
    service_tell(&s->service, error < 0 ? "READY=1\nSTATUS=Serving; the last reload has failed"
                                        : "READY=1\nSTATUS=Serving");
    reload(s);
}

/* Starts the reload that is wanted, if it is possible now. */
static void
reload(struct server *s)
{
    char state[64];

    if (!s->wants_reload || !s->core || !core_is_whole(s->core) || s->reload.running ||
        s->stopping)
        return;
    s->wants_reload = false;
    snprintf(state, sizeof(state), "RELOADING=1\nMONOTONIC_USEC=%" PRIu64,
             clock_now_ns() / NSEC_PER_USEC);
    service_tell(&s->service, state);
    s->reload.core = s->core;
    s->reload.all_pages = s->pages.max;
    s->reload.all_fds = fds_shared();
    if (reload_start(&s->reload, &s->loop) < 0)
        on_reloaded(s, -EAGAIN);
}

static void
on_sighup(uv_signal_t *handle, int signum UNUSED)
{
    struct server *s = handle->data;

    s->wants_reload = true;
    reload(s);
}

/* ---- life ---- */

static void
on_libuv(struct poll_source *source, uint32_t events UNUSED)
{
    container_of(source, struct server, libuv)->uv_is_ready = true;
}

static int
init_stop_fd(struct server *s)
{
    int r = uv_poll_init(&s->loop, &s->stop_poll, s->setup.stop_fd);

    s->stop_poll.data = s;
    if (r == 0)
        r = uv_poll_start(&s->stop_poll, UV_READABLE | UV_DISCONNECT, on_stop_fd);
    return r;
}

static int
init_handles(struct server *s)
{
    uv_timer_t *timers[] = {&s->deadline_timer, &s->stop_timer, &s->grace_timer,
                            &s->pages_timer};
    uv_signal_t *signals[] = {&s->sigterm, &s->sigint, &s->sighup};
    int r;

    for (size_t i = 0; i < ARRAY_SIZE(timers); i++) {
        uv_timer_init(&s->loop, timers[i]);
        timers[i]->data = s;
    }
    for (size_t i = 0; i < ARRAY_SIZE(signals); i++) {
        r = uv_signal_init(&s->loop, signals[i]);
        if (r < 0)
            return r;
        signals[i]->data = s;
    }
    r = uv_async_init(&s->loop, &s->keeper_spoke, on_keeper_spoke);
    if (r < 0)
        return r;
    s->keeper_spoke.data = s;
    kept_listen(s->setup.kept, on_kept, s);
    uv_idle_init(&s->loop, &s->overdue);
    s->overdue.data = s;
    s->libuv = (struct poll_source){.ready = on_libuv, .events = EPOLLIN};
    return pollset_add(&s->conns.pollset, &s->libuv, uv_backend_fd(&s->loop));
}

int
server_new(struct server **ret, const struct server_setup *setup)
{
    struct server *s = calloc(1, sizeof(*s));
    int r;

    if (!s)
        return -ENOMEM;
    s->setup = *setup;
    s->deadline_ns = UINT64_MAX;
    s->pages.dead = s->expiry_timer.fd = s->presence = -1;
    restart_init(&s->restart, setup->kept);
    if (presence_take(setup->listener->path, &s->presence) < 0)
        log_debug("%s: its folder cannot be locked", setup->listener->path);
    s->reload = (struct reload){
        .path = setup->config_path,
        .config = setup->config,
        .done = on_reloaded,
        .userdata = s,
    };
    r = uv_loop_init(&s->loop);
    if (r < 0) {
        log_error("cannot start: %s", strerror(-r));
        fd_close(s->presence);
        free(s);
        return r;
    }
    /* Fds in flight: a quarter of the kernel's limit, which the user's other processes share; and
     * as many in queues. */
    r = conns_init(&s->conns, &s->loop, fds_max() / 4, &conns_ops, s);
    arrivals_init(&s->arrivals, &s->loop, setup->listener, &s->conns, &arrivals_ops, s);
    service_init(&s->service, &s->loop, setup->notify);
    refusals_init(&s->refusals, &s->loop);
    trim_init(&s->trim, &s->loop);
    spin_init(&s->spin, &s->loop);
    apply_config(s);
    if (r == 0)
        r = shared_pages_init(&s->pages, setup->kept, fds_max());
    if (r == 0)
        r = init_handles(s);
    if (r == 0)
        r = boot_timer_init(&s->expiry_timer, &s->loop, on_expiry, s);
    if (r == 0 && setup->stop_fd >= 0)
        r = init_stop_fd(s);
    if (r < 0) {
        log_error("cannot start: %s", strerror(-r));
        server_free(s);
        return r;
    }
    *ret = s;
    return 0;
}

static void
start_signals(struct server *s)
{
    sigset_t set;

    uv_signal_start(&s->sighup, on_sighup, SIGHUP);
    uv_signal_start(&s->sigterm, on_signal, SIGTERM);
    uv_signal_start(&s->sigint, on_signal, SIGINT);
    sigemptyset(&set);
    sigaddset(&set, SIGHUP);
    sigaddset(&set, SIGTERM);
    sigaddset(&set, SIGINT);
    pthread_sigmask(SIG_UNBLOCK, &set, NULL);
}

/* Makes the core and what works with it, when the driver is open. */
static int
make_core(struct server *s)
{
    const struct server_setup *setup = &s->setup;
    int r = worker_init(&s->worker, &s->loop, setup->gpu, setup->kept, &worker_ops, s);

    if (r == 0)
        r = core_setup(&s->core, setup->config, setup->gpu, s->restart.id, s->pages.max,
                       fds_shared());
    if (r == 0) {
        core_set_figures(s->core, on_figures, s);
        core_set_boottime(s->core, clock_boot_ns());
        r = restart_take(&s->restart, s->core, &s->worker, &s->conns, &s->pages);
    }
    if (r < 0)
        log_error("cannot start: %s", strerror(-r));
    else
        r = fds_check(setup->listener->fd); /* the start has opened all its fds by now */
    if (r == 0)
        r = arrivals_listen(&s->arrivals);
    if (r < 0 && s->core)
        core_drop_journal(s->core);
    if (r < 0)
        kept_stop(setup->kept); /* the next daemon takes over what this one has taken */
    return r;
}

static void
serve(struct server *s)
{
    if (s->setup.ready_fd >= 0)
        detach_ready(s->setup.ready_fd);
    uv_timer_stop(&s->grace_timer);
    service_watch(&s->service);
    log_info("serving on %s", s->setup.listener->path);
    service_tell(&s->service, "READY=1\nSTATUS=Serving");
    run_core(s); /* starts to restore what is to come back */
    reload(s);
}

static void
tell_not_serving(struct server *s, const char *state)
{
    char reason[OPENING_REASON_MAX], status[OPENING_REASON_MAX + 64];

    opening_reason(&s->opening, reason, sizeof(reason));
    snprintf(status, sizeof(status), "%sSTATUS=Not serving yet: %s", state, reason);
    service_tell(&s->service, status);
}

/* What starts the service, or waits for it, is not held up by a machine without a GPU. The
 * manager's watchdog begins with READY=1. */
static void
on_grace(uv_timer_t *timer)
{
    struct server *s = timer->data;

    service_watch(&s->service);
    tell_not_serving(s, "READY=1\n");
}

static void
on_opening(void *userdata)
{
    struct server *s = userdata;
    int r = opening_end(&s->opening);

    if (r > 0) { /* from now on clients are refused, with the reason */
        if (!notify_is_pending(s->setup.notify)) /* READY=1 finds room */
            tell_not_serving(s, "");
        if (arrivals_listen(&s->arrivals) < 0)
            server_leave(s, EXIT_FAILURE);
        return;
    }
    if (r == 0)
        r = make_core(s);
    s->r = r;
    s->over = r < 0;
    if (r == 0)
        serve(s);
}

/* A turn serves clients first, then new connections, then libuv, if its fd has had an event or its
 * timeout is 0. */
static void
server_loop(struct server *s)
{
    uv_run(&s->loop, UV_RUN_NOWAIT); /* adds libuv's fds to its own set */
    while (!s->over) {
        uv_update_time(&s->loop);
        int timeout_ms = uv_backend_timeout(&s->loop);
        conns_turn(&s->conns, timeout_ms);
        arrivals_accept(&s->arrivals);
        if (!s->uv_is_ready && timeout_ms != 0)
            continue;
        s->uv_is_ready = false;
        uv_run(&s->loop, UV_RUN_NOWAIT);
    }
}

int
server_run(struct server *s)
{
    const struct server_setup *setup = &s->setup;

    start_signals(s);
    s->opening = (struct opening){
        .driver = setup->driver,
        .handoff = setup->config->start.handoff,
        .rdma = setup->config->start.rdma,
        .retries = setup->notify->fd >= 0 && strcmp(setup->driver, "cuda") == 0,
        .gpu = setup->gpu,
        .changed = on_opening,
        .userdata = s,
    };
    s->r = opening_start(&s->opening, &s->loop);
    if (s->r < 0)
        return s->r;
    s->r =
        restart_open(&s->restart); /* while the driver opens: a large journal takes as long */
    if (s->r == 0)
        s->r = kept_start(setup->kept);
    if (s->r < 0)
        server_leave(s, EXIT_FAILURE);
    arrivals_listen_after(&s->arrivals, GRACE_MS);
    uv_timer_start(&s->grace_timer, on_grace, GRACE_MS, 0);
    server_loop(s);
    return s->r;
}

static void
close_handle(uv_handle_t *handle, void *userdata UNUSED)
{
    if (!uv_is_closing(handle))
        uv_close(handle, NULL);
}

struct server *
server_free(struct server *s)
{
    if (!s)
        return NULL;
    kept_listen(s->setup.kept, NULL, NULL);
    reload_deinit(&s->reload);
    arrivals_stop(&s->arrivals);
    audit_end(&s->audit);
    conns_lose_all(&s->conns, "the daemon does not start");
    uv_walk(&s->loop, close_handle, NULL);
    uv_run(&s->loop, UV_RUN_DEFAULT);
    uv_loop_close(&s->loop);
    boot_timer_deinit(&s->expiry_timer);
    worker_deinit(&s->worker);
    conns_deinit(&s->conns);
    core_free(s->core);
    shared_pages_deinit(&s->pages);
    restart_close(&s->restart);
    fd_close(s->presence);
    free(s);
    return NULL;
}
