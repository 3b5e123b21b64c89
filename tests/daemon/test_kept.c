/* SPDX-License-Identifier: Apache-2.0 */
/* The daemon's side of the keeper, against a keeper in a process of its own. */
#include <fcntl.h>
#include <poll.h>
#include <signal.h>
#include <stdio.h>
#include <sys/mman.h>
#include <sys/prctl.h>
#include <sys/socket.h>
#include <sys/stat.h>
#include <sys/un.h>
#include <sys/wait.h>
#include <unistd.h>

#include "base/clock.h"
#include "base/log.h"
#include "base/macros.h"
#include "caid_test.h"
#include "keep_wire.h"
#include "keeper.h"
#include "kept.h"
#include "timeline.h"

#define LONG_NS (60 * NSEC_PER_SEC)
#define N_MODEL 600
#define MAX_FD  1024

static char path[64];
static int listener = -1; /* ours: it is there while no keeper is */
static pid_t keeper_pid;

/* sock: -1, or of a daemon that it has; where nobody else may come, it is the only one. */
static _Noreturn void
keep(int sock, bool listens)
{
    struct pollfd polls[KEEPER_POLLS];
    struct keeper k;

    prctl(PR_SET_PDEATHSIG, SIGKILL);
    for (int fd = 3; fd < MAX_FD; fd++) /* the daemon's: it would be its own peer */
        if (fd != listener && fd != sock)
            close(fd);
    log_set_level(LOG_LEVEL_ERROR);
    if (keeper_init(&k, listens ? listener : -1) < 0)
        _exit(1);
    if (sock >= 0)
        keeper_adopt(&k, sock);
    for (;;)
        keeper_turn(&k, polls, KEEPER_POLLS, -1);
}

static void
start_keeper(void)
{
    keeper_pid = fork();
    if (keeper_pid == 0)
        keep(-1, true);
}

static void
kill_keeper(void)
{
    kill(keeper_pid, SIGKILL);
    waitpid(keeper_pid, NULL, 0);
}

/* It is: what is sent from then on is not read. */
static void
stop_keeper(void)
{
    kill(keeper_pid, SIGCONT); /* or nothing would change */
    kill(keeper_pid, SIGSTOP);
    waitpid(keeper_pid, NULL, WUNTRACED);
}

static void
begin(void)
{
    struct sockaddr_un address = {.sun_family = AF_UNIX};

    log_set_level(LOG_LEVEL_ERROR);
    snprintf(path, sizeof(path), "/tmp/caid-test-kept-%d", (int)getpid());
    strcpy(address.sun_path, path);
    listener = socket(AF_UNIX, SOCK_SEQPACKET | SOCK_NONBLOCK | SOCK_CLOEXEC, 0);
    cr_assert_eq(bind(listener, (struct sockaddr *)&address, sizeof(address)), 0);
    cr_assert_eq(listen(listener, 8), 0);
    start_keeper();
}

static void
end(void)
{
    kill_keeper();
    close(listener);
    unlink(path);
}

static void
open_kept(struct kept *k)
{
    cr_assert_eq(kept_init(k, path, -1), 0);
    cr_assert(kept_is_there(k));
}

static ino_t
inode(int fd)
{
    struct stat st;

    cr_assert_eq(fstat(fd, &st), 0);
    return st.st_ino;
}

static void
await_connection(struct kept *k, bool wanted)
{
    uint64_t until_ns = clock_now_ns() + LONG_NS;

    while (kept_is_there(k) != wanted) {
        clock_pause_ns(NSEC_PER_MSEC);
        cr_assert_lt(clock_now_ns(), until_ns);
    }
}

/* A daemon that goes, and one that comes. */
static void
succeed(struct kept *k)
{
    kept_deinit(k);
    open_kept(k);
}

