/* SPDX-License-Identifier: Apache-2.0 */
/*
 * Brackets of two clients of one process, on the software driver whose streams can be late: what
 * waits for what, who comes first, and what is refused. (Every ordering of several processes,
 * with and without its wait, is in tests/handoff; processes that die are in test_bracket_lost.c.)
 */
#include <errno.h>
#include <pthread.h>
#include <stdio.h>
#include <string.h>
#include <sys/wait.h>
#include <unistd.h>

#include "base/clock.h"
#include "base/macros.h"
#include "bracket_fixture.h"

/* ---- order ---- */

/* The reader's begin returns while the writer's work has not been done. */
BRACKET_TEST(bracket, a_reader_comes_after_the_writer)
{
    be_late(f.s1);
    struct caid_bracket *write = begin_on(f.ax, CAID_BRACKET_WRITE, f.s1);
    fill(f.ax, 1, f.s1);
    assert_ok(caid_bracket_end(write, &error));
    struct caid_bracket *read = begin_on(f.bx, 0, f.s2);
    cr_assert_eq(cuda_stream_query(f.a, f.s1, 0, &error), 0, "the host has waited");
    get(f.bx, f.seen[0], f.s2);
    assert_ok(caid_bracket_end(read, &error));
    assert_ok(caid_stream_synchronize(f.b, f.s2, 0, &error));
    assert_all(f.seen[0], 1);
    assert_ok(caid_bracket_check(read, &error));
    caid_bracket_free(read);
    caid_bracket_free(write);
}

BRACKET_TEST(bracket, a_writer_comes_after_the_readers)
{
    be_late(f.s1);
    be_late(f.s2);
    struct caid_bracket *one = begin_on(f.ax, 0, f.s1);
    struct caid_bracket *two = begin_on(f.bx, 0, f.s2);
    get(f.ax, f.seen[0], f.s1);
    get(f.bx, f.seen[1], f.s2);
    assert_ok(caid_bracket_end(one, &error));
    assert_ok(caid_bracket_end(two, &error));
    struct caid_bracket *write = begin_on(f.bw, CAID_BRACKET_WRITE, f.s3);
    fill(f.bw, 2, f.s3);
    assert_ok(caid_bracket_end(write, &error));
    synchronize();
    assert_all(f.seen[0], 0);
    assert_all(f.seen[1], 0);
    caid_bracket_free(one);
    caid_bracket_free(two);
    caid_bracket_free(write);
}

/* The host's bracket has no stream to make wait. */
BRACKET_TEST(bracket, the_host_waits_itself)
{
    struct caid_bracket *read = NULL;

    be_late(f.s1);
    struct caid_bracket *write = begin_on(f.ax, CAID_BRACKET_WRITE, f.s1);
    fill(f.ax, 3, f.s1);
    assert_ok(caid_bracket_end(write, &error));
    assert_failed(caid_array_begin(f.bx, &read, 0, 0, 0, &error), CAID_ERR_TIMEOUT);
    assert_failed(caid_array_begin(f.bx, &read, 0, 0, LATE_NS / 10, &error), CAID_ERR_TIMEOUT);
    cr_assert_null(read);
    wait_for_brackets(f.a, 0); /* what was granted has been given back */
    assert_ok(caid_array_begin(f.bx, &read, 0, 0, CAID_FOREVER, &error));
    assert_all((const unsigned char *)(uintptr_t)caid_array_get_info(f.bx)->ptr, 3);
    assert_ok(caid_bracket_end(read, &error));
    caid_bracket_free(read);
    caid_bracket_free(write);
}

/* An end of the host's needs no fence: all is done. */
BRACKET_TEST(bracket, after_the_host_nobody_waits)
{
    uint64_t before = soft_calls(&f.gpu, "cuStreamWaitValue64");
    struct caid_bracket *write = begin_on(f.ax, CAID_BRACKET_WRITE, 0);
    end_and_free(write);
    end_and_free(begin_on(f.bx, 0, f.s2));
    cr_assert_eq(soft_calls(&f.gpu, "cuStreamWaitValue64"), before);
}

/* ---- the daemon's queue ---- */

