/* SPDX-License-Identifier: Apache-2.0 */
/*
 * Driver calls that fail, one after the other, while an array is being mapped: each is an error
 * with a code; nothing is left mapped or leased; and the next try works.
 */
#include <stdio.h>
#include <string.h>
#include <sys/mman.h>
#include <unistd.h>

#include "base/macros.h"
#include "client_fixture.h"

#define MIB (INT64_C(1) << 20)

#define FAULT_TEST(name)                                                           \
    CAID_TEST_BETWEEN(faults, name, begin_with_gpu(), end(), .init = soft_warm_up, \
                      .timeout = 120)

static int
try_create(const char *memory, struct caid_array **ret)
{
    const int64_t n = MIB;

    OPTIONS(caid_create_options, options, .memory = memory, .typestr = "|u1", .shape = &n,
            .ndim = 1);
    return caid_array_create(f.client, ret, &options, &error);
}

static void
assert_nothing_is_left(void)
{
    const char *const kinds[] = {"mappings", "reservations", "registrations", "opened",
                                 "managed_allocations"};

    wait_for_leases(f.client, 0);
    caid_client_close(f.client);
    for (size_t i = 0; i < ARRAY_SIZE(kinds); i++)
        cr_assert_eq(soft_live(&f.gpu, kinds[i]), 0, "%s", kinds[i]);
    f.client = daemon_connect(&f.daemon);
}

static const struct {
    const char *memory, *function, *result;
    int32_t code;
} faults[] = {
    {"device", "cuMemAddressReserve", "OUT_OF_MEMORY", CAID_ERR_NO_MEMORY},
    {"device", "cuMemMap", "OUT_OF_MEMORY", CAID_ERR_NO_MEMORY},
    {"device", "cuMemSetAccess", "UNKNOWN", CAID_ERR_DRIVER},
    {"device", "cuMemSetAccess", "NOT_SUPPORTED", CAID_ERR_UNSUPPORTED},
    {"device", "cuMemImportFromShareableHandle", "OPERATING_SYSTEM", CAID_ERR_DRIVER},
    {"legacy", "cuIpcOpenMemHandle", "MAP_FAILED", CAID_ERR_DRIVER},
    {"legacy", "cuCtxPushCurrent", "UNKNOWN", CAID_ERR_DRIVER},
    {"pinned", "cuMemHostRegister", "OUT_OF_MEMORY", CAID_ERR_NO_MEMORY},
    {"pinned", "cuMemHostRegister", "NOT_SUPPORTED", CAID_ERR_UNSUPPORTED},
    {"pinned", "cuMemHostGetDevicePointer", "UNKNOWN", CAID_ERR_DRIVER},
    {"managed", "cuMemAllocManaged", "OUT_OF_MEMORY", CAID_ERR_NO_MEMORY},
};

FAULT_TEST(while_mapping)
{
    struct caid_array *array = NULL;
    char command[128];

    for (size_t i = 0; i < ARRAY_SIZE(faults); i++) {
        snprintf(command, sizeof(command), "fail %s=%s", faults[i].function, faults[i].result);
        soft_control(&f.gpu, command);
        int r = try_create(faults[i].memory, &array);
        cr_assert_lt(r, 0, "%s", command);
        cr_assert_eq(error.code, faults[i].code, "%s: %d: %s", command, error.code,
                     error.message);
        cr_assert(strstr(error.message, faults[i].function), "%s", error.message);
        cr_assert_neq(error.cuda_result, 0);
        cr_assert_null(array);
        soft_control(&f.gpu, "clear");
        assert_nothing_is_left();

        assert_ok(try_create(faults[i].memory, &array));
        caid_array_close(array);
        array = NULL;
        assert_nothing_is_left();
    }
}

