/* SPDX-License-Identifier: Apache-2.0 */
#include "attacks.h"

#include <err.h>
#include <poll.h>
#include <signal.h>
#include <stdio.h>
#include <string.h>
#include <sys/epoll.h>
#include <sys/wait.h>

#include "base/packet.h"

#define N_NAMES 1024

static bool
goes_on(const struct attack_setup *setup)
{
    struct pollfd p = {.fd = setup->stop, .events = POLLIN};

    return poll(&p, 1, 0) == 0;
}

static void
begin(const struct attack_setup *setup)
{
    if (write(setup->ready, "", 1) != 1)
        err(1, "pipe");
}

static void
wait_for_stop(const struct attack_setup *setup)
{
    poll(&(struct pollfd){.fd = setup->stop, .events = POLLIN}, 1, -1);
}

/* ---- arrays to ask for ---- */

/* Of one byte; "pinned": with a block, and its fd, of its own. */
static void
create(struct wire *w, const char *name, const char *memory)
{
    const int64_t n = 1;
    const struct msg_create_params params = {.name = msg_str_opt(name),
                                             .memory = msg_str_opt(memory),
                                             .exclusive = memory != NULL,
                                             .typestr = MSG_STR("|u1"),
                                             .shape = {&n, 1}};

    wire_try(w, MSG_CREATE, &params, NULL); /* of an earlier process, it exists */
}

static const struct msg_str *
names(void)
{
    static char text[N_NAMES][8];
    static struct msg_str list[N_NAMES];

    for (int i = 0; i < N_NAMES; i++) {
        snprintf(text[i], sizeof(text[i]), "n%04d", i);
        list[i] = MSG_STR(text[i]);
    }
    return list;
}

static struct wire *
connect_many(const struct attack_setup *setup, unsigned int n)
{
    struct wire *wires = calloc(n, sizeof(*wires));

    if (!wires)
        err(1, "calloc");
    for (unsigned int i = 0; i < n; i++)
        wire_init(&wires[i], setup->socket);
    return wires;
}

static void
create_all(struct wire *w)
{
    const struct msg_str *list = names();

    for (int i = 0; i < N_NAMES; i++)
        create(w, list[i].p, NULL);
}

/* ---- requests on many connections, the next one when the last is answered ---- */

static void
ask_for_ever(const struct attack_setup *setup, enum msg_method method, const void *params)
{
    struct wire *wires = connect_many(setup, setup->n_conns);
    struct epoll_event events[64];
    int epoll = epoll_create1(EPOLL_CLOEXEC);

    for (unsigned int i = 0; i < setup->n_conns; i++) {
        struct epoll_event e = {.events = EPOLLIN, .data.ptr = &wires[i]};
        if (epoll_ctl(epoll, EPOLL_CTL_ADD, wires[i].sock, &e) < 0)
            err(1, "epoll_ctl");
        wire_send(&wires[i], method, params);
    }
    begin(setup);
    while (goes_on(setup)) {
        int n = epoll_wait(epoll, events, 64, 100);
        for (int i = 0; i < n; i++) {
            struct wire *w = events[i].data.ptr;
            if (wire_receive(w) == 0 || !wire_repeat(w))
                epoll_ctl(epoll, EPOLL_CTL_DEL, w->sock, NULL);
        }
    }
}

static void
list(const struct attack_setup *setup)
{
    struct wire w;

    wire_init(&w, setup->socket);
    create_all(&w);
    ask_for_ever(setup, MSG_LIST, &(struct msg_list_params){0});
}

static void
show(const struct attack_setup *setup)
{
    struct wire w;

    wire_init(&w, setup->socket);
    create_all(&w);
    ask_for_ever(setup, MSG_SHOW, &(struct msg_name_params){.name = names()[0]});
}

static void
open_many(struct wire *w)
{
    const struct msg_open_params params = {.names = {names(), N_NAMES}, .mode = MSG_STR("r")};
    uint64_t leases[N_NAMES];
    struct msg_arrays_result result;

    wire_call(w, MSG_OPEN, &params, &result);
    for (uint32_t i = 0; i < result.n_arrays; i++)
        leases[i] = result.arrays[i].lease;
    wire_send(w, MSG_CLOSE, &(struct msg_close_params){.leases = {leases, result.n_arrays}});
}