CAID_TEST_BETWEEN(kept, what_was_put_is_found, begin(), end(), .timeout = 60)
{
    int fds[] = {memfd_create("a", 0), memfd_create("b", 0), memfd_create("c", 0)};
    uint32_t numbers[2];
    struct kept k;
    int found;

    open_kept(&k);
    cr_assert_eq(kept_put(&k, fds[0], &numbers[0]), 0);
    cr_assert_eq(kept_put(&k, fds[1], &numbers[1]), 0);
    cr_assert_neq(numbers[0], numbers[1]);
    cr_assert_neq(numbers[0], 0);
    cr_assert_eq(kept_set(&k, 0, fds[1]), 0);
    cr_assert_eq(kept_set(&k, 0, fds[2]), 0); /* in its place */
    kept_drop(&k, numbers[1]);

    succeed(&k);
    cr_assert_eq(kept_claim(&k, numbers[1]), -1);
    cr_assert_eq(kept_claim(&k, 70), -1);
    found = kept_claim(&k, 0);
    cr_assert_eq(inode(found), inode(fds[2]));
    cr_assert_eq(kept_claim(&k, 0), -1); /* it is ours */
    cr_assert_eq(kept_put(&k, fds[1], &numbers[1]), 0);
    cr_assert_neq(numbers[1], numbers[0]); /* which is there, found and not claimed */
    cr_assert_eq(kept_forget(&k), 1);
    close(found);

    succeed(&k);
    cr_assert_eq(kept_claim(&k, numbers[0]), -1);
    cr_assert_eq(kept_forget(&k), 2);
    kept_deinit(&k);
    for (size_t i = 0; i < ARRAY_SIZE(fds); i++)
        close(fds[i]);
}

CAID_TEST_BETWEEN(kept, a_keeper_that_dies_is_given_all, begin(), end(), .timeout = 60)
{
    int fds[] = {memfd_create("a", 0), memfd_create("b", 0), memfd_create("c", 0)};
    uint32_t numbers[3];
    struct kept k;
    int found;

    open_kept(&k);
    cr_assert_eq(kept_start(&k), 0);
    cr_assert_eq(kept_put(&k, fds[0], &numbers[0]), 0);
    cr_assert_eq(kept_put(&k, fds[1], &numbers[1]), 0);
    kill_keeper();
    await_connection(&k, false);
    cr_assert_eq(kept_put(&k, fds[2], &numbers[2]), KEPT_LATER);
    cr_assert_eq(kept_wait(&k, LONG_NS), -ENOTCONN);
    kept_drop(&k, numbers[0]);
    cr_assert_eq(kept_count(&k), 0);

    start_keeper();
    await_connection(&k, true);
    cr_assert_eq(kept_wait(&k, LONG_NS), 0);
    cr_assert_eq(kept_count(&k), 2);

    succeed(&k);
    cr_assert_eq(kept_claim(&k, numbers[0]), -1);
    found = kept_claim(&k, numbers[2]);
    cr_assert_eq(inode(found), inode(fds[2]));
    close(found);
    kept_deinit(&k);
    for (size_t i = 0; i < ARRAY_SIZE(fds); i++)
        close(fds[i]);
}

CAID_TEST_BETWEEN(kept, a_keeper_that_dies_is_given_what_nobody_has_claimed, begin(), end(),
                  .timeout = 60)
{
    int fd = memfd_create("a", MFD_CLOEXEC), found;
    uint32_t number;
    struct kept k;

    open_kept(&k);
    cr_assert_eq(kept_put(&k, fd, &number), 0);
    succeed(&k);
    cr_assert_eq(kept_start(&k), 0);
    kill_keeper();
    await_connection(&k, false);
    start_keeper();
    await_connection(&k, true);
    found = kept_claim(&k, number);
    cr_assert_eq(inode(found), inode(fd));
    cr_assert_eq(kept_wait(&k, LONG_NS), 0);
    close(found);

    succeed(&k);
    found = kept_claim(&k, number);
    cr_assert_eq(inode(found), inode(fd));
    close(found);
    kept_deinit(&k);
    close(fd);
}

static int
page_file(void)
{
    int fd = memfd_create("page", MFD_CLOEXEC | MFD_ALLOW_SEALING);

    cr_assert_eq(ftruncate(fd, TIMELINE_PAGE_BYTES), 0);
    return fd;
}

/* A page: it had been killed and dropped when that one's connection was lost, and what it was told
 * with it. */
