/* SPDX-License-Identifier: Apache-2.0 */
/*
 * usage: crowd SOCKET MILLISECONDS CONNECTIONS ACTIVE
 *
 * Measures how long an open takes while ten uids have CONNECTIONS connections in all. ACTIVE of
 * these take turns at opening and closing an array, together 5,000 times a second. Runs as root, to
 * become the uids.
 */
#include <err.h>
#include <grp.h>
#include <inttypes.h>
#include <stdio.h>
#include <stdlib.h>
#include <sys/mman.h>
#include <sys/prctl.h>
#include <sys/resource.h>
#include <sys/wait.h>
#include <unistd.h>

#include "base/clock.h"
#include "wire.h"

#define N_UIDS  10
#define UID     65010
#define PACE_NS (NSEC_PER_SEC * N_UIDS / 5000)
#define N_MAX   200000
#define NAME    MSG_STR("crowd")

struct samples { /* in memory that the processes share */
    size_t n[N_UIDS];
    uint64_t ns[N_UIDS][N_MAX / N_UIDS], all[N_MAX];
};

static void
open_once(struct wire *w, uint64_t *ret_ns)
{
    const struct msg_str name = NAME;
    const struct msg_open_params params = {.names = {&name, 1}, .mode = MSG_STR("r")};
    struct msg_arrays_result result;
    uint64_t since = clock_now_ns();

    wire_call(w, MSG_OPEN, &params, &result);
    *ret_ns = clock_now_ns() - since;
    uint64_t lease = result.arrays[0].lease;
    wire_send(w, MSG_CLOSE, &(struct msg_close_params){.leases = {&lease, 1}});
}

static struct wire *
connect_many(const char *socket, uint32_t n)
{
    struct wire *wires = calloc(n, sizeof(*wires));

    if (!wires)
        err(1, "calloc");
    for (uint32_t i = 0; i < n; i++)
        wire_init(&wires[i], socket);
    return wires;
}

static void
wait_for(int fd)
{
    char byte;

    if (read(fd, &byte, 1) < 0)
        err(1, "pipe");
}

/* One uid: `n` connections, of which `active` open and close in turn. */
static void
be_user(int i, const char *socket, uint64_t for_ns, uint32_t n, uint32_t active, int ready,
        int start, struct samples *ret)
{
    const int64_t one = 1;
    const struct msg_create_params params = {.name = NAME,
                                             .typestr = MSG_STR("|u1"),
                                             .shape = {&one, 1}};

    if (setgroups(0, NULL) < 0 || setresgid(UID, UID, UID) < 0 ||
        setresuid(UID + (uid_t)i, UID + (uid_t)i, UID + (uid_t)i) < 0)
        err(1, "uid %d", UID + i);
    prctl(PR_SET_PDEATHSIG, SIGKILL);
    struct wire *wires = connect_many(socket, n);
    wire_try(&wires[0], MSG_CREATE, &params, NULL); /* of an earlier run, it exists */
    if (write(ready, "", 1) != 1)
        err(1, "pipe");
    wait_for(start);

    uint64_t begin = clock_now_ns() + PACE_NS * (uint64_t)i / N_UIDS, turn = begin;
    for (uint32_t c = 0; turn < begin + for_ns && ret->n[i] < N_MAX / N_UIDS; turn += PACE_NS) {
        uint64_t now = clock_now_ns();
        if (now < turn)
            clock_pause_ns(turn - now);
        open_once(&wires[c++ % active], &ret->ns[i][ret->n[i]++]);
    }
    _exit(0);
}

static int
compare(const void *a, const void *b)
{
    uint64_t x = *(const uint64_t *)a, y = *(const uint64_t *)b;

    return x < y ? -1 : x > y;
}

static void
print_row(struct samples *s, uint32_t n_conns, uint32_t active)
{
    size_t n = 0;

    for (int i = 0; i < N_UIDS; i++)
        for (size_t k = 0; k < s->n[i]; k++)
            s->all[n++] = s->ns[i][k];
    if (n == 0)
        errx(1, "no open was answered");
    qsort(s->all, n, sizeof(s->all[0]), compare);
    printf("%" PRIu32 " connections of %d uids, %" PRIu32
           " active: open p50 %.0f us, p99 %.0f us, "
           "max %.0f us\n",
           n_conns, N_UIDS, active, (double)s->all[n / 2] / 1e3,
           (double)s->all[(n - 1) * 99 / 100] / 1e3, (double)s->all[n - 1] / 1e3);
}

int
main(int argc, char **argv)
{
    if (argc != 5)
        errx(2, "usage: crowd SOCKET MILLISECONDS CONNECTIONS ACTIVE");
    uint64_t for_ns = strtoull(argv[2], NULL, 10) * NSEC_PER_MSEC;
    uint32_t n_conns = (uint32_t)strtoul(argv[3], NULL, 10) / N_UIDS,
             active = (uint32_t)strtoul(argv[4], NULL, 10) / N_UIDS;
    struct samples *s =
        mmap(NULL, sizeof(*s), PROT_READ | PROT_WRITE, MAP_SHARED | MAP_ANONYMOUS, -1, 0);
    int ready[2], start[2], status, failed = 0;

    if (n_conns == 0 || active == 0 || active > n_conns)
        errx(2, "at least %d connections, and as many active as there are at most", N_UIDS);
    if (s == MAP_FAILED || pipe(ready) < 0 || pipe(start) < 0)
        err(1, "memory and pipes");
    for (int i = 0; i < N_UIDS; i++)
        if (fork() == 0) {
            close(start[1]);
            be_user(i, argv[1], for_ns, n_conns, active, ready[1], start[0], s);
        }
    close(ready[1]);
    for (int i = 0; i < N_UIDS; i++)
        wait_for(ready[0]); /* one that has failed closes it, and is found below */
    close(start[1]);
    while (wait(&status) > 0)
        failed |= status;
    if (!failed)
        print_row(s, n_conns * N_UIDS, active * N_UIDS);
    return failed != 0;
}
