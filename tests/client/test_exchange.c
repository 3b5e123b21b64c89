/* SPDX-License-Identifier: Apache-2.0 */
/*
 * Two blocks exchange their addresses: who has the addresses finds the other contents there. What
 * is refused, and what the driver refuses, leaves all as it was, or unmapped.
 */
#include <pthread.h>
#include <stdatomic.h>
#include <stdio.h>
#include <string.h>
#include <unistd.h>

#include "client_fixture.h"
#include "process.h"

#define EXCHANGE_TEST(name)                                                             \
    CAID_TEST_BETWEEN(exchange, name, begin_pair(), end_pair(), .init = driver_warm_up, \
                      .timeout = 120)
#define SOFT_TEST(name)                                                                 \
    CAID_TEST_BETWEEN(exchange, name, ONLY_IF(gpu_is_soft(), begin_pair()), end_pair(), \
                      .init = driver_warm_up, .timeout = 120)

#define MIB     (INT64_C(1) << 20)
#define SIZE    (3 * MIB)
#define OFFSET  4096 /* of the part */
#define N_LOOP  100
#define OLD     11 /* what the old block is filled with */
#define NEW     22
#define LATE_NS 20000000

/* Each side: a whole, and a part of it. */
struct pair {
    struct caid_array *v[2];
    uint64_t at;
};

static struct pair old, new;

static uint64_t
ptr_of(const struct caid_array *array)
{
    return caid_array_get_info(array)->ptr;
}

static struct caid_array *
make_block(const char *name, int64_t n, unsigned char with)
{
    struct caid_array *array = NULL;

    OPTIONS(caid_create_options, options, .name = name, .typestr = "|u1", .shape = &n,
            .ndim = 1, .flags = CAID_ARRAY_EXCLUSIVE);
    assert_ok(caid_array_create(f.client, &array, &options, &error));
    assert_cuda(f.gpu.drv->cu.cuMemsetD8Async(ptr_of(array), with, (size_t)n, NULL));
    assert_cuda(f.gpu.drv->cu.cuStreamSynchronize(NULL));
    return array;
}

static void
make_pair(struct pair *pair, const char *name, unsigned char with)
{
    const int64_t shape = 100;
    char part[32];

    snprintf(part, sizeof(part), "%s.part", name);
    OPTIONS(caid_part_options, options, .typestr = "|u1", .shape = &shape, .ndim = 1);
    pair->v[0] = make_block(name, SIZE, with);
    pair->at = ptr_of(pair->v[0]);
    assert_ok(caid_array_publish_part(pair->v[0], OFFSET, part, &options, NULL, &error));
    pair->v[1] = must_open(part, "rw");
    cr_assert_eq(ptr_of(pair->v[1]), pair->at + OFFSET);
}

static void
close_pair(struct pair *pair)
{
    for (size_t i = 0; i < ARRAY_SIZE(pair->v); i++)
        caid_array_close(TAKE_PTR(pair->v[i]));
}

static void
begin_pair(void)
{
    begin_with_gpu();
    make_pair(&old, "old", OLD);
    make_pair(&new, "new", NEW);
}

/* Nothing is left mapped or reserved. */
static void
end_pair(void)
{
    close_pair(&old);
    close_pair(&new);
    wait_for_leases(f.client, 0);
    assert_ok(caid_flush(f.client, -1, NULL, &error));
    if (gpu_is_soft()) {
        cr_assert_eq(soft_live(&f.gpu, "mappings"), 0);
        cr_assert_eq(soft_live(&f.gpu, "reservations"), 0);
    }
    end();
}

static int
exchange_on(const uint64_t *streams, size_t n)
{
    return caid_exchange(f.client, old.v, 2, new.v, 2, streams, n, &error);
}

static int
exchange(void)
{
    return exchange_on(NULL, 0);
}

/* The byte at an address. */
static unsigned char
byte_at(uint64_t at)
{
    unsigned char byte = 0;

    assert_cuda(f.gpu.drv->cu.cuMemcpyDtoHAsync(&byte, at, 1, NULL));
    assert_cuda(f.gpu.drv->cu.cuStreamSynchronize(NULL));
    return byte;
}

static void
assert_holds(struct caid_array *array, unsigned char wanted)
{
    static unsigned char bytes[SIZE];
    size_t n = caid_array_get_info(array)->nbytes;

    assert_ok(caid_array_copy_to_host(array, bytes, n, &error));
    cr_assert_eq(bytes[0], wanted);
    cr_assert_eq(bytes[n - 1], wanted);
}

