/* SPDX-License-Identifier: Apache-2.0 */
/* Arrays: their life, what they say of themselves, and what is refused. */
#include <errno.h>
#include <stdio.h>
#include <string.h>
#include <sys/wait.h>
#include <unistd.h>

#include "client_fixture.h"
#include "process.h"

FIXTURE_TEST(array, says_what_it_is)
{
    const int64_t shape[] = {3, 4, 5};
    const struct caid_array_info *info;
    struct caid_array *array;

    OPTIONS(caid_create_options, options, .name = "weights", .typestr = "<f4", .shape = shape,
            .ndim = 3);
    assert_ok(caid_array_create(f.client, &array, &options, &error));
    info = caid_array_get_info(array);
    cr_assert(info->ptr != 0 && info->block != 0);
    cr_assert_eq(info->nbytes, 240);
    cr_assert_eq(info->itemsize, 4);
    cr_assert_eq(info->ndim, 3);
    cr_assert_eq(info->device, 0);
    cr_assert_eq(memcmp(info->shape, shape, sizeof(shape)), 0);
    cr_assert(info->strides[0] == 80 && info->strides[1] == 20 && info->strides[2] == 4);
    cr_assert_str_eq(info->typestr, "<f4");
    cr_assert_str_eq(info->name, "weights");
    cr_assert(info->pool[0] && !info->descr && !info->readonly);

    struct caid_array *again = must_open("weights", NULL);
    cr_assert(caid_array_get_info(again)->readonly);
    cr_assert_eq(caid_array_get_info(again)->block, info->block);
    cr_assert_eq(caid_array_get_info(again)->generation, info->generation);
    cr_assert_neq(caid_array_get_info(again)->ptr, info->ptr, "a mapping of its own");
    wait_for_leases(f.client, 2);
    caid_array_close(array);
    caid_array_close(again);
    wait_for_leases(f.client, 0);
}

/* However many leases there are in a block, it is mapped once for each mode. */
FIXTURE_TEST(array, shares_the_mapping_of_its_block)
{
    struct caid_array *a = make_bytes(f.client, "a", 100);
    OWNED struct caid_array *w = must_open("a", "rw");
    struct caid_array *r = must_open("a", "r"), *r2 = must_open("a", "r");
    cr_assert_eq(caid_array_get_info(w)->ptr, caid_array_get_info(a)->ptr);
    cr_assert_eq(caid_array_get_info(r2)->ptr, caid_array_get_info(r)->ptr);
    caid_array_close(a);
    caid_array_close(r);
    assert_ok(caid_array_copy_from_host(w, (char[100]){1}, 100, &error));
    caid_array_close(r2);
}

FIXTURE_TEST(array, exclusive_has_a_block_of_its_own)
{
    const int64_t n = 100;
    struct caid_array *array;

    OWNED struct caid_array *other = make_bytes(f.client, NULL, n);
    OPTIONS(caid_create_options, options, .typestr = "|u1", .shape = &n, .ndim = 1,
            .flags = CAID_ARRAY_EXCLUSIVE);
    assert_ok(caid_array_create(f.client, &array, &options, &error));
    cr_assert_neq(caid_array_get_info(array)->block, caid_array_get_info(other)->block);
    cr_assert_null(caid_array_get_info(array)->name);
    caid_array_close(array);
}

FIXTURE_TEST(array, of_no_bytes_has_no_memory)
{
    const struct caid_array_info *info;

    OWNED struct caid_array *array = make_bytes(f.client, "none", 0);
    info = caid_array_get_info(array);
    cr_assert(info->ptr == 0 && info->block == 0 && info->nbytes == 0 && info->ndim == 1);
    assert_ok(caid_array_copy_to_host(array, NULL, 0, &error));
    assert_ok(caid_array_copy_from_host(array, NULL, 0, &error));
}