BRACKET_TEST(bracket, many_read_or_one_writes)
{
    struct caid_bracket *write = NULL;

    struct caid_bracket *one = begin_on(f.ax, 0, f.s1);
    struct caid_bracket *two = begin_on(f.bx, 0, f.s2);
    assert_failed(caid_array_begin(f.bw, &write, CAID_BRACKET_WRITE, f.s3, 0, &error),
                  CAID_ERR_DEADLOCK); /* this thread reads it */
    struct elsewhere other = {.array = f.bw, .flags = CAID_BRACKET_WRITE, .stream = f.s3};
    cr_assert_eq(begin_elsewhere(&other), -ETIMEDOUT);
    cr_assert_eq(other.error.code, CAID_ERR_TIMEOUT, "%s", other.error.message);
    uint64_t since = clock_now_ns();
    other.timeout_ns = 20 * NSEC_PER_MSEC;
    cr_assert_eq(begin_elsewhere(&other), -ETIMEDOUT);
    cr_assert_geq(clock_now_ns() - since, 20 * NSEC_PER_MSEC);
    end_and_free(one);
    cr_assert_eq(begin_elsewhere(&other), -ETIMEDOUT);
    end_and_free(two);
    cr_assert_eq(begin_elsewhere(&other), 0, "%s", other.error.message);
    end_and_free(other.bracket);
}

/* As one that wants to be interrupted would wait. */
BRACKET_TEST(bracket, is_waited_for_in_slices)
{
    struct caid_bracket *read;

    struct elsewhere other = {.array = f.ax, .flags = CAID_BRACKET_WRITE, .stream = f.s1};
    cr_assert_eq(begin_elsewhere(&other), 0);
    OPTIONS(caid_bracket_options, options, .reads = &f.bx, .n_reads = 1, .stream = f.s2);
    assert_ok(caid_bracket_start(f.b, &read, &options, &error));
    cr_assert_eq(caid_bracket_wait(read, 0, &error), 1);
    cr_assert_eq(caid_bracket_wait(read, 5 * NSEC_PER_MSEC, &error), 1);
    assert_failed(caid_bracket_end(read, &error), CAID_ERR_INVALID);
    assert_failed(caid_bracket_check(read, &error), CAID_ERR_INVALID);
    end_and_free(other.bracket);
    cr_assert_eq(caid_bracket_wait(read, CAID_FOREVER, &error), 0, "%s", error.message);
    cr_assert_eq(caid_bracket_wait(read, 0, &error), 0, "it has begun");
    end_and_free(read);
}

/* What is refused stays so. */
BRACKET_TEST(bracket, a_refusal_is_over)
{
    struct caid_bracket *read;

    struct elsewhere other = {.array = f.ax, .flags = CAID_BRACKET_WRITE, .stream = f.s1};
    cr_assert_eq(begin_elsewhere(&other), 0);
    OPTIONS(caid_bracket_options, options, .reads = &f.bx, .n_reads = 1, .nowait = true);
    assert_ok(caid_bracket_start(f.b, &read, &options, &error));
    for (int i = 0; i < 2; i++)
        assert_failed(caid_bracket_wait(read, CAID_FOREVER, &error), CAID_ERR_TIMEOUT);
    assert_failed(caid_bracket_end(read, &error), CAID_ERR_INVALID);
    caid_bracket_free(read);
    end_and_free(other.bracket);
}

/* A begin that is given up leaves nothing at the daemon, whether its grant is under way or not. */
BRACKET_TEST(bracket, is_given_up)
{
    struct caid_bracket *read;

    OPTIONS(caid_bracket_options, options, .reads = &f.bx, .n_reads = 1, .stream = f.s2);
    for (int i = 0; i < 60; i++) {
        struct elsewhere other = {.array = f.ax, .flags = CAID_BRACKET_WRITE, .stream = f.s1};
        cr_assert_eq(begin_elsewhere(&other), 0, "%s", other.error.message);
        assert_ok(caid_bracket_start(f.b, &read, &options, &error));
        if (i % 3 == 0)
            caid_bracket_free(read);
        end_and_free(other.bracket);
        if (i % 3 == 1)
            caid_bracket_free(read);
        if (i % 3 == 2) {
            wait_for_waiting(f.a, 0);
            caid_bracket_free(read);
        }
        wait_for_brackets(f.a, 0);
    }
}