CAID_TEST_BETWEEN(kept, a_number_is_free_once_also_where_a_keeper_has_it_still, begin(), end(),
                  .timeout = 60)
{
    struct keep_packet p = {.version = KEEP_VERSION, .type = KEEP_PUT, .n = 1};
    int pair[2], fd = page_file();
    struct timeline_slot *slots = mmap(NULL, TIMELINE_PAGE_BYTES, PROT_READ, MAP_SHARED, fd, 0);
    uint32_t numbers[2];
    struct kept k;

    open_kept(&k);
    cr_assert_eq(kept_start(&k), 0);
    cr_assert_eq(kept_put(&k, fd, &p.numbers[0]), 0);
    kept_drop(&k, p.numbers[0]);
    cr_assert_eq(kept_wait(&k, LONG_NS), 0);
    kill_keeper();
    await_connection(&k, false);
    cr_assert_eq(socketpair(AF_UNIX, SOCK_SEQPACKET | SOCK_CLOEXEC, 0, pair), 0);
    cr_assert_eq(keep_send(pair[0], &p, &fd), 0);
    p.type = KEEP_MAP;
    cr_assert_eq(keep_send(pair[0], &p, &fd), 0);
    keeper_pid = fork();
    if (keeper_pid == 0)
        keep(pair[1], true);
    close(pair[0]);
    close(pair[1]);
    await_connection(&k, true);
    cr_assert_eq(kept_wait(&k, LONG_NS), 0);
    cr_assert_eq(kept_put(&k, fd, &numbers[0]), 0);
    cr_assert_eq(kept_put(&k, fd, &numbers[1]), 0);
    cr_assert_neq(numbers[0], numbers[1]);
    succeed(&k);
    cr_assert(timeline_is_dead(&slots[TIMELINE_SLOTS - 1]));
    cr_assert_eq(kept_forget(&k), 2);
    kept_deinit(&k);
    munmap(slots, TIMELINE_PAGE_BYTES);
    close(fd);
}

CAID_TEST_BETWEEN(kept, a_page_is_killed_by_a_keeper_that_does_not_read_yet, begin(), end(),
                  .timeout = 60)
{
    int fd = memfd_create("page", MFD_CLOEXEC), r = 0;
    struct timeline_slot *slots;
    uint32_t page, number;
    struct kept k;

    cr_assert_eq(ftruncate(fd, TIMELINE_PAGE_BYTES), 0);
    slots = mmap(NULL, TIMELINE_PAGE_BYTES, PROT_READ, MAP_SHARED, fd, 0);
    open_kept(&k);
    cr_assert_eq(kept_put_page(&k, fd, fd, &page), 0);
    succeed(&k);
    cr_assert_eq(kept_start(&k), 0);
    stop_keeper();
    while (r == 0)
        r = kept_put(&k, STDERR_FILENO, &number);
    cr_assert_eq(r, KEPT_LATER);
    kept_kill_page(&k, page);
    close(kept_claim(&k, page));
    kept_drop(&k, page);
    kill(keeper_pid, SIGCONT);
    cr_assert_eq(kept_wait(&k, LONG_NS), 0);
    succeed(&k); /* who has its answer after that */
    for (int i = 0; i < TIMELINE_SLOTS; i++)
        cr_assert(timeline_is_dead(&slots[i]));
    cr_assert_eq(kept_found(&k, page), -1);
    kept_deinit(&k);
    munmap(slots, TIMELINE_PAGE_BYTES);
    close(fd);
}

static void
await_mapped(struct kept *k, uint32_t page, int wanted)
{
    uint64_t until_ns = clock_now_ns() + LONG_NS;
    int r;

    while ((r = kept_mapped(k, page)) == KEPT_LATER) {
        clock_pause_ns(NSEC_PER_MSEC);
        cr_assert_lt(clock_now_ns(), until_ns);
    }
    cr_assert_eq(r, wanted);
}

static void
count(void *userdata)
{
    atomic_fetch_add((_Atomic unsigned *)userdata, 1);
}

/* A late answer is not taken for that of another page, which has the number by then. The next
 * keeper maps what is not sealed. */