FIXTURE_TEST(array, of_no_dimensions_has_one_element)
{
    struct caid_array *array;
    double value = 2.5, back = 0;

    OPTIONS(caid_create_options, options, .typestr = "<f8");
    assert_ok(caid_array_create(f.client, &array, &options, &error));
    cr_assert(caid_array_get_info(array)->ndim == 0 && caid_array_get_info(array)->nbytes == 8);
    assert_ok(caid_array_copy_from_host(array, &value, 8, &error));
    assert_ok(caid_array_copy_to_host(array, &back, 8, &error));
    cr_assert_eq(back, value);
    caid_array_close(array);
}

FIXTURE_TEST(array, structured_and_strided)
{
    static const char descr[] = "[[\"x\", \"<f4\"], [\"y\", \"<i8\"]]";
    const int64_t shape[] = {2, 3}, strides[] = {12, 24};
    const struct caid_array_info *info;
    struct caid_array *array;

    OPTIONS(caid_create_options, options, .typestr = "|V12", .descr = descr, .shape = shape,
            .strides = strides, .ndim = 2);
    assert_ok(caid_array_create(f.client, &array, &options, &error));
    info = caid_array_get_info(array);
    cr_assert_str_eq(info->descr, descr);
    cr_assert_eq(info->itemsize, 12);
    cr_assert_eq(memcmp(info->strides, strides, sizeof(strides)), 0);
    caid_array_close(array);
}

FIXTURE_TEST(array, read_only)
{
    char bytes[16] = {0};

    OWNED struct caid_array *w = make_bytes(f.client, "x", sizeof(bytes));
    OWNED struct caid_array *r = must_open("x", "r");
    assert_ok(caid_array_copy_from_host(w, "0123456789abcdef", 16, &error));
    assert_failed(caid_array_copy_from_host(r, bytes, 16, &error), CAID_ERR_READ_ONLY);
    cr_assert_eq(caid_array_copy_from_host(r, bytes, 16, NULL), -EROFS);
    assert_ok(caid_array_copy_to_host(r, bytes, 16, &error));
    cr_assert_eq(memcmp(bytes, "0123456789abcdef", 16), 0);

    /* The mapping itself refuses, too, to whoever goes around the check. */
    const int64_t n = 16;
    OPTIONS(caid_copy, copy, .dst = caid_array_get_info(r)->ptr, .src = (uintptr_t)bytes,
            .src_on_host = true, .shape = &n, .ndim = 1, .itemsize = 1);
    assert_failed(caid_copy(f.client, &copy, &error), CAID_ERR_DRIVER);
    cr_assert_neq(error.cuda_result, 0);
}