/* Opens and closes on connections in turn, by several processes. */
static void
open_and_close(const struct attack_setup *setup)
{
    struct wire *wires = connect_many(setup, setup->n_conns / 4);

    create_all(&wires[0]);
    begin(setup);
    for (unsigned int i = 0; goes_on(setup); i = (i + 1) % (setup->n_conns / 4))
        open_many(&wires[i]);
}

/* ---- much at once ---- */

/* A process that has opened very much, and exits: its leases end all at once. */
static void
hold_and_exit(const struct attack_setup *setup, unsigned int n_opens)
{
    struct msg_str same[N_NAMES];
    struct wire w;

    wire_init(&w, setup->socket);
    create(&w, "held", NULL);
    for (int i = 0; i < N_NAMES; i++)
        same[i] = MSG_STR("held");
    const struct msg_open_params params = {.names = {same, N_NAMES}, .mode = MSG_STR("r")};
    for (unsigned int i = 0; i < n_opens && goes_on(setup); i++)
        if (wire_try(&w, MSG_OPEN, &params, NULL) != 0)
            break;
}

static void
exits(const struct attack_setup *setup)
{
    begin(setup);
    while (goes_on(setup)) {
        pid_t child = fork();
        if (child == 0) {
            hold_and_exit(setup, 2 * setup->n_conns);
            _exit(0);
        }
        waitpid(child, NULL, 0);
    }
}

static uint64_t
open_one(struct wire *w, const char *name, const char *mode)
{
    const struct msg_str str = MSG_STR(name);
    const struct msg_open_params params = {.names = {&str, 1}, .mode = MSG_STR(mode)};
    struct msg_arrays_result result;

    wire_call(w, MSG_OPEN, &params, &result);
    return result.arrays[0].lease;
}

/* Readers wait for a writer, who lets all go at once. Each has an answer that nobody takes until
 * then. */
static void
readers(const struct attack_setup *setup)
{
    unsigned int n = 50 * setup->n_conns;
    struct wire w, *others = connect_many(setup, 64);
    uint64_t lease, leases[64];

    wire_init(&w, setup->socket);
    create(&w, "read", NULL);
    lease = open_one(&w, "read", "rw");
    for (int i = 0; i < 64; i++)
        leases[i] = open_one(&others[i], "read", "r");
    begin(setup);
    for (uint64_t round = 1; goes_on(setup); round++) {
        wire_call(&w, MSG_BEGIN,
                  &(struct msg_begin_params){.bracket = round, .write = {&lease, 1}}, NULL);
        for (unsigned int i = 0; i < n; i++)
            wire_send(&others[i % 64], MSG_BEGIN,
                      &(struct msg_begin_params){.bracket = round * n + i,
                                                 .read = {&leases[i % 64], 1}});
        wire_send(&w, MSG_END, &(struct msg_end_params){.bracket = round});
        for (unsigned int i = 0; i < n; i++)
            wire_receive(&others[i % 64]);
        for (unsigned int i = 0; i < n; i++)
            wire_send(&others[i % 64], MSG_END,
                      &(struct msg_end_params){.bracket = round * n + i});
    }
}

/* One name, and many who watch it. */
static void
watches(const struct attack_setup *setup)
{
    unsigned int n = 4 * setup->n_conns, n_wires = 64;
    struct wire w, *others = connect_many(setup, n_wires);
    struct msg_publish_result published = {0};
    uint64_t lease;

    wire_init(&w, setup->socket);
    create(&w, "watched", NULL);
    lease = open_one(&w, "watched", "rw");
    const struct msg_publish_params publish = {.lease = lease, .name = MSG_STR("watched")};
    wire_call(&w, MSG_PUBLISH, &publish, &published);
    begin(setup);
    while (goes_on(setup)) {
        const struct msg_watch_params watch = {.name = MSG_STR("watched"),
                                               .seen = published.generation};
        for (unsigned int i = 0; i < n; i++)
            wire_send(&others[i % n_wires], MSG_WATCH, &watch);
        wire_call(&w, MSG_PUBLISH, &publish, &published);
        for (unsigned int i = 0; i < n; i++)
            wire_receive(&others[i % n_wires]);
    }
}