BRACKET_TEST(bracket, takes_many_arrays_at_once)
{
    struct caid_array *arrays[100];
    struct caid_bracket *all;
    char name[8];

    for (size_t i = 0; i < ARRAY_SIZE(arrays); i++) {
        snprintf(name, sizeof(name), "m%zu", i);
        arrays[i] = make_bytes(f.a, name, i % 10 ? 16 : 0); /* some have no bytes */
    }
    OPTIONS(caid_bracket_options, options, .reads = arrays, .n_reads = 50,
            .writes = arrays + 50, .n_writes = 50, .stream = f.s1);
    assert_ok(caid_bracket_begin(f.a, &all, &options, &error));
    struct elsewhere other = {.array = arrays[99], .stream = f.s2};
    cr_assert_eq(begin_elsewhere(&other), -ETIMEDOUT);
    end_and_free(all);
    for (size_t i = 0; i < ARRAY_SIZE(arrays); i++)
        caid_array_close(arrays[i]);
}

/* Of one thread, too. */
BRACKET_TEST(bracket, ranges_that_do_not_overlap_go_on_side_by_side)
{
    const struct caid_range halves[] = {{0, N_BYTES / 2}, {N_BYTES / 2, N_BYTES}},
                            quarter = {0, N_BYTES / 4};
    struct caid_bracket *write[2], *read, *refused;

    for (int i = 0; i < 2; i++) {
        OPTIONS(caid_bracket_options, half, .writes = &f.ax, .n_writes = 1, .stream = f.s1,
                .nowait = true, .write_ranges = &halves[i]);
        assert_ok(caid_bracket_begin(f.a, &write[i], &half, &error));
    }
    fill(f.ax, 1, f.s1);
    assert_ok(caid_bracket_end(write[1], &error));
    assert_ok(caid_stream_synchronize(f.a, f.s1, 0, &error));
    OPTIONS(caid_bracket_options, some, .reads = &f.bx, .n_reads = 1, .nowait = true,
            .read_ranges = &quarter);
    assert_failed(caid_bracket_begin(f.b, &refused, &some, &error), CAID_ERR_TIMEOUT);
    some.read_ranges = &halves[1];
    assert_ok(caid_bracket_begin(f.b, &read, &some, &error));
    end_and_free(read);
    assert_ok(caid_bracket_end(write[0], &error));
    for (int i = 0; i < 2; i++)
        caid_bracket_free(write[i]);
    end_and_free(begin_on(f.bx, 0, f.s2));
}

/* One of each kind in one bracket; of lists of which only one has ranges, the other's are whole. */
BRACKET_TEST(bracket, ranges_of_one_array_in_one_bracket)
{
    const struct caid_range ends[] = {{0, 1}, {N_BYTES - 1, N_BYTES}}, inner = {1, N_BYTES - 1},
                            none = {1, N_BYTES + 1};
    struct caid_array *twice[] = {f.bw, f.bw};
    struct caid_bracket *all, *refused;

    OPTIONS(caid_bracket_options, options, .reads = twice, .n_reads = 2, .read_ranges = ends,
            .writes = twice, .n_writes = 1, .write_ranges = &inner);
    assert_ok(caid_bracket_begin(f.b, &all, &options, &error));
    end_and_free(all);
    options.write_ranges = NULL;
    assert_failed(caid_bracket_begin(f.b, &refused, &options, &error), CAID_ERR_INVALID);
    options.n_reads = 0;
    options.write_ranges = &none;
    assert_failed(caid_bracket_begin(f.b, &refused, &options, &error), CAID_ERR_INVALID);
    wait_for_brackets(f.a, 0);
}

/* ---- deadlocks ---- */

BRACKET_TEST(bracket, a_thread_does_not_wait_for_itself)
{
    struct caid_bracket *second = NULL;

    struct caid_bracket *read = begin_on(f.bw, 0, f.s1);
    assert_failed(caid_array_begin(f.bw, &second, CAID_BRACKET_WRITE, f.s1, CAID_FOREVER,
                                   &error),
                  CAID_ERR_DEADLOCK);
    struct caid_bracket *again = begin_on(f.bw, 0, f.s1);
    end_and_free(again);
    end_and_free(read);
    struct caid_bracket *write = begin_on(f.bw, CAID_BRACKET_WRITE, f.s1);
    assert_failed(caid_array_begin(f.bw, &second, 0, f.s1, CAID_FOREVER, &error),
                  CAID_ERR_DEADLOCK);
    end_and_free(write);
}

/* ---- closing what is in use ---- */