FIXTURE_TEST(array, what_is_refused)
{
    struct caid_create_options good = CAID_INIT(good), bad;
    const int64_t shape[33] = {4};
    const int64_t negative = -1;
    struct caid_array *array = NULL;
    static char too_long[4098];
    char name[300];

    memset(too_long, 'm', sizeof(too_long) - 1);
    good.typestr = "<f4";
    good.shape = shape;
    good.ndim = 1;
    memset(name, 'n', sizeof(name));
    name[256] = 0;

#define REFUSED(code, ...)                                                      \
    do {                                                                        \
        bad = good;                                                             \
        __VA_ARGS__;                                                            \
        assert_failed(caid_array_create(f.client, &array, &bad, &error), code); \
    } while (0)
    REFUSED(CAID_ERR_INVALID, bad.struct_size = 0);
    REFUSED(CAID_ERR_INVALID, bad.typestr = NULL);
    REFUSED(CAID_ERR_INVALID, bad.typestr = "<q4");
    REFUSED(CAID_ERR_INVALID, bad.typestr = "\xff");
    REFUSED(CAID_ERR_INVALID, bad.shape = NULL);
    REFUSED(CAID_ERR_INVALID, bad.shape = &negative);
    REFUSED(CAID_ERR_INVALID, bad.ndim = 33);
    REFUSED(CAID_ERR_INVALID, bad.flags = 4);
    REFUSED(CAID_ERR_INVALID, bad.flags = CAID_ARRAY_ATTACH_HOST);
    REFUSED(CAID_ERR_INVALID, bad.alignment = 3);
    REFUSED(CAID_ERR_INVALID, bad.alignment = 4 << 20);
    REFUSED(CAID_ERR_INVALID, bad.memory = "video");
    REFUSED(CAID_ERR_INVALID, bad.memory = "\xff");
    REFUSED(CAID_ERR_INVALID, bad.metadata = "\xff");
    REFUSED(CAID_ERR_INVALID, bad.metadata = too_long);
    REFUSED(CAID_ERR_INVALID, bad.strides = &negative);
    REFUSED(CAID_ERR_INVALID, bad.descr = "\xc3");
    REFUSED(CAID_ERR_DEVICE, bad.device = -1);
    REFUSED(CAID_ERR_DEVICE, bad.device = 1000);
    REFUSED(CAID_ERR_INVALID_NAME, bad.name = "");
    REFUSED(CAID_ERR_INVALID_NAME, bad.name = name);
    REFUSED(CAID_ERR_INVALID_NAME, bad.name = "tab\t");
    REFUSED(CAID_ERR_INVALID_NAME, bad.name = "\xed\xa0\x80");
    REFUSED(CAID_ERR_INVALID_NAME, bad.pool = name);
    REFUSED(CAID_ERR_INVALID_NAME, bad.pool = "\xff");
    REFUSED(CAID_ERR_NOT_FOUND, bad.pool = "no-such-pool");
#undef REFUSED
    assert_failed(caid_array_create(f.client, &array, NULL, &error), CAID_ERR_INVALID);
    assert_failed(caid_array_create(f.client, NULL, &good, &error), CAID_ERR_INVALID);
    cr_assert_null(array, "nothing is written on failure");

    /* None of it has cost the connection. */
    assert_ok(caid_client_ping(f.client, &error));
    wait_for_leases(f.client, 0);
}

FIXTURE_TEST(array, names_are_exclusive)
{
    struct caid_array *other = NULL;

    OWNED struct caid_array *array = make_bytes(f.client, "x", 1);
    OPTIONS(caid_create_options, options, .name = "x", .typestr = "|u1");
    assert_failed(caid_array_create(f.client, &other, &options, &error), CAID_ERR_EXISTS);
    assert_failed(caid_array_open(f.client, &other, "y", NULL, &error), CAID_ERR_NOT_FOUND);
    cr_assert(strstr(error.message, "y"));
    assert_failed(caid_array_open(f.client, &other, NULL, NULL, &error), CAID_ERR_INVALID_NAME);
    assert_failed(caid_array_open(f.client, NULL, "x", NULL, &error), CAID_ERR_INVALID);
    OPTIONS(caid_open_options, mode, .mode = "w");
    assert_failed(caid_array_open(f.client, &other, "x", &mode, &error), CAID_ERR_INVALID);
    cr_assert(strstr(error.message, "mode \"w\""));
    cr_assert_null(other);
}

FIXTURE_TEST(array, more_than_the_device_has)
{
    const int64_t n = INT64_C(1) << 46;
    struct caid_array *array;

    OPTIONS(caid_create_options, options, .typestr = "|u1", .shape = &n, .ndim = 1);
    assert_failed(caid_array_create(f.client, &array, &options, &error), CAID_ERR_NO_MEMORY);
}

/* This process's driver has another device than the daemon's. */
static void
another_device(void)
{
    setenv("CAID_SOFTCUDA_UUID", "GPU-00000000-0000-0000-0000-000000000007", 1);
    driver_warm_up();
    unsetenv("CAID_SOFTCUDA_UUID");
}

/* It is reached from the first device that is visible, over the peer link; asked for by its
 * name it is an error. */