/* The arrays have their own contents, and are at these addresses. */
static void
assert_at(uint64_t at_old, uint64_t at_new)
{
    for (size_t i = 0; i < 2; i++) {
        cr_assert(caid_array_is_mapped(old.v[i]) && caid_array_is_mapped(new.v[i]));
        cr_assert_eq(ptr_of(old.v[i]), at_old + i * OFFSET);
        cr_assert_eq(ptr_of(new.v[i]), at_new + i * OFFSET);
        assert_holds(old.v[i], OLD);
        assert_holds(new.v[i], NEW);
    }
    cr_assert_eq(byte_at(at_old), OLD);
    cr_assert_eq(byte_at(at_new + SIZE - 1), NEW);
}

static void
assert_as_before(void)
{
    assert_at(old.at, new.at);
}

static CUstream
stream_new(unsigned int flags)
{
    CUstream stream;

    assert_cuda(f.gpu.drv->cu.cuStreamCreate(&stream, flags));
    return stream;
}

/* ---- what it does ---- */

EXCHANGE_TEST(puts_each_where_the_other_was)
{
    const struct caid_array_info *before = caid_array_get_info(old.v[0]);

    for (int i = 0; i < N_LOOP; i++) {
        assert_ok(exchange());
        cr_assert_eq(before->ptr, new.at, "what was given before tells it, too");
        cr_assert_eq(byte_at(old.at), NEW);
        assert_ok(exchange());
        cr_assert_eq(byte_at(old.at), OLD);
    }
    assert_ok(exchange());
    assert_at(new.at, old.at);
    assert_cuda(f.gpu.drv->cu.cuMemsetD8Async(old.at, NEW + 1, SIZE, NULL));
    assert_cuda(f.gpu.drv->cu.cuStreamSynchronize(NULL));
    assert_holds(new.v[0], NEW + 1);
    assert_holds(old.v[0], OLD);
}

EXCHANGE_TEST(in_both_modes)
{
    struct caid_array *from[] = {old.v[0], old.v[1], must_open("old", "r")};
    struct caid_array *to[] = {new.v[0], new.v[1], must_open("new", "r")};
    uint64_t at_from = ptr_of(from[2]), at_to = ptr_of(to[2]);

    cr_assert_neq(at_from, old.at);
    assert_ok(caid_exchange(f.client, from, 3, to, 3, NULL, 0, &error));
    cr_assert_eq(ptr_of(from[2]), at_to);
    cr_assert_eq(ptr_of(to[2]), at_from);
    cr_assert_eq(byte_at(at_from), NEW);
    assert_at(new.at, old.at);
    caid_array_close(from[2]);
    caid_array_close(to[2]);
}

/* What is published while it is open has another description, which moves, too. */
EXCHANGE_TEST(after_a_publish)
{
    const struct caid_array_info *before = caid_array_get_info(old.v[0]);

    assert_ok(caid_array_publish(old.v[0], "other", NULL, NULL, &error));
    assert_ok(exchange());
    cr_assert_eq(before->ptr, new.at);
    assert_at(new.at, old.at);
}

EXCHANGE_TEST(of_what_is_kept_and_reserved)
{
    struct caid_reservation *reservation;
    struct caid_mapping *mapping;
    struct caid_array *array;
    uint64_t address;

    assert_ok(caid_reserve(f.client, 4 * MIB, 0, &reservation, &address, &error));
    assert_ok(caid_reservation_use(f.client, reservation, &error));
    array = make_block(NULL, SIZE, OLD);
    caid_reservation_free(reservation);
    cr_assert_eq(ptr_of(array), address);
    assert_ok(caid_array_keep_mapping(new.v[0], &mapping, &error));
    assert_ok(caid_exchange(f.client, &array, 1, new.v, 2, NULL, 0, &error));
    cr_assert_eq(byte_at(address), NEW);
    close_pair(&new);
    caid_array_close(array);
    wait_for_leases(f.client, 2);
    assert_ok(caid_flush(f.client, -1, NULL, &error));
    array = must_open("new", "rw");
    cr_assert_eq(ptr_of(array), address);
    assert_holds(array, NEW);
    caid_array_close(array);
    caid_mapping_release(mapping);
}

/* ---- whom it waits for, and who waits ---- */

static void *
exchange_there(void *ret)
{
    struct caid_error why = {0};

    *(_Atomic int *)ret =
        caid_exchange(f.client, old.v, 2, new.v, 2, NULL, 0, &why) < 0 ? -why.code : 1;
    return NULL;
}

struct copying {
    struct caid_array *array;
    unsigned char with;
    atomic_bool done;
};