/* The bracket is still to be ended; what was written of the array is not whole for anybody. */
BRACKET_TEST(bracket, outlives_its_array)
{
    struct caid_array *again = NULL;

    struct caid_bracket *read = begin_on(f.bx, 0, f.s2);
    caid_array_close(f.bx);
    end_and_free(read);
    struct caid_bracket *write = begin_on(f.bw, CAID_BRACKET_WRITE, f.s2);
    caid_array_close(f.bw);
    wait_for_leases(f.a, 1);
    assert_abandoned(f.ax);
    end_and_free(write);
    assert_ok(caid_array_discard(f.ax, &error));
    end_and_free(begin_on(f.ax, 0, f.s1));
    assert_ok(caid_array_open(f.b, &again, "x", NULL, &error));
    f.bx = again;
    f.bw = NULL;
}

/* One that waits is refused when its array is closed. */
BRACKET_TEST(bracket, does_not_wait_for_an_array_that_is_closed)
{
    struct caid_bracket *write;

    struct elsewhere other = {.array = f.ax, .stream = f.s1};
    cr_assert_eq(begin_elsewhere(&other), 0);
    OPTIONS(caid_bracket_options, options, .writes = &f.bw, .n_writes = 1);
    assert_ok(caid_bracket_start(f.b, &write, &options, &error));
    caid_array_close(f.bw);
    f.bw = NULL;
    assert_failed(caid_bracket_wait(write, CAID_FOREVER, &error), CAID_ERR_INVALID);
    caid_bracket_free(write);
    end_and_free(other.bracket);
}

/* ---- abandoning ---- */

BRACKET_TEST(bracket, an_abandoned_array_is_healed_by_a_write)
{
    struct caid_bracket *write = begin_on(f.ax, CAID_BRACKET_WRITE, f.s1);
    assert_ok(caid_bracket_abandon(write, &error));
    caid_bracket_free(write);
    assert_abandoned(f.bx);
    assert_failed(caid_array_publish(f.ax, "y", NULL, NULL, &error), CAID_ERR_ABANDONED);
    end_and_free(begin_on(f.bw, CAID_BRACKET_WRITE, f.s2));
    end_and_free(begin_on(f.bx, 0, f.s2));

    caid_bracket_free(begin_on(f.ax, CAID_BRACKET_WRITE, 0)); /* as good as abandoned */
    assert_abandoned(f.bx);
    assert_failed(caid_array_discard(f.bx, &error), CAID_ERR_READ_ONLY);
    assert_ok(caid_array_discard(f.bw, &error));
    assert_ok(caid_array_discard(f.bw, &error));
    end_and_free(begin_on(f.bx, 0, f.s2));

    struct caid_bracket *read = begin_on(f.bx, 0, f.s2);
    assert_ok(caid_bracket_abandon(read, &error)); /* nothing was written */
    caid_bracket_free(read);
    end_and_free(begin_on(f.bx, 0, f.s2));
}

/* The work of a bracket that is abandoned is still on its stream. */
BRACKET_TEST(bracket, an_abandoned_bracket_is_waited_for)
{
    be_late(f.s1);
    struct caid_bracket *write = begin_on(f.ax, CAID_BRACKET_WRITE, f.s1);
    fill(f.ax, 4, f.s1);
    caid_bracket_free(write);
    struct caid_bracket *again = begin_on(f.bw, CAID_BRACKET_WRITE, f.s2);
    get(f.bw, f.seen[0], f.s2);
    end_and_free(again);
    synchronize();
    assert_all(f.seen[0], 4);
}

/* ---- what is no bracket ---- */

BRACKET_TEST(bracket, is_ended_once)
{
    struct caid_bracket *read = begin_on(f.bx, 0, f.s2);
    assert_ok(caid_bracket_end(read, &error));
    assert_failed(caid_bracket_end(read, &error), CAID_ERR_INVALID);
    assert_failed(caid_bracket_abandon(read, &error), CAID_ERR_INVALID);
    assert_failed(caid_bracket_wait(read, 0, &error), CAID_ERR_INVALID);
    cr_assert(strstr(error.message, "\"x\""), "%s", error.message);
    assert_ok(caid_bracket_check(read, &error));
    caid_bracket_free(read);

    assert_failed(caid_bracket_end(NULL, &error), CAID_ERR_INVALID);
    assert_failed(caid_bracket_abandon(NULL, &error), CAID_ERR_INVALID);
    assert_failed(caid_bracket_wait(NULL, 0, &error), CAID_ERR_INVALID);
    assert_failed(caid_bracket_check(NULL, &error), CAID_ERR_INVALID);
    assert_failed(caid_array_discard(NULL, &error), CAID_ERR_INVALID);
    caid_bracket_free(NULL);
}

