/* SPDX-License-Identifier: Apache-2.0 */
#include "attacks.h"

#include <err.h>
#include <poll.h>
#include <signal.h>
#include <stdio.h>
#include <string.h>
#include <sys/epoll.h>
#include <sys/mman.h>
#include <sys/wait.h>

#include "base/packet.h"
#include "timeline.h"

#define N_NAMES    1024
#define N_BRACKETS 8000 /* of one uid: somewhat below the default of its limit */
#define N_BATCH    16   /* requests on one connection whose answers are not taken yet */

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
    close(setup->ready);
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

static uint64_t
open_one(struct wire *w, const char *name, const char *mode)
{
    const struct msg_str str = MSG_STR(name);
    const struct msg_open_params params = {.names = {&str, 1}, .mode = MSG_STR(mode)};
    struct msg_arrays_result result;

    wire_call(w, MSG_OPEN, &params, &result);
    return result.arrays[0].lease;
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

/* go_on() takes the answer to what it has sent last, if anything, and sends more. */
static void
ask_for_ever(const struct attack_setup *setup, struct wire *wires,
             void (*go_on)(struct wire *w, bool first))
{
    struct epoll_event events[64];
    int epoll = epoll_create1(EPOLL_CLOEXEC);

    for (unsigned int i = 0; i < setup->n_conns; i++) {
        struct epoll_event e = {.events = EPOLLIN, .data.ptr = &wires[i]};
        if (epoll_ctl(epoll, EPOLL_CTL_ADD, wires[i].sock, &e) < 0)
            err(1, "epoll_ctl");
        go_on(&wires[i], true);
    }
    begin(setup);
    while (goes_on(setup)) {
        int n = epoll_wait(epoll, events, 64, 100);
        for (int i = 0; i < n; i++)
            go_on(events[i].data.ptr, false);
    }
}

static void
repeat(struct wire *w, enum msg_method method, const void *params, bool first)
{
    if (first)
        wire_send(w, method, params);
    else if (wire_receive(w) == 0 || !wire_repeat(w))
        errx(1, "%s: the daemon has ended the connection", msg_method_name(method));
}

static void
list_again(struct wire *w, bool first)
{
    repeat(w, MSG_LIST, &(struct msg_list_params){0}, first);
}

static void
list(const struct attack_setup *setup)
{
    struct wire *wires = connect_many(setup, setup->n_conns);

    create_all(&wires[0]);
    ask_for_ever(setup, wires, list_again);
}

static void
show_again(struct wire *w, bool first)
{
    repeat(w, MSG_SHOW, &(struct msg_name_params){.name = MSG_STR("n0000")}, first);
}

static void
show(const struct attack_setup *setup)
{
    struct wire *wires = connect_many(setup, setup->n_conns);

    create_all(&wires[0]);
    ask_for_ever(setup, wires, show_again);
}

static void
close_opened(struct wire *w)
{
    uint64_t leases[N_NAMES];
    struct msg_arrays_result result;

    if (wire_answer(w, MSG_OPEN, &result) != 0)
        errx(1, "open is refused");
    for (uint32_t i = 0; i < result.n_arrays; i++)
        leases[i] = result.arrays[i].lease;
    wire_send(w, MSG_CLOSE, &(struct msg_close_params){.leases = {leases, result.n_arrays}});
}

static void
open_again(struct wire *w, bool first)
{
    const struct msg_open_params params = {.names = {names(), N_NAMES}, .mode = MSG_STR("r")};

    if (!first)
        close_opened(w);
    wire_send(w, MSG_OPEN, &params);
}

static void
open_and_close(const struct attack_setup *setup)
{
    struct wire *wires = connect_many(setup, setup->n_conns);

    create_all(&wires[0]);
    ask_for_ever(setup, wires, open_again);
}

/* Each of the connections has some brackets open, and begins and ends one more. */
static void
begin_again(struct wire *w, bool first)
{
    const struct msg_begin_params again = {.bracket = 1, .read = {&w->lease, 1}};

    if (!first && wire_answer(w, MSG_BEGIN, NULL) == 0)
        wire_send(w, MSG_END, &(struct msg_end_params){.bracket = 1});
    wire_send(w, MSG_BEGIN, &again);
}

static void
beside(const struct attack_setup *setup)
{
    struct wire *wires = connect_many(setup, setup->n_conns);
    unsigned int each = N_BRACKETS / setup->n_conns;

    create(&wires[0], "read", NULL);
    for (unsigned int i = 0; i < setup->n_conns; i++) {
        wires[i].lease = open_one(&wires[i], "read", "r");
        for (uint64_t b = 2; b <= each; b++)
            wire_call(&wires[i], MSG_BEGIN,
                      &(struct msg_begin_params){.bracket = b, .read = {&wires[i].lease, 1}},
                      NULL);
    }
    ask_for_ever(setup, wires, begin_again);
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

/* Answers to requests that were sent in batches, the last one of n. */
static void
take_answers(struct wire *w, unsigned int i, unsigned int n)
{
    unsigned int batch = (i + 1) % N_BATCH;

    if (batch != 0 && i + 1 < n)
        return;
    for (unsigned int k = 0; k < (batch ? batch : N_BATCH); k++)
        wire_receive(w);
}

/* The same with as many arrays, each with as much to say as it may have. */
static void
create_and_exit(const struct attack_setup *setup)
{
    static char text[PROTO_METADATA_MAX];
    const int64_t n = 1;
    const unsigned int n_arrays = 20 * setup->n_conns;
    struct wire w;

    memset(text, 'x', sizeof(text));
    const struct msg_create_params params = {.typestr = MSG_STR("|u1"),
                                             .metadata = {text, sizeof(text)},
                                             .shape = {&n, 1}};
    wire_init(&w, setup->socket);
    for (unsigned int i = 0; i < n_arrays && goes_on(setup); i++) {
        wire_send(&w, MSG_CREATE, &params);
        take_answers(&w, i, n_arrays);
    }
}

static void
arrays(const struct attack_setup *setup)
{
    begin(setup);
    while (goes_on(setup)) {
        pid_t child = fork();
        if (child == 0) {
            create_and_exit(setup);
            _exit(0);
        }
        waitpid(child, NULL, 0);
    }
}

/* Readers wait for a writer, who lets all go at once. Each has an answer that nobody takes until
 * then. */
static void
readers(const struct attack_setup *setup)
{
    unsigned int n = N_BRACKETS;
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

/* A page of timelines, with a value submitted in each slot that never comes. */
static uint64_t
make_page(struct wire *w)
{
    struct msg_page_result result;
    int fd = wire_call_fd(w, MSG_PAGE, &(struct msg_page_params){}, &result);
    struct timeline_slot *slots =
        mmap(NULL, TIMELINE_PAGE_BYTES, PROT_READ | PROT_WRITE, MAP_SHARED, fd, 0);

    if (slots == MAP_FAILED)
        err(1, "a page");
    for (int i = 0; i < TIMELINE_SLOTS; i++)
        atomic_store(&slots[i].submitted, 1);
    munmap(slots, TIMELINE_PAGE_BYTES);
    close(fd);
    return result.pages[0].page;
}

/* A writer comes who has to wait for all that thousands of readers have left, over and over. */
static void
fences(const struct attack_setup *setup)
{
    const unsigned int n_pages = N_BRACKETS / TIMELINE_SLOTS / 2;
    struct msg_fences_result result;
    struct wire w;

    wire_init(&w, setup->socket);
    create(&w, "fenced", NULL);
    w.lease = open_one(&w, "fenced", "rw");
    const struct msg_begin_params reading = {.bracket = 1, .read = {&w.lease, 1}};
    for (unsigned int i = 0; i < n_pages; i++) {
        uint64_t page = make_page(&w);
        for (unsigned int slot = 0; slot < TIMELINE_SLOTS; slot++) {
            wire_call(&w, MSG_BEGIN, &reading, NULL);
            wire_send(&w, MSG_END,
                      &(struct msg_end_params){.bracket = 1,
                                               .page = page,
                                               .slot = slot,
                                               .value = 1});
        }
    }
    begin(setup);
    while (goes_on(setup)) {
        wire_call(&w, MSG_BEGIN,
                  &(struct msg_begin_params){.bracket = 1, .write = {&w.lease, 1}}, &result);
        while (result.more) {
            const struct msg_fence *last = &result.fences[result.n_fences - 1];
            const struct msg_fences_params more = {1, last->page, last->slot};
            wire_call(&w, MSG_FENCES, &more, &result);
        }
        wire_send(&w, MSG_END, &(struct msg_end_params){.bracket = 1, .undone = true});
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
        struct wire wires[64];
        unsigned int n_wires = 0;
        while (n_wires < 64 && wire_open(&wires[n_wires], setup->socket))
            n_wires++;
        for (unsigned int i = 0; i < 32 * n_wires; i++)
            wire_send(&wires[i % n_wires], MSG_CREATE, &params);
        for (unsigned int i = 0; i < n_wires; i++)
            wire_deinit(&wires[i]);
    }
}

const struct attack attacks[] = {
    {"list", "lists of 1,024 names on all its connections", list, 1, 0},
    {"show", "small requests on all of them", show, 1, 0},
    {"open", "opens and closes of 1,024 names on all of them", open_and_close, 1, 0},
    {"begin", "brackets beside 8,000 open ones on all of them", beside, 1, 0},
    {"exit", "processes that hold very many leases, and exit", exits, 1, 0},
    {"arrays", "the same with arrays and what they say", arrays, 1, 0},
    {"readers", "8,000 readers behind a writer", readers, 1, 0},
    {"fences", "a writer behind the fences of 4,000 readers", fences, 1, 0},
    {"watches", "thousands who watch a name that is published", watches, 1, 0},
    {"unread", "fds that nobody takes", unread_fds, 1, 0},
    {"fds", "idle connections, and one-byte blocks", all_fds, 1, 0},
    {"connect", "connections that come and go", connects, 4, 0},
    {"groups", "the same, of processes in 1,024 groups", connects, 4, 1024},
    {"knock", "connections that close without a word", knocks, 4, 0},
    {"queue", "the same, each for a while", queue_up, 4, 0},
    {"orphans", "creates of clients that go", orphans, 1, 0},
};
const size_t n_attacks = ARRAY_SIZE(attacks);