static void *
copy_there(void *arg)
{
    static unsigned char bytes[SIZE];
    struct copying *copying = arg;

    memset(bytes, copying->with, sizeof(bytes));
    assert_ok(caid_array_copy_from_host(copying->array, bytes, SIZE, &error));
    copying->done = true;
    return NULL;
}

/* The same on a stream of its own, to an address. */
static void *
enqueue_there(void *arg)
{
    static const unsigned char byte = NEW + 1;
    const int64_t n = SIZE, step = 0;
    struct copying *copying = arg;
    CUstream stream;

    assert_cuda(f.gpu.drv->cu.cuCtxPushCurrent(f.gpu.context));
    stream = stream_new(CU_STREAM_NON_BLOCKING);
    OPTIONS(caid_copy, copy, .dst = old.at, .src = (uintptr_t)&byte, .src_on_host = true,
            .src_strides = &step, .shape = &n, .ndim = 1, .itemsize = 1,
            .stream = (uint64_t)(uintptr_t)stream);
    assert_ok(caid_copy(f.client, &copy, &error));
    copying->done = true;
    assert_cuda(f.gpu.drv->cu.cuStreamSynchronize(stream));
    assert_cuda(f.gpu.drv->cu.cuStreamDestroy(stream));
    return NULL;
}

static void *
begin_there(void *arg)
{
    struct copying *beginning = arg;
    struct caid_bracket *bracket;

    assert_ok(caid_array_begin(beginning->array, &bracket, 0, 0, CAID_FOREVER, &error));
    beginning->done = true;
    assert_ok(caid_bracket_end(bracket, &error));
    caid_bracket_free(bracket);
    return NULL;
}

/* The work before it ends in the memory that it was for; copies and brackets wait for it. */
EXCHANGE_TEST(waits_for_the_context_and_holds_others_off)
{
    _Atomic uint64_t *gate = gpu_gate_new(&f.gpu);
    CUstream late = gpu_stream_new(&f.gpu);
    struct copying copying = {.array = old.v[0], .with = OLD + 2}, enqueuing = {0};
    struct copying beginning = {.array = old.v[1]};
    pthread_t threads[4];
    _Atomic int r = 0;

    gpu_wait_at(&f.gpu, gate, late);
    assert_cuda(f.gpu.drv->cu.cuMemsetD8Async(old.at, OLD + 1, SIZE, late));
    pthread_create(&threads[0], NULL, exchange_there, (void *)&r);
    threads_wait();
    pthread_create(&threads[1], NULL, copy_there, &copying);
    pthread_create(&threads[2], NULL, begin_there, &beginning);
    pthread_create(&threads[3], NULL, enqueue_there, &enqueuing);
    for (int i = 0; i < 10; i++) {
        usleep(LATE_NS / 1000);
        cr_assert(r == 0 && !copying.done && !beginning.done && !enqueuing.done);
    }
    *gate = 1;
    for (size_t i = 0; i < ARRAY_SIZE(threads); i++)
        pthread_join(threads[i], NULL);
    cr_assert_eq(r, 1);
    cr_assert(copying.done && beginning.done && enqueuing.done);
    assert_holds(old.v[0], OLD + 2);
    assert_holds(new.v[0], NEW + 1);
    cr_assert_eq(byte_at(old.at), NEW + 1);
    assert_cuda(f.gpu.drv->cu.cuStreamDestroy(late));
    gpu_gate_free(&f.gpu, gate);
}

/* ---- what is refused ---- */

EXCHANGE_TEST(others_are_open)
{
    struct caid_array *more = must_open("old", "r");
    assert_failed(exchange(), CAID_ERR_INVALID);
    caid_array_close(more);
    more = must_open("new.part", "rw");
    assert_failed(exchange(), CAID_ERR_INVALID);
    caid_array_close(more);
    assert_failed(caid_exchange(f.client, old.v, 1, new.v, 2, NULL, 0, &error),
                  CAID_ERR_INVALID);
    assert_failed(caid_exchange(f.client, old.v, 2, new.v, 1, NULL, 0, &error),
                  CAID_ERR_INVALID);
    assert_as_before();
    more = must_open("new.part", "rw"); /* what is closed does not count */
    caid_array_close(more);
    assert_ok(exchange());
    assert_at(new.at, old.at);
}