/* ---- fds ---- */

/* Arrays in blocks of their own, whose fds nobody takes. */
static void
unread_fds(const struct attack_setup *setup)
{
    const struct msg_str *list = names();
    const struct msg_open_params params = {.names = {list, 200}, .mode = MSG_STR("r")};
    unsigned int n = setup->n_conns / 4;
    struct wire w, *wires;

    wire_init(&w, setup->socket);
    for (int i = 0; i < 200; i++)
        create(&w, list[i].p, "pinned");
    begin(setup);
    while (goes_on(setup)) {
        wires = connect_many(setup, n);
        for (unsigned int i = 0; i < n; i++)
            wire_send(&wires[i], MSG_OPEN, &params);
        poll(&(struct pollfd){.fd = setup->stop, .events = POLLIN}, 1, 3000);
        for (unsigned int i = 0; i < n; i++)
            wire_deinit(&wires[i]);
        free(wires);
    }
}

/* As many connections, and blocks with an fd each, as the daemon gives. */
static void
all_fds(const struct attack_setup *setup)
{
    struct wire *wires = connect_many(setup, setup->n_conns);

    for (unsigned int i = 0; i < 4 * setup->n_conns; i++)
        create(&wires[0], NULL, "pinned");
    begin(setup);
    wait_for_stop(setup);
}

/* ---- coming and going ---- */

static void
connects(const struct attack_setup *setup)
{
    begin(setup);
    while (goes_on(setup)) {
        struct wire w;
        wire_init(&w, setup->socket);
        wire_deinit(&w);
    }
}

/* Without a word. */
static void
knocks(const struct attack_setup *setup)
{
    begin(setup);
    while (goes_on(setup)) {
        int sock;
        if (packet_connect(setup->socket, &sock) == 0)
            fd_close(sock);
    }
}

/* The same, but each stays for a while. */
static void
queue_up(const struct attack_setup *setup)
{
    unsigned int n = setup->n_conns / 4 + 1;
    int *socks = calloc(n, sizeof(*socks));

    if (!socks)
        err(1, "calloc");
    memset(socks, -1, n * sizeof(*socks));
    begin(setup);
    for (unsigned int i = 0; goes_on(setup); i = (i + 1) % n) {
        fd_close(socks[i]);
        if (packet_connect(setup->socket, &socks[i]) < 0)
            socks[i] = -1;
    }
}

/* Creates that need the driver, by processes that do not wait for them. */
static void
orphans(const struct attack_setup *setup)
{
    const int64_t n = 1;
    const struct msg_create_params params = {.typestr = MSG_STR("|u1"),
                                             .shape = {&n, 1},
                                             .exclusive = true};

    begin(setup);
    while (goes_on(setup)) {
        struct wire *wires = connect_many(setup, 64);
        for (unsigned int i = 0; i < 2000; i++)
            wire_send(&wires[i % 64], MSG_CREATE, &params);
        for (int i = 0; i < 64; i++)
            wire_deinit(&wires[i]);
        free(wires);
    }
}

const struct attack attacks[] = {
    {"list", "lists of 1,024 names on all its connections", list, 1},
    {"show", "small requests on all its connections", show, 1},
    {"open", "opens and closes of 1,024 names", open_and_close, 4},
    {"exit", "processes that hold very many leases, and exit", exits, 1},
    {"readers", "tens of thousands of readers behind a writer", readers, 1},
    {"watches", "thousands who watch a name that is published", watches, 1},
    {"unread", "fds that nobody takes", unread_fds, 1},
    {"fds", "idle connections, and one-byte blocks", all_fds, 1},
    {"connect", "connections that come and go", connects, 4},
    {"knock", "connections that close without a word", knocks, 4},
    {"queue", "the same, each for a while", queue_up, 4},
    {"orphans", "creates of clients that go", orphans, 1},
};
const size_t n_attacks = ARRAY_SIZE(attacks);