CAID_TEST_WITH(array, on_a_device_that_is_not_visible, .init = another_device, .timeout = 120)
{
    const struct caid_array_info *info;
    const struct caid_device *const *devices;
    struct caid_array *other = NULL;
    char bytes[8];

    if (strcmp(getenv("CAID_CUDA_DRIVER"), "soft") != 0)
        return; /* the real driver's devices are what they are */
    begin();
    struct caid_array *array = make_bytes(f.client, "x", 8);
    info = caid_array_get_info(array);
    cr_assert(info->device == 0 && info->mapped_ordinal == 0 && info->mapped_device == -1);
    assert_ok(caid_array_copy_from_host(array, "far away", 8, &error));
    assert_ok(caid_array_copy_to_host(array, bytes, 8, &error));
    cr_assert_eq(memcmp(bytes, "far away", 8), 0);

    caid_client_devices(f.client, &devices);
    OPTIONS(caid_open_options, options, .device_uuid = devices[0]->uuid);
    assert_failed(caid_array_open(f.client, &other, "x", &options, &error), CAID_ERR_DEVICE);
    cr_assert_null(other);
    cr_assert(strstr(error.message, devices[0]->uuid), "%s", error.message);
    cr_assert(strstr(error.message, "CUDA_VISIBLE_DEVICES"), "%s", error.message);
    options.device_uuid = "GPU-00000000-0000-0000-0000-000000000007";
    assert_ok(caid_array_open(f.client, &other, "x", &options, &error));
    caid_array_close(other);
    caid_array_close(array);
    wait_for_leases(f.client, 0);
    end();
}

FIXTURE_TEST(array, a_named_one_outlives_its_creator)
{
    char bytes[8];

    struct caid_array *array = make_bytes(f.client, "x", 8);
    assert_ok(caid_array_copy_from_host(array, "lasting!", 8, &error));
    caid_array_close(array);
    caid_client_close(f.client);
    f.client = daemon_connect(&f.daemon);
    array = must_open("x", "r");
    assert_ok(caid_array_copy_to_host(array, bytes, 8, &error));
    cr_assert_eq(memcmp(bytes, "lasting!", 8), 0);
    caid_array_close(array);
}

/* ---- many at once ---- */

#define N_MANY 2500 /* more than one request holds */

FIXTURE_TEST(array, open_many)
{
    static const char *names[N_MANY];
    static struct caid_array *arrays[N_MANY];

    OWNED struct caid_array *a = make_bytes(f.client, "a", 10),
                            *b = make_bytes(f.client, "b", 10);
    for (size_t i = 0; i < N_MANY; i++)
        names[i] = i % 2 ? "b" : "a";
    assert_ok(caid_array_open_many(f.client, arrays, names, N_MANY, NULL, &error));
    wait_for_leases(f.client, N_MANY + 2);
    for (size_t i = 0; i < N_MANY; i++) {
        cr_assert_str_eq(caid_array_get_info(arrays[i])->name, names[i]);
        caid_array_close(arrays[i]);
    }
    wait_for_leases(f.client, 2);
    assert_ok(caid_array_open_many(f.client, NULL, NULL, 0, NULL, &error));
}

FIXTURE_TEST(array, open_many_is_all_or_nothing)
{
    static const char *names[N_MANY];
    static struct caid_array *arrays[N_MANY];

    OWNED struct caid_array *a = make_bytes(f.client, "a", 10);
    for (size_t i = 0; i < N_MANY; i++)
        names[i] = i == N_MANY - 1 ? "missing" : "a";
    assert_failed(caid_array_open_many(f.client, arrays, names, N_MANY, NULL, &error),
                  CAID_ERR_NOT_FOUND);
    cr_assert(strstr(error.message, "missing"), "%s", error.message);
    cr_assert_null(arrays[0]);
    wait_for_leases(f.client, 1);

    names[5] = NULL;
    assert_failed(caid_array_open_many(f.client, arrays, names, N_MANY, NULL, &error),
                  CAID_ERR_INVALID_NAME);
    assert_failed(caid_array_open_many(f.client, NULL, names, 1, NULL, &error),
                  CAID_ERR_INVALID);
}

/* ---- other processes ---- */