CAID_TEST_BETWEEN(kept, a_page_is_mapped_when_the_keeper_says_so, begin(), end(), .timeout = 60)
{
    int fds[] = {page_file(), page_file()};
    _Atomic unsigned n_told = 0;
    uint32_t page, other;
    struct kept k;

    open_kept(&k);
    kept_listen(&k, count, (void *)&n_told);
    cr_assert_eq(kept_start(&k), 0);
    stop_keeper();
    cr_assert_eq(kept_put_page(&k, fds[0], fds[0], &page), 0);
    cr_assert_eq(kept_mapped(&k, page), KEPT_LATER);
    kept_drop(&k, page);
    cr_assert_eq(fcntl(fds[1], F_ADD_SEALS, 0x10 /* F_SEAL_FUTURE_WRITE */), 0);
    cr_assert_eq(kept_put_page(&k, fds[1], fds[1], &other), 0);
    cr_assert_eq(other, page);
    cr_assert_eq(n_told, 0);
    kill(keeper_pid, SIGCONT);
    await_mapped(&k, page, -EPERM);
    cr_assert_eq(n_told, 2);
    cr_assert_eq(kept_put_page(&k, fds[0], fds[0], &page), 0);
    await_mapped(&k, page, 0);
    kill_keeper();
    await_connection(&k, false);
    await_mapped(&k, page, -ENOTCONN);
    kept_sealed(&k, other);
    start_keeper();
    await_connection(&k, true);
    await_mapped(&k, page, 0);
    kept_listen(&k, NULL, NULL);
    kept_deinit(&k);
    for (size_t i = 0; i < ARRAY_SIZE(fds); i++)
        close(fds[i]);
}

/* As the page of a daemon that has died before it sealed it. */
CAID_TEST_BETWEEN(kept, a_page_that_was_found_is_mapped_by_the_next_keeper, begin(), end(),
                  .timeout = 60)
{
    int fd = page_file(), found;
    uint32_t page;
    struct kept k;

    open_kept(&k);
    cr_assert_eq(kept_put_page(&k, fd, fd, &page), 0);
    succeed(&k);
    cr_assert_eq(kept_start(&k), 0);
    found = kept_claim_page(&k, page, fd);
    cr_assert_eq(inode(found), inode(fd));
    cr_assert_eq(kept_claim_page(&k, page, fd), -1);
    await_mapped(&k, page, 0);
    kill_keeper();
    await_connection(&k, false);
    start_keeper();
    await_connection(&k, true);
    await_mapped(&k, page, 0);
    kept_deinit(&k);
    close(found);
    close(fd);
}

CAID_TEST_BETWEEN(kept, a_keeper_that_is_coming_back_is_given_all_before_the_end, begin(),
                  end(), .timeout = 60)
{
    enum {
        N = 600 /* more than a packet */
    };

    uint32_t number;
    struct kept k;

    open_kept(&k);
    cr_assert_eq(kept_start(&k), 0);
    for (int i = 0; i < N; i++)
        cr_assert_geq(kept_put(&k, STDERR_FILENO, &number), 0);
    kill_keeper();
    await_connection(&k, false);
    keeper_pid = fork();
    if (keeper_pid == 0) {
        clock_pause_ns(200 * NSEC_PER_MSEC);
        keep(-1, true);
    }
    kept_stop(&k);
    succeed(&k);
    cr_assert_eq(kept_forget(&k), N);
    kept_deinit(&k);
}

CAID_TEST_BETWEEN(kept, a_keeper_that_does_not_read_is_waited_for, begin(), end(),
                  .timeout = 60)
{
    enum {
        N = 3000 /* packets; the socket has room for some hundred */
    };

    uint32_t number;
    int r = 0, n = 0;
    struct kept k;

    open_kept(&k);
    cr_assert_eq(kept_start(&k), 0);
    stop_keeper();
    for (; r == 0 && n < N; n++)
        r = kept_put(&k, STDERR_FILENO, &number);
    cr_assert_eq(r, KEPT_LATER);
    cr_assert_eq(kept_wait(&k, NSEC_PER_MSEC), -ETIMEDOUT);
    cr_assert_eq(kept_wait(&k, 100 * LONG_NS), -ETIMEDOUT); /* at once: nothing has changed */
    kept_drop(&k, number);
    cr_assert_eq(kept_put(&k, STDERR_FILENO, &number), KEPT_LATER);
    kill(keeper_pid, SIGCONT);
    while ((r = kept_wait(&k, LONG_NS)) == -ETIMEDOUT)
        clock_pause_ns(NSEC_PER_MSEC);
    cr_assert_eq(r, 0);
    cr_assert_eq(kept_count(&k), n);
    succeed(&k);
    cr_assert_eq(kept_forget(&k), n);
    kept_deinit(&k);
}

CAID_TEST(kept, nobody_keeps_anything)
{
    struct kept k;
    uint32_t number;

    cr_assert_eq(kept_init(&k, NULL, -1), 0);
    cr_assert_eq(kept_start(&k), 0);
    cr_assert_eq(kept_put(&k, STDERR_FILENO, &number), -ENOTCONN);
    cr_assert_eq(kept_forget(&k), 0);
    kept_deinit(&k);
}