/* The first mapping stays when the second fails, and open_many gives everything back. */
FAULT_TEST(half_way)
{
    const char *const names[] = {"a", "b", "a"};
    struct caid_array *opened[3] = {0}, *pinned = NULL;

    struct caid_array *a = make_bytes(f.client, "a", MIB);
    struct caid_array *b = make_bytes(f.client, "b", 40 * MIB); /* in a block of its own */
    soft_control(&f.gpu, "fail cuMemMap@2=OUT_OF_MEMORY");
    assert_failed(caid_array_open_many(f.client, opened, names, 3, NULL, &error),
                  CAID_ERR_NO_MEMORY);
    cr_assert_null(opened[0]);
    soft_control(&f.gpu, "clear");
    wait_for_leases(f.client, 2);
    assert_ok(caid_array_open_many(f.client, opened, names, 3, NULL, &error));
    for (int i = 0; i < 3; i++)
        caid_array_close(opened[i]);
    assert_ok(caid_array_copy_from_host(a, (char[MIB]){1}, MIB, &error));
    caid_array_close(a);
    caid_array_close(b);

    assert_ok(try_create("pinned", &pinned));
    assert_ok(caid_array_publish(pinned, "p", NULL, NULL, &error));
    soft_control(&f.gpu, "fail cuMemHostRegister=UNKNOWN");
    OPTIONS(caid_open_options, options, .mode = "r");
    assert_failed(caid_array_open(f.client, opened, "p", &options, &error), CAID_ERR_DRIVER);
    soft_control(&f.gpu, "clear");
    memset(caid_array_get_info(pinned)->host_ptr, 1, MIB);
    assert_ok(caid_array_open(f.client, opened, "p", &options, &error));
    caid_array_close(opened[0]);
    caid_array_close(pinned);
    assert_nothing_is_left();
}

/* What fails while it is given back is given back all the same. */
FAULT_TEST(while_closing)
{
    const char *const commands[] = {"fail cuCtxSynchronize=late:LAUNCH_FAILED",
                                    "fail cuMemRelease=late:UNKNOWN",
                                    "fail cuDevicePrimaryCtxGetState=UNKNOWN",
                                    "fail cuIpcCloseMemHandle=late:UNKNOWN"};

    for (size_t i = 0; i < ARRAY_SIZE(commands); i++) {
        struct caid_array *device, *legacy;
        assert_ok(try_create("device", &device));
        assert_ok(try_create("legacy", &legacy));
        soft_control(&f.gpu, commands[i]);
        caid_array_close(device);
        caid_array_close(legacy);
        wait_for_leases(f.client, 0);
        soft_control(&f.gpu, "clear");
    }
    caid_client_close(f.client);
    cr_assert_eq(soft_live(&f.gpu, "mappings"), 0);
    f.client = daemon_connect(&f.daemon);
}

/* Who cannot be told that the work has drained keeps the memory, and the daemon does, too. No
 * CAID_TEST: what is kept is what that looks for. */
Test(faults, what_may_be_in_use_is_kept, .init = soft_warm_up, .timeout = 120)
{
    const char *const commands[] = {"fail cuCtxSynchronize=OUT_OF_MEMORY",
                                    "fail cuCtxPushCurrent=UNKNOWN"};
    const char *const memory[] = {"device", "legacy", "pinned", "managed"};
    struct caid_array *arrays[4], *other;

    begin_with_gpu();
    for (size_t i = 0; i < ARRAY_SIZE(commands); i++) {
        for (size_t j = 0; j < 4; j++)
            assert_ok(try_create(memory[j], &arrays[j]));
        soft_control(&f.gpu, commands[i]);
        for (size_t j = 0; j < 4; j++)
            caid_array_close(arrays[j]);
        caid_client_close(f.client);
        soft_control(&f.gpu, "clear");
        cr_assert_eq(soft_live(&f.gpu, "mappings"), i + 1);
        cr_assert_gt(soft_live(&f.gpu, "opened"), 0); /* the same block each time */
        cr_assert_eq(soft_live(&f.gpu, "registrations"), i + 1);
        cr_assert_eq(soft_live(&f.gpu, "managed_allocations"), i + 1);

        f.client = daemon_connect(&f.daemon);
        cr_assert_eq(status_of(f.client).arrays, 3 * (i + 1), "given to nobody");
        assert_ok(try_create("device", &other));
        caid_array_close(other);
        wait_for_leases(f.client, 0);
    }
    end();
}