FIXTURE_TEST(array, other_processes_see_the_same_bytes)
{
    static char bytes[100000];

    OWNED struct caid_array *array = make_bytes(f.client, "shared", sizeof(bytes));
    memset(bytes, 7, sizeof(bytes));
    assert_ok(caid_array_copy_from_host(array, bytes, sizeof(bytes), &error));
    cr_assert_eq(process_run("peer", f.daemon.socket, "shared", "7", "8", NULL), 0);
    cr_assert_eq(process_run("peer", f.daemon.socket, "shared", "8", "9", NULL), 0);
    cr_assert_eq(process_run("peer", f.daemon.socket, "shared", "8", "9", NULL), 1,
                 "the peer does look");
    assert_ok(caid_array_copy_to_host(array, bytes, sizeof(bytes), &error));
    for (size_t i = 0; i < sizeof(bytes); i++)
        cr_assert_eq(bytes[i], 9);
}

/* ---- the end of the connection ---- */

static void
assert_still_there(struct caid_array *array)
{
    char bytes[8];

    assert_ok(caid_array_copy_from_host(array, "remains!", 8, &error));
    assert_ok(caid_array_copy_to_host(array, bytes, 8, &error));
    cr_assert_eq(memcmp(bytes, "remains!", 8), 0);
}

FIXTURE_TEST(array, outlives_the_client)
{
    OWNED struct caid_array *array = make_bytes(f.client, "x", 8);
    caid_client_close(f.client);
    assert_still_there(array);
    f.client = daemon_connect(&f.daemon);
    wait_for_leases(f.client, 0);
}

FIXTURE_TEST(array, outlives_the_daemon)
{
    struct caid_array *other = NULL;

    OWNED struct caid_array *array = make_bytes(f.client, "x", 8);
    daemon_end(&f.daemon, SIGKILL);
    assert_failed(caid_array_open(f.client, &other, "x", NULL, &error), CAID_ERR_DISCONNECTED);
    assert_still_there(array);
}

/* Closing does not wait for a daemon that does not read; what was closed is told later. */
FIXTURE_TEST(array, close_never_blocks)
{
    static const char *names[N_MANY];
    static struct caid_array *arrays[N_MANY];

    OWNED struct caid_array *a = make_bytes(f.client, "a", 10);
    for (size_t i = 0; i < N_MANY; i++)
        names[i] = "a";
    assert_ok(caid_array_open_many(f.client, arrays, names, N_MANY, NULL, &error));
    kill(f.daemon.pid, SIGSTOP);
    for (size_t i = 0; i < N_MANY; i++)
        caid_array_close(arrays[i]);
    kill(f.daemon.pid, SIGCONT);
    wait_for_leases(f.client, 1);
}

/* ---- fork ---- */

/* Exits with the number of the first check that failed. */
static void
child(struct caid_array *array)
{
    struct caid_status status = CAID_INIT(status);
    struct caid_array *other;
    char bytes[8];
    int r[] = {
        caid_client_ping(f.client, NULL),
        caid_client_status(f.client, &status, NULL),
        caid_client_dispatch(f.client, NULL),
        caid_array_open(f.client, &other, "x", NULL, NULL),
        caid_unlink(f.client, "x", NULL, NULL),
        caid_array_copy_to_host(array, bytes, 8, NULL),
        caid_array_copy_from_host(array, bytes, 8, NULL),
        caid_client_get_fd(f.client),
    };

    for (int i = 0; i < (int)(sizeof(r) / sizeof(r[0])); i++)
        if (r[i] != -EPERM)
            _exit(i + 1);
    caid_client_ping(f.client, &error);
    if (error.code != CAID_ERR_FORKED)
        _exit(50);
    caid_array_close(array);
    caid_client_close(f.client);
    _exit(0);
}

FIXTURE_TEST(array, refuses_use_after_fork)
{
    struct caid_array *array = make_bytes(f.client, "x", 8);
    pid_t pid = fork();
    if (pid == 0)
        child(array);
    cr_assert_eq(process_wait(pid), 0);

    /* What the child did has not touched what is ours. */
    assert_still_there(array);
    wait_for_leases(f.client, 1);
    caid_array_close(array);
    wait_for_leases(f.client, 0);
}
