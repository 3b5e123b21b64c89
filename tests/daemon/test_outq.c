/* SPDX-License-Identifier: Apache-2.0 */
#include <fcntl.h>
#include <sys/stat.h>
#include <unistd.h>

#include "base/macros.h"
#include "caid_test.h"
#include "outq.h"

static uint8_t bytes[OUTQ_MAX_BYTES];

CAID_TEST(outq, keeps_order_and_content)
{
    struct outq q;

    outq_init(&q);
    cr_assert_null(outq_first(&q));
    cr_assert_eq(outq_push(&q, "one", 3, NULL, 0), 0);
    cr_assert_eq(outq_push(&q, "second", 6, NULL, 0), 0);
    cr_assert_eq(outq_first(&q)->n, 3);
    cr_assert_arr_eq(outq_packet_data(outq_first(&q)), "one", 3);
    outq_pop(&q);
    cr_assert_eq(outq_first(&q)->n, 6);
    cr_assert_arr_eq(outq_packet_data(outq_first(&q)), "second", 6);
    outq_pop(&q);
    cr_assert_null(outq_first(&q));
    outq_deinit(&q);
}

/* The queue's fds are its own: the originals may be closed, and another file take their number. */
CAID_TEST(outq, fds_are_duplicates)
{
    int fds[2] = {open("/dev/null", O_RDONLY), open("/dev/zero", O_RDONLY)};
    struct stat before, after;
    struct outq q;

    outq_init(&q);
    fstat(fds[1], &before);
    cr_assert_eq(outq_push(&q, "x", 1, fds, 2), 0);
    close(fds[0]);
    close(fds[1]);
    cr_assert_eq(outq_first(&q)->n_fds, 2);
    cr_assert_eq(fstat(outq_first(&q)->fds[1], &after), 0);
    cr_assert_eq(after.st_rdev, before.st_rdev);
    cr_assert(fcntl(outq_first(&q)->fds[1], F_GETFD) & FD_CLOEXEC);
    cr_assert_arr_eq(outq_packet_data(outq_first(&q)), "x", 1);
    outq_deinit(&q); /* closes them: the test counts */
}

CAID_TEST(outq, a_bad_fd_leaves_nothing_behind)
{
    int fds[2] = {STDERR_FILENO, -1};
    struct outq q;

    outq_init(&q);
    cr_assert_eq(outq_push(&q, "x", 1, fds, 2), -EBADF);
    cr_assert_null(outq_first(&q));
    cr_assert_eq(q.n_packets + q.n_bytes + q.n_fds, 0);
    outq_deinit(&q);
}

CAID_TEST(outq, bytes_are_bounded)
{
    struct outq q;

    outq_init(&q);
    cr_assert_eq(outq_push(&q, bytes, OUTQ_MAX_BYTES + 1, NULL, 0), -ENOBUFS);
    cr_assert_eq(outq_push(&q, bytes, OUTQ_MAX_BYTES, NULL, 0), 0);
    cr_assert_eq(outq_push(&q, bytes, 1, NULL, 0), -ENOBUFS);
    outq_pop(&q);
    cr_assert_eq(outq_push(&q, bytes, OUTQ_MAX_BYTES, NULL, 0), 0);
    outq_deinit(&q);
}

CAID_TEST(outq, packets_are_bounded)
{
    struct outq q;

    outq_init(&q);
    for (int i = 0; i < OUTQ_MAX_PACKETS; i++)
        cr_assert_eq(outq_push(&q, "x", 1, NULL, 0), 0);
    cr_assert_eq(outq_push(&q, "x", 1, NULL, 0), -ENOBUFS);
    outq_pop(&q);
    cr_assert_eq(outq_push(&q, "x", 1, NULL, 0), 0);
    outq_deinit(&q);
}

CAID_TEST(outq, fds_are_bounded)
{
    int fds[OUTQ_MAX_FDS + 1];
    struct outq q;

    for (size_t i = 0; i < ARRAY_SIZE(fds); i++)
        fds[i] = STDERR_FILENO;
    outq_init(&q);
    cr_assert_eq(outq_push(&q, "x", 1, fds, OUTQ_MAX_FDS + 1), -ENOBUFS);
    cr_assert_eq(outq_push(&q, "x", 1, fds, OUTQ_MAX_FDS), 0);
    cr_assert_eq(outq_push(&q, "x", 1, fds, 1), -ENOBUFS);
    cr_assert_eq(outq_push(&q, "x", 1, NULL, 0), 0);
    outq_pop(&q);
    cr_assert_eq(outq_push(&q, "x", 1, fds, OUTQ_MAX_FDS), 0);
    outq_deinit(&q);
}