/* As --supervise does it: each daemon comes with a socket, and the keeper's end is the last. */
CAID_TEST_BETWEEN(kept, a_keeper_that_is_the_parent, log_set_level(LOG_LEVEL_ERROR),
                  kill_keeper(), .timeout = 60)
{
    uint32_t number;
    struct kept k;
    int pair[2];

    cr_assert_eq(socketpair(AF_UNIX, SOCK_SEQPACKET | SOCK_CLOEXEC, 0, pair), 0);
    keeper_pid = fork();
    if (keeper_pid == 0) {
        close(pair[0]);
        keep(pair[1], false);
    }
    close(pair[1]);
    cr_assert_eq(kept_init(&k, NULL, pair[0]), 0);
    cr_assert_eq(kept_start(&k), 0);
    cr_assert_eq(kept_put(&k, STDERR_FILENO, &number), 0);
    cr_assert(kept_is_there(&k) && kept_count(&k) == 1);
    kill(keeper_pid, SIGKILL);
    await_connection(&k, false);
    cr_assert_eq(kept_put(&k, STDERR_FILENO, &number), KEPT_LATER);
    kept_deinit(&k);
}

/* ---- histories ---- */

struct model {
    struct kept k;
    int fds[N_MODEL]; /* by number; 0: none */
    uint32_t n;
};

static void
model_put(struct model *m)
{
    int fd = memfd_create("kept", MFD_CLOEXEC);
    uint32_t number = 0;

    cr_assert_geq(m->n % 7 == 0 ? kept_set(&m->k, 0, fd) : kept_put(&m->k, fd, &number), 0);
    cr_assert_lt(number, N_MODEL);
    cr_assert(number == 0 || m->fds[number] == 0); /* nobody's */
    if (m->fds[number] > 0)
        close(m->fds[number]);
    else
        m->n++;
    m->fds[number] = fd;
}

static void
model_drop(struct model *m, uint32_t number)
{
    if (m->fds[number] == 0)
        return;
    kept_drop(&m->k, number);
    close(m->fds[number]);
    m->fds[number] = 0;
    m->n--;
}

/* The next daemon finds what the model has, and nothing else. */
static void
model_succeed(struct model *m)
{
    int r;

    do /* to a keeper that was killed while it was connected to */
        await_connection(&m->k, true);
    while ((r = kept_wait(&m->k, LONG_NS)) == -ENOTCONN);
    cr_assert_eq(r, 0);
    succeed(&m->k);
    for (uint32_t i = 0; i < N_MODEL; i++) {
        int fd = kept_claim(&m->k, i);

        cr_assert_eq(fd >= 0, m->fds[i] > 0);
        if (fd < 0)
            continue;
        cr_assert_eq(inode(fd), inode(m->fds[i]));
        close(m->fds[i]);
        m->fds[i] = fd;
    }
    cr_assert_eq(kept_forget(&m->k), 0);
    cr_assert_eq(kept_start(&m->k), 0);
}

static void
model_step(struct model *m)
{
    int what = rand() % 40;

    if (what < 20 && m->n + 2 < N_MODEL)
        model_put(m);
    else if (what < 35)
        model_drop(m, rand() % N_MODEL);
    else if (what == 35)
        stop_keeper();
    else if (what < 38)
        kill(keeper_pid, SIGCONT);
    else if (what == 38) {
        kill_keeper();
        await_connection(&m->k, false); /* or what was sent to that one is taken for kept */
        start_keeper();
    } else {
        kill(keeper_pid, SIGCONT);
        model_succeed(m);
    }
}

CAID_TEST_BETWEEN(kept, histories, begin(), end(), .timeout = 60)
{
    struct model m = {0};

    open_kept(&m.k);
    cr_assert_eq(kept_start(&m.k), 0);
    for (unsigned seed = 1; seed <= 6; seed++) {
        srand(seed);
        for (int i = 0; i < 400; i++)
            model_step(&m);
    }
    kill(keeper_pid, SIGCONT);
    model_succeed(&m);
    for (uint32_t i = 0; i < N_MODEL; i++)
        model_drop(&m, i);
    kept_deinit(&m.k);
}
