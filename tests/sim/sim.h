/* SPDX-License-Identifier: Apache-2.0 */
/*
 * Runs the daemon, all but its start, in a made-up world: this program defines the functions of
 * sockets, epoll(7), the driver and pages that the daemon calls, and the linker puts them in the
 * place of the system's (--wrap). Thousands of users fit in one process, no time passes while
 * nothing happens, and a seed decides what happens when: the same seed gives the same history.
 *
 *     world.c   time, chance, events
 *     file.c    fds, and sets of them
 *     keeper.c  what outlives a daemon that is killed
 *     remote.c  connections as the daemon sees them
 *     loop.c    what libuv's loop looks at
 *     device.c  what is behind blocks
 *     users.c   who connects, and what they ask for
 *     versions.c  who publishes versions in turn, and reads them
 *     fair.c    who was served while somebody waited
 *
 * Time is work: a system call costs a microsecond, and a basic block of the daemon's code, which
 * the compiler counts (-fsanitize-coverage=trace-pc), 2 ns. So bounds of time are bounds of what is
 * done, and hold on any machine.
 *
 * A daemon that is killed ends within a system call: its fds are closed, its memory is left, and
 * another one starts in the same world. A history with that runs in a process of its own.
 */
#pragma once

#include <setjmp.h>
#include <stdbool.h>
#include <stdint.h>
#include <stdlib.h>
#include <sys/epoll.h>
#include <sys/queue.h>
#include <sys/types.h>

#include "base/clock.h"
#include "base/macros.h"
#include "base/tree.h"

/* Ends the process; what it prints names the seed. */
#define SIM_CHECK(condition, ...) ((condition) ? (void)0 : sim_fail(#condition, __VA_ARGS__))
_Noreturn void sim_fail(const char *condition, const char *fmt, ...) PRINTF(2, 3);

/* In the place of a function that is linked with --wrap. */
#define WRAPPED(ret, name, ...)     \
    ret __wrap_##name(__VA_ARGS__); \
    ret __wrap_##name(__VA_ARGS__)

/* ---- world.c ---- */

struct event { /* something that happens outside of the daemon */
    RB_ENTRY(event) node;
    uint64_t at_ns; /* 0: none is to come */
    uint64_t serial;
    void (*run)(struct event *event);
};

struct world {
    uint64_t seed, random, hash;
    uint64_t now_ns;
    uint64_t blocks; /* that were run and are not in now_ns yet */
    jmp_buf *life;   /* of a daemon that may be killed: where its end leads */
    bool is_killed;  /* it ends in its next system call */
};

extern struct world world;

void world_init(uint64_t seed);
/* Instead of when it was to be before. */
void event_in(struct event *event, uint64_t ns);
void event_cancel(struct event *event);
/* UINT64_MAX: there is none. */
uint64_t event_next_ns(void);
uint64_t world_now_ns(void);
/* Of a system call. */
void world_spend(size_t n_bytes);
/* Has time pass, and events happen, until then. */
void world_sleep(uint64_t until_ns);
uint64_t sim_random(uint64_t below);
bool sim_chance(uint32_t percent);
/* Something has happened, which is a part of what the same seed does again. */
void sim_note(uint64_t what);

/* ---- users.c ---- */

#define USERS_UID 1000 /* of the first; the others follow */

TAILQ_HEAD(file_list, file);

enum kind {
    QUIET,  /* asks for little, reads the answer, thinks */
    GREEDY, /* asks for much, and for more before that is answered */
    STUCK,  /* asks, and does not read but seldom */
    DEAD,   /* connects, and that is all; or not even a hello */
    CHURN,  /* connects, and goes */
    N_KINDS_OF_USERS,
};

struct user {
    uid_t uid;
    enum kind kind;
    uint32_t favourite; /* request */
    uint32_t n_conns;
    uint32_t n_inflight;             /* fds that it was sent and has not received */
    uint32_t n_kept;                 /* of those, on connections that have ended */
    uint64_t n_heard;                /* packets */
    struct file_list ready;          /* of its files, those that something has come to */
    uint64_t spent_ns;               /* by the daemon for it */
    uint64_t *since_ns;              /* by it for each user, when this one began to wait */
    bool waits;                      /* something of it is ready */
    uint64_t generation;             /* of its versions, that it was told of */
    uint64_t *arrays;                /* of its own names, by place: that it was told of, or 0 */
    uint32_t n_hoard;                /* names that it makes beside, on its first connection */
    uint32_t n_hoarded, n_unhoarded; /* that it was told to be there; to have been taken away */
};