/* Fails with code, and leaves nothing of it. */
#define assert_refused(client_, code, ...)                                                     \
    do {                                                                                       \
        struct caid_bracket_options options_ = {.struct_size = sizeof(options_), __VA_ARGS__}; \
        struct caid_bracket *bracket_ = NULL;                                                  \
        assert_failed(caid_bracket_begin(client_, &bracket_, &options_, &error), code);        \
        cr_assert_null(bracket_);                                                              \
        wait_for_brackets(f.a, 0);                                                             \
    } while (0)

BRACKET_TEST(bracket, bad_lists_are_refused)
{
    struct caid_create_options managed = CAID_INIT(managed);
    struct caid_bracket *bracket = NULL;
    struct caid_array *mine;

    struct caid_array *twice[] = {f.bw, f.bw}, *same[] = {f.bx, f.bw}, *none[] = {f.bx, NULL};
    struct caid_array *many[1025];
    for (size_t i = 0; i < ARRAY_SIZE(many); i++)
        many[i] = f.bx;
    assert_refused(f.b, CAID_ERR_INVALID, .n_reads = 0);
    assert_refused(f.b, CAID_ERR_INVALID, .n_reads = 1);
    assert_refused(f.b, CAID_ERR_INVALID, .n_writes = 1);
    assert_refused(f.b, CAID_ERR_INVALID, .reads = none, .n_reads = 2);
    assert_refused(f.b, CAID_ERR_INVALID, .reads = many, .n_reads = 1025);
    assert_refused(f.b, CAID_ERR_INVALID, .reads = many, .n_reads = SIZE_MAX, .writes = many,
                   .n_writes = 2);
    assert_refused(f.b, CAID_ERR_INVALID, .reads = many, .n_reads = 1024);
    assert_refused(f.b, CAID_ERR_INVALID, .writes = twice, .n_writes = 2);
    assert_refused(f.b, CAID_ERR_INVALID, .reads = twice, .n_reads = 1, .writes = twice,
                   .n_writes = 1);
    assert_refused(f.b, CAID_ERR_INVALID, .reads = same, .n_reads = 2);
    assert_refused(f.a, CAID_ERR_INVALID, .reads = &f.bx, .n_reads = 1);
    assert_refused(f.b, CAID_ERR_READ_ONLY, .writes = &f.bx, .n_writes = 1);

    managed.memory = "managed";
    managed.typestr = "|u1";
    assert_ok(caid_array_create(f.a, &mine, &managed, &error));
    assert_refused(f.a, CAID_ERR_UNSUPPORTED, .writes = &mine, .n_writes = 1);
    assert_failed(caid_array_discard(mine, &error), CAID_ERR_UNSUPPORTED);
    caid_array_close(mine);

    assert_failed(caid_array_begin(f.bx, &bracket, 2, 0, 0, &error), CAID_ERR_INVALID);
    assert_failed(caid_array_begin(NULL, &bracket, 0, 0, 0, &error), CAID_ERR_INVALID);
    assert_failed(caid_array_begin(f.bx, NULL, 0, 0, 0, &error), CAID_ERR_INVALID);
    assert_failed(caid_bracket_begin(f.b, &bracket, NULL, &error), CAID_ERR_INVALID);
}

BRACKET_TEST(bracket, a_capturing_stream_is_refused)
{
    struct caid_bracket *read = NULL;

    struct caid_bracket *open = begin_on(f.bw, CAID_BRACKET_WRITE, f.s1);
    capture_begin(f.s1);
    capture_begin(f.s2);
    assert_failed(caid_array_begin(f.bx, &read, 0, f.s2, 0, &error), CAID_ERR_INVALID);
    assert_failed(caid_bracket_end(open, &error), CAID_ERR_INVALID);
    cr_assert(strstr(error.message, "captures"), "%s", error.message);
    capture_end(f.s1);
    capture_end(f.s2);
    caid_bracket_free(open);
    assert_abandoned(f.bx); /* it has ended, without anybody knowing what was done */
}

static void
two_devices(void)
{
    setenv("CAID_SOFTCUDA_DEVICES", "2", 1);
    soft_warm_up();
}