EXCHANGE_TEST(one_is_in_a_bracket)
{
    struct caid_array *const used[] = {old.v[0], old.v[1], new.v[0], new.v[1]};
    struct caid_bracket *bracket;

    for (size_t i = 0; i < ARRAY_SIZE(used); i++) {
        assert_ok(caid_array_begin(used[i], &bracket, i % 2 ? 0 : CAID_BRACKET_WRITE, 0,
                                   CAID_FOREVER, &error));
        assert_failed(exchange(), CAID_ERR_INVALID);
        assert_ok(caid_bracket_end(bracket, &error));
        caid_bracket_free(bracket);
    }
    assert_as_before();
    assert_ok(exchange());
}

EXCHANGE_TEST(blocks_that_are_not_alike)
{
    const int64_t none = 0, some = SIZE;
    struct caid_array *array = make_block(NULL, SIZE + 2 * MIB, 1),
                      *mixed[] = {old.v[0], new.v[0]};
    struct caid_client *other = daemon_connect(&f.daemon);
    struct caid_array *empty = NULL, *pinned = NULL;

    assert_failed(caid_exchange(f.client, old.v, 2, &array, 1, NULL, 0, &error),
                  CAID_ERR_INVALID);
    assert_failed(caid_exchange(f.client, old.v, 2, mixed, 2, NULL, 0, &error),
                  CAID_ERR_INVALID);
    assert_failed(caid_exchange(f.client, old.v, 1, &old.v[1], 1, NULL, 0, &error),
                  CAID_ERR_INVALID);
    assert_failed(caid_exchange(f.client, old.v, 2, NULL, 0, NULL, 0, &error),
                  CAID_ERR_INVALID);
    assert_failed(caid_exchange(f.client, NULL, 1, new.v, 2, NULL, 0, &error),
                  CAID_ERR_INVALID);
    assert_failed(caid_exchange(f.client, old.v, 2, new.v, 2, NULL, 1, &error),
                  CAID_ERR_INVALID);
    assert_failed(caid_exchange(other, old.v, 2, new.v, 2, NULL, 0, &error), CAID_ERR_INVALID);
    assert_failed(caid_exchange(NULL, old.v, 2, new.v, 2, NULL, 0, &error), CAID_ERR_INVALID);
    caid_array_close(array);
    caid_client_close(other);

    OPTIONS(caid_create_options, of_host, .typestr = "|u1", .shape = &some, .ndim = 1,
            .memory = "pinned");
    assert_ok(caid_array_create(f.client, &pinned, &of_host, &error));
    assert_failed(caid_exchange(f.client, old.v, 2, &pinned, 1, NULL, 0, &error),
                  CAID_ERR_UNSUPPORTED);
    OPTIONS(caid_create_options, of_none, .typestr = "|u1", .shape = &none, .ndim = 1);
    assert_ok(caid_array_create(f.client, &empty, &of_none, &error));
    assert_failed(caid_exchange(f.client, old.v, 2, &empty, 1, NULL, 0, &error),
                  CAID_ERR_INVALID);
    caid_array_close(pinned);
    assert_as_before();
    struct caid_array *to[] = {empty, new.v[0], new.v[1]}; /* it does not count */
    assert_ok(caid_exchange(f.client, old.v, 2, to, 3, NULL, 0, &error));
    assert_at(new.at, old.at);
    caid_array_close(empty);
}

EXCHANGE_TEST(modes_that_differ)
{
    close_pair(&new);
    wait_for_leases(f.client, 2);
    new.v[0] = must_open("new", "r");
    assert_failed(caid_exchange(f.client, old.v, 2, new.v, 1, NULL, 0, &error),
                  CAID_ERR_INVALID);
    assert_holds(old.v[0], OLD);
    assert_holds(new.v[0], NEW);
}

EXCHANGE_TEST(what_is_unmapped)
{
    assert_ok(caid_unmap_many(old.v, 2, &error));
    assert_failed(exchange(), CAID_ERR_INVALID);
    assert_failed(caid_exchange(f.client, new.v, 2, old.v, 2, NULL, 0, &error),
                  CAID_ERR_INVALID);
    assert_ok(caid_map_many(old.v, 2, &error));
    assert_as_before();
    assert_ok(exchange());
}