struct population {
    uint32_t n_users[N_KINDS_OF_USERS];
    uint32_t n_conns[N_KINDS_OF_USERS]; /* of each */
    uint32_t n_idle;                    /* of each quiet one, beside those */
    uint64_t think_ns;                  /* of the quiet, on average */
    bool only_open;                     /* is what they do */
    uint64_t settling_ns;               /* until all have connected; then answers are timed */
    bool publishes;                     /* each quiet one, on a connection more */
    bool outlives;                      /* they come back when the daemon has been killed */
    uint64_t wait_ns; /* at most, of the quiet for their own, while others' comes back */
    uint32_t n_hoard; /* names of the first greedy one */
};

struct remote;

void users_init(const struct population *p);
void users_deinit(void);
/* The daemon ends the connections. */
void users_expect_end(void);
/* All go; then each comes once more to take its names away. */
void users_leave(void);
/* The daemon has been killed: their connections have ended. */
void users_bereave(void);
/* Another one serves. */
void users_find_served(void);
/* The hoard is there. */
bool users_have_hoarded(void);
/* Answers to the quiet that came while not all was back. */
uint32_t users_answered_between(void);
/* From a request to its reply. */
uint64_t users_p99_ns(void);
/* The daemon has sent something, or closed. */
void users_wake(struct remote *remote);
/* For versions.c; method: enum msg_method. false: the socket takes no more. */
bool users_request(struct remote *remote, int method, const void *params);

/* ---- versions.c ---- */

struct msg;

void versions_new(struct remote *remote);
bool versions_ask(struct remote *remote);
/* false: it was refused something before all is made. */
bool versions_answered(struct remote *remote, struct msg *reply);
bool versions_are_made(const struct remote *remote);
/* Of a publisher, lease and array each, up to 8; and its 2 blocks. */
uint32_t versions_leases(const struct remote *remote, uint64_t *ret_leases,
                         uint64_t *ret_blocks);
/* A reader asks for the current one, and is answered. */
bool versions_open(struct remote *remote);
void versions_opened(const struct remote *reader, uint32_t error, uint64_t generation,
                     uint64_t array);

/* ---- remote.c ---- */

struct packet {
    STAILQ_ENTRY(packet) next;
    size_t n;
    uint32_t n_fds;
    uint64_t n_heard; /* of its user's, when it was the first to be heard; UINT64_MAX: is not */
    uint8_t data[];
};

STAILQ_HEAD(packets, packet);

/* A process, and its one connection; another one when the daemon has been killed. Freed when it has
 * exited and the daemon has closed its fds, and the keeper dropped them. */
struct remote {
    struct event act, exit;
    struct user *user;
    enum kind kind;
    pid_t pid;
    struct packets to_daemon, to_client;
    size_t n_to_daemon, n_to_client; /* bytes */
    int sock;                        /* the daemon's; -1: none */
    struct file_list pidfds;         /* the same */
    uint32_t n_kept;                 /* by the keeper */
    bool connected;                  /* and has not hung up */
    bool accepted, over, exited;     /* over: the daemon has ended it */
    bool shut;                       /* it keeps the socket for what is in flight there */
    uint32_t n_requests, n_asked;    /* for users.c: ever; without an answer */
    uint64_t lease, asked_ns;
    bool is_write; /* the lease */
    uint64_t array, block, token[2];
    uint64_t generation;       /* at least, of the version that it has asked for */
    bool reads;                /* its lease is on that */
    struct versions *versions; /* that it publishes, or NULL */
    bool hoards, asked_all;    /* the last request is about all that there is */
    bool killed, comes_back,
        is_half; /* the daemon was; it has a token to say; and nothing more */
    STAILQ_ENTRY(remote) backlog;
    LIST_ENTRY(remote) link;
};