CAID_TEST_WITH(bracket, a_stream_of_another_device_is_refused, .init = two_devices,
               .timeout = 120)
{
    struct caid_bracket *read = NULL;
    struct caid_array *pinned;
    const int64_t n = N_BYTES;
    uint64_t stream;

    fixture_begin();
    assert_ok(caid_stream_create(f.b, 1, 0, &stream, &error));
    assert_failed(caid_array_begin(f.bx, &read, 0, stream, 0, &error), CAID_ERR_DEVICE);
    OPTIONS(caid_create_options, create, .memory = "pinned", .typestr = "|u1", .shape = &n,
            .ndim = 1);
    assert_ok(caid_array_create(f.b, &pinned, &create, &error));
    end_and_free(begin_on(pinned, CAID_BRACKET_WRITE, stream));
    end_and_free(begin_on(pinned, CAID_BRACKET_WRITE, f.s2));
    assert_ok(caid_stream_synchronize(f.b, f.s2, 0, &error));
    caid_array_close(pinned);
    assert_ok(caid_stream_destroy(f.b, stream, &error));
    fixture_end();
}

/* The default streams are the driver's own. */
BRACKET_TEST(bracket, default_streams_are_streams)
{
    for (uint64_t stream = 1; stream <= 2; stream++) {
        be_late(stream);
        struct caid_bracket *write = begin_on(f.ax, CAID_BRACKET_WRITE, stream);
        fill(f.ax, (unsigned char)(stream + 10), stream);
        end_and_free(write);
        struct caid_bracket *read = begin_on(f.bx, 0, f.s2);
        get(f.bx, f.seen[0], f.s2);
        end_and_free(read);
        synchronize();
        assert_all(f.seen[0], (unsigned char)(stream + 10));
    }
}

/* ---- figures ---- */

static int
see_entry(const struct caid_entry *entry, void *userdata)
{
    struct caid_entry *ret = userdata;

    if (strcmp(entry->name, "x") == 0)
        *ret = *entry;
    return 0;
}

struct seen_holders {
    uint64_t n, reading, writing, waiting;
};

static int
see_holders(const struct caid_details *details, void *userdata)
{
    struct seen_holders *seen = userdata;

    for (uint32_t i = 0; i < details->n_holders; i++) {
        seen->n++;
        seen->reading += details->holders[i]->reading;
        seen->writing += details->holders[i]->writing;
        seen->waiting += details->holders[i]->waiting;
    }
    return 0;
}

static int
see_user(const struct caid_user *user, void *userdata)
{
    if (user->uid == getuid())
        *(struct caid_user *)userdata = *user;
    return 0;
}

BRACKET_TEST(bracket, shows_in_the_figures)
{
    struct caid_status status = CAID_INIT(status);
    struct seen_holders holders = {0};
    struct caid_entry entry = {0};
    struct caid_user user = {0};
    struct caid_bracket *write;

    struct elsewhere other = {.array = f.ax, .stream = f.s1};
    cr_assert_eq(begin_elsewhere(&other), 0);
    OPTIONS(caid_bracket_options, options, .writes = &f.bw, .n_writes = 1);
    assert_ok(caid_bracket_start(f.b, &write, &options, &error));
    assert_ok(caid_client_ping(f.b, &error));
    assert_ok(caid_list(f.a, NULL, see_entry, &entry, &error));
    cr_assert_eq(entry.readers, 1);
    cr_assert_eq(entry.writers, 0);
    cr_assert_eq(entry.waiting, 1);
    cr_assert(!entry.abandoned);
    assert_ok(caid_show(f.a, "x", NULL, see_holders, &holders, &error));
    cr_assert_eq(holders.n, 3);
    cr_assert_eq(holders.reading, 1);
    cr_assert_eq(holders.waiting, 1);
    cr_assert_eq(holders.writing, 0);
    assert_ok(caid_client_status(f.a, &status, &error));
    cr_assert_eq(status.brackets, 2);
    assert_ok(caid_users(f.a, see_user, &user, &error));
    cr_assert_eq(user.brackets, 2);

    end_and_free(other.bracket);
    assert_ok(caid_bracket_wait(write, CAID_FOREVER, &error));
    assert_ok(caid_show(f.a, "x", NULL, see_holders, &holders, &error));
    cr_assert_eq(holders.writing, 1);
    caid_bracket_free(write);
    wait_for_brackets(f.a, 0);
    assert_ok(caid_list(f.a, NULL, see_entry, &entry, &error));
    cr_assert(entry.abandoned);
}