/* A range that the driver still knows as registered is not given to the next mapping. */
Test(faults, what_is_registered_stays_mapped, .init = soft_warm_up, .timeout = 120)
{
    struct caid_array *array;
    unsigned char resident;

    begin_with_gpu();
    assert_ok(try_create("pinned", &array));
    uintptr_t at = (uintptr_t)caid_array_get_info(array)->host_ptr;
    caid_array_close(array);
    soft_control(&f.gpu, "fail cuMemHostUnregister=UNKNOWN");
    caid_client_close(f.client);
    soft_control(&f.gpu, "clear");
    cr_assert_eq(soft_live(&f.gpu, "registrations"), 1);
    at -= at % (uintptr_t)sysconf(_SC_PAGESIZE);
    cr_assert_eq(mincore((void *)at, 1, &resident), 0, "%m");
    f.client = daemon_connect(&f.daemon);
    end();
}

/* ---- a create that is granted and cannot be mapped ---- */

static int
try_create_named(const char *name, int64_t n, struct caid_array **ret)
{
    OPTIONS(caid_create_options, options, .name = name, .typestr = "|u1", .shape = &n,
            .ndim = 1);
    return caid_array_create(f.client, ret, &options, &error);
}

static void
assert_no_name(const char *name)
{
    struct caid_array *array = NULL;

    assert_failed(caid_array_open(f.client, &array, name, NULL, &error), CAID_ERR_NOT_FOUND);
}

FAULT_TEST(leave_no_name)
{
    struct caid_array *array = NULL;

    soft_control(&f.gpu, "fail cuMemMap=UNKNOWN");
    assert_failed(try_create_named("x", MIB, &array), CAID_ERR_DRIVER);
    soft_control(&f.gpu, "clear");
    assert_no_name("x");
    assert_ok(try_create_named("x", MIB, &array));
    soft_control(&f.gpu, "fail cuMemMap=UNKNOWN");
    struct caid_array *again = NULL;
    assert_failed(try_create_named("x", MIB, &again), CAID_ERR_EXISTS);
    soft_control(&f.gpu, "clear");
    caid_array_close(array);
    assert_ok(caid_unlink(f.client, "x", NULL, &error));
    assert_nothing_is_left();
}

FAULT_TEST(without_a_driver_nothing_is_made)
{
    struct caid_array *array = NULL;

    caid_client_close(f.client);
    OPTIONS(caid_connect_options, options, .socket = f.daemon.socket,
            .driver = "/nonexistent/libcuda.so");
    assert_ok(caid_connect(&f.client, &options, &error));
    assert_failed(try_create_named("x", MIB, &array), CAID_ERR_DEVICE);
    assert_ok(try_create_named("nothing", 0, &array));
    caid_array_close(array);
    caid_client_close(f.client);
    f.client = daemon_connect(&f.daemon);
    assert_no_name("x");
}

/* Only what the daemon has not got is asked for again. */
FAULT_TEST(are_not_tried_again)
{
    struct caid_array *array = NULL;

    assert_ok(try_create("device", &array));
    caid_array_close(array);
    array = NULL;
    uint64_t before = soft_calls(&f.gpu, "cuMemMap");
    soft_control(&f.gpu, "fail cuMemMap=OUT_OF_MEMORY");
    assert_failed(try_create_named("x", 100 * MIB, &array), CAID_ERR_NO_MEMORY);
    soft_control(&f.gpu, "clear");
    cr_assert_eq(soft_calls(&f.gpu, "cuMemMap"), before + 1);
}