/* The capture goes on. */
EXCHANGE_TEST(a_stream_captures)
{
    const CUstreamCaptureMode modes[] = {CU_STREAM_CAPTURE_MODE_GLOBAL,
                                         CU_STREAM_CAPTURE_MODE_THREAD_LOCAL,
                                         CU_STREAM_CAPTURE_MODE_RELAXED};
    CUstream blocking = stream_new(CU_STREAM_DEFAULT),
             free = stream_new(CU_STREAM_NON_BLOCKING);
    const uint64_t streams[] = {1, 2, (uint64_t)(uintptr_t)free};

    for (size_t i = 0; i < ARRAY_SIZE(modes); i++) {
        gpu_capture_begin(&f.gpu, blocking, modes[i]);
        assert_failed(exchange(), CAID_ERR_INVALID);
        cr_assert(gpu_capture_end(&f.gpu, blocking));
        gpu_capture_begin(&f.gpu, free, modes[i]);
        assert_failed(exchange_on(streams, 3), CAID_ERR_INVALID);
        cr_assert(gpu_capture_end(&f.gpu, free));
        assert_as_before();
    }
    gpu_capture_begin(&f.gpu, free, CU_STREAM_CAPTURE_MODE_RELAXED);
    assert_failed(exchange(), CAID_ERR_INVALID); /* nobody told of it */
    cr_assert(!gpu_capture_end(&f.gpu, free));
    assert_as_before();
    assert_ok(exchange_on(streams, 3));
    assert_cuda(f.gpu.drv->cu.cuStreamDestroy(blocking));
    assert_cuda(f.gpu.drv->cu.cuStreamDestroy(free));
}

EXCHANGE_TEST(in_a_child)
{
    pid_t pid = fork();
    if (pid == 0) {
        int r = exchange();
        _exit(r < 0 && error.code == CAID_ERR_FORKED ? 0 : 1);
    }
    cr_assert_eq(process_wait(pid), 0);
    assert_as_before();
}

/* ---- what the driver refuses ---- */

static const char *const functions[] = {"cuStreamIsCapturing",
                                        "cuCtxPushCurrent",
                                        "cuCtxSynchronize",
                                        "cuMemUnmap",
                                        "cuMemMap",
                                        "cuMemSetAccess"};

/* Each call on the way fails once. */
SOFT_TEST(a_driver_call_fails)
{
    char command[96];

    for (size_t i = 0; i < ARRAY_SIZE(functions); i++) {
        int n = 1;
        for (;; n++) {
            cr_assert_lt(n, 10);
            snprintf(command, sizeof(command), "fail %s@%d=UNKNOWN", functions[i], n);
            soft_control(&f.gpu, command);
            int r = exchange();
            soft_control(&f.gpu, "clear");
            if (r == 0)
                break;
            cr_assert_eq(error.code, CAID_ERR_DRIVER, "%s: %s", command, error.message);
            assert_as_before();
        }
        cr_assert_gt(n, strncmp(functions[i], "cuMem", 5) == 0 ? 2 : 1, "%s", functions[i]);
        assert_at(new.at, old.at);
        assert_ok(exchange());
    }
}

static void
assert_unmapped(void)
{
    unsigned char byte[100];

    for (size_t i = 0; i < 2; i++) {
        cr_assert(!caid_array_is_mapped(old.v[i]));
        cr_assert(!caid_array_is_mapped(new.v[i]));
    }
    assert_failed(caid_array_copy_to_host(old.v[1], byte, sizeof(byte), &error),
                  CAID_ERR_CLOSED);
    assert_failed(caid_array_copy_from_host(new.v[1], byte, sizeof(byte), &error),
                  CAID_ERR_CLOSED);
    assert_failed(exchange(), CAID_ERR_INVALID);
}

/* Neither can be mapped again: both have their addresses, until they can. */
SOFT_TEST(all_mapping_fails)
{
    const char *const commands[] = {"fail cuMemMap=OUT_OF_MEMORY",
                                    "fail cuMemMap@2+=OUT_OF_MEMORY",
                                    "fail cuMemSetAccess=OUT_OF_MEMORY"};

    for (size_t i = 0; i < ARRAY_SIZE(commands); i++) {
        soft_control(&f.gpu, commands[i]);
        assert_failed(exchange(), CAID_ERR_NO_MEMORY);
        assert_unmapped();
        soft_control(&f.gpu, "clear");
        cr_assert_eq(soft_live(&f.gpu, "reservations"), 2);
        assert_ok(caid_map_many(old.v, 2, &error));
        assert_ok(caid_map_many(new.v, 2, &error));
        assert_as_before();
    }
}

/* What is at another's address cannot be taken away from there: nobody is to use it. */
SOFT_TEST(neither_mapping_nor_unmapping_works)
{
    soft_control(&f.gpu, "fail cuMemMap@2+=OUT_OF_MEMORY,cuMemUnmap@3+=UNKNOWN");
    assert_failed(exchange(), CAID_ERR_NO_MEMORY);
    soft_control(&f.gpu, "clear");
    assert_unmapped();
}