struct remotes {
    int listener;
    STAILQ_HEAD(, remote) backlog;
    LIST_HEAD(, remote) all;
    uint32_t n_inflight, n_kept; /* of all users */
};

extern struct remotes remotes;

void remotes_init(void);
/* Nobody accepts any more. */
void remotes_deinit(void);
/* It acts so much later. */
struct remote *remote_new(struct user *user, enum kind kind, void (*act)(struct event *event),
                          uint64_t in_ns);
void remote_connect(struct remote *remote);
/* Its process exits so much later. */
void remote_hangup(struct remote *remote, uint64_t exit_ns);
/* false: there is no room now. */
bool remote_send(struct remote *remote, const void *data, size_t n);
/* The caller's to free; NULL: there is none. */
struct packet *remote_receive(struct remote *remote);
/* It has no connection any more, and gets another one. */
void remote_reconnect(struct remote *remote);
/* The keeper has got an fd of it, or dropped one. */
void remote_keep(struct remote *remote, int n);
/* What is ready of its socket: EPOLLIN and so on. */
uint32_t remote_events(const struct remote *remote);
/* The daemon has closed one of its fds. */
void remote_close(struct remote *remote, int fd);

/* ---- file.c ---- */

enum file_kind {
    FILE_NONE,
    FILE_SOCKET,
    FILE_PIDFD,
    FILE_LISTENER,
    FILE_LIBUV,
    FILE_KEEPER, /* a socket to it */
    FILE_MEMFD,
    FILE_OTHER
};

struct file {
    enum file_kind kind;
    struct remote *remote; /* of a socket, a pidfd */
    struct user *user;     /* of these */
    int memfd;             /* of FILE_MEMFD: the real one */
    bool watched;          /* by the set */
    struct epoll_event wanted;
    bool pending; /* in files.pending */
    bool listed;  /* in user->ready */
    TAILQ_ENTRY(file) link, of_user, of_process;
};

struct files {
    struct file *all;         /* by fd */
    struct file_list pending; /* to be told of */
    uint32_t max;             /* RLIMIT_NOFILE */
    uint32_t n;               /* that are open */
    uint32_t lowest;          /* below it there is no free one */
};

extern struct files files;

void files_init(uint32_t max);
/* The lowest fd that is free, from there on; -1: EMFILE. */
int file_new(enum file_kind kind, struct remote *remote, uint32_t from);
struct file *file_get(int fd);
void file_end_memfd(int memfd);
/* Those of a process that has been killed; what is listened on stays. */
void files_end(void);
/* What is ready. */
uint32_t file_events(struct file *file);
/* It may have become ready; something has been taken from it. */
void file_wake(int fd);
void file_look(int fd);
/* Its user waits for it, or does not. */
void file_list(int fd, bool waits);

/* ---- keeper.c ---- */

void keeper_init(void);
void keeper_deinit(void);
/* Fds that it has. */
uint32_t keeper_count(void);
void keeper_hear(const void *packet, const int *fds);
ssize_t keeper_answer(void *packet, int *ret_fds, size_t *ret_n_fds);

/* ---- loop.c ---- */

void loop_init(void (*came_round)(void));
/* It has been killed. */
void loop_end(void);
void loop_signal(int signum);
bool loop_is_ready(void);
/* For epoll_wait(2). */
void loop_sleeps(void);
void loop_wakes(void);
struct conns *loop_conns(void); /* the daemon's */
/* All is back after a restart. */
bool loop_is_whole(void);
uint32_t loop_holds(void); /* requests that had to wait for what was not back */

/* ---- device.c ---- */

extern uint64_t device_bytes; /* of blocks that are there */

/* ---- fair.c ---- */

void fair_init(struct user *users, uint32_t n_users);
/* Or to stop it. */
void fair_deinit(void);
/* From now on what is done is done for it; NULL: for nobody. */
void fair_serve(struct user *user);
/* Something of it is ready; and nothing is any more. */
void fair_wait(struct user *user);
void fair_rest(struct user *user);
/* The loop has called the daemon, which began then. */
void fair_call(const char *what, uint64_t began_ns);
