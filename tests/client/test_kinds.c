/* SPDX-License-Identifier: Apache-2.0 */
/* Memory of every kind: what it is, who reaches it, and what is refused. */
#include <errno.h>
#include <signal.h>
#include <stdio.h>
#include <string.h>
#include <sys/wait.h>
#include <unistd.h>

#include "base/macros.h"
#include "client_fixture.h"
#include "process.h"

#define N_BYTES 100000

static struct caid_array *
make(const char *memory, const char *name, int64_t n)
{
    struct caid_array *array;

    OPTIONS(caid_create_options, options, .memory = memory, .name = name, .typestr = "|u1",
            .shape = &n, .ndim = 1);
    assert_ok(caid_array_create(f.client, &array, &options, &error));
    return array;
}

static void
assert_all(const unsigned char *bytes, size_t n, unsigned char wanted)
{
    for (size_t i = 0; i < n; i++)
        cr_assert_eq(bytes[i], wanted, "byte %zu is %d, not %d", i, bytes[i], wanted);
}

static void
fill(struct caid_array *array, unsigned char with)
{
    static unsigned char bytes[N_BYTES];

    memset(bytes, with, sizeof(bytes));
    assert_ok(caid_array_copy_from_host(array, bytes, sizeof(bytes), &error));
}

static void
assert_filled(struct caid_array *array, unsigned char wanted)
{
    static unsigned char bytes[N_BYTES];

    assert_ok(caid_array_copy_to_host(array, bytes, sizeof(bytes), &error));
    assert_all(bytes, sizeof(bytes), wanted);
}

/* ---- all kinds ---- */

FIXTURE_TEST(kinds, are_shared_between_processes)
{
    const char *const kinds[] = {"device", "legacy", "pinned", "mapped"};

    for (size_t i = 0; i < ARRAY_SIZE(kinds); i++) {
        struct caid_array *array = make(kinds[i], kinds[i], N_BYTES);
        cr_assert_str_eq(caid_array_get_info(array)->memory, kinds[i]);
        cr_assert_eq(caid_array_get_info(array)->mapped_ordinal, 0);
        cr_assert_eq(caid_array_get_info(array)->mapped_device, 0);
        fill(array, 7);
        cr_assert_eq(process_run("peer", f.daemon.socket, kinds[i], "7", "8", NULL), 0, "%s",
                     kinds[i]);
        cr_assert_eq(process_run("peer", f.daemon.socket, kinds[i], "7", "8", NULL), 1,
                     "the peer does look");
        assert_filled(array, 8);

        struct caid_array *again = must_open(kinds[i], "r");
        cr_assert_str_eq(caid_array_get_info(again)->memory, kinds[i]);
        assert_filled(again, 8);
        assert_failed(caid_array_copy_from_host(again, "", 0, &error), CAID_ERR_INVALID);
        caid_array_close(again);
        caid_array_close(array);
    }
    wait_for_leases(f.client, 0);
}

/* It lives for longer than the process whose lease it is of (I2). */
FIXTURE_TEST(kinds, host_memory_is_not_a_childs)
{
    OWNED struct caid_array *array = make("pinned", NULL, N_BYTES);
    const volatile unsigned char *bytes = caid_array_get_info(array)->host_ptr;
    fill(array, 7);
    pid_t pid = fork();
    if (pid == 0) {
        signal(SIGSEGV, SIG_DFL);
        _exit(bytes[0]);
    }
    cr_assert_eq(process_wait(pid), -SIGSEGV);
}

static int
see_memory(const struct caid_entry *entry, void *userdata)
{
    const char **ret = userdata;

    *ret = strdup(entry->memory);
    return 0;
}

FIXTURE_TEST(kinds, metadata_and_alignment_travel)
{
    struct caid_array *array;
    const char *memory = NULL;
    const int64_t n = 10;

    OPTIONS(caid_create_options, options, .typestr = "|u1", .shape = &n, .ndim = 1,
            .memory = "mapped", .name = "x", .metadata = "{\"scale\": 0.5}");
    assert_ok(caid_array_create(f.client, &array, &options, &error));
    struct caid_array *again = must_open("x", "r");
    cr_assert_str_eq(caid_array_get_info(again)->metadata, options.metadata);
    assert_ok(caid_list(f.client, NULL, see_memory, &memory, &error));
    cr_assert_str_eq(memory, "mapped");
    free((void *)(uintptr_t)memory);
    caid_array_close(again);
    caid_array_close(array);

    const char *const kinds[] = {"device", "legacy", "pinned", "managed"};
    options.name = options.metadata = NULL;
    for (size_t i = 0; i < ARRAY_SIZE(kinds); i++)
        for (uint64_t alignment = 1; alignment <= 1 << 20; alignment <<= 4) {
            if (i == 1 && alignment > 4096 && gpu_is_soft())
                break; /* it opens handles at any page */
            struct caid_array *small = make(kinds[i], NULL, 3);
            options.memory = kinds[i];
            options.alignment = alignment;
            assert_ok(caid_array_create(f.client, &array, &options, &error));
            cr_assert_eq(caid_array_get_info(array)->ptr % alignment, 0, "%s", kinds[i]);
            cr_assert_null(caid_array_get_info(array)->metadata);
            caid_array_close(array);
            caid_array_close(small);
        }
}

/* ---- pinned ---- */

FIXTURE_TEST(kinds, pinned_is_the_hosts_and_the_gpus)
{
    struct test_gpu gpu;

    gpu_begin(&gpu);
    struct caid_array *w = make("pinned", "p", N_BYTES);
    const struct caid_array_info *info = caid_array_get_info(w);
    cr_assert(info->host_ptr && info->ptr);
    memset(info->host_ptr, 3, N_BYTES);
    assert_filled(w, 3);
    assert_cuda(gpu.drv->cu.cuMemsetD8(info->ptr, 4, N_BYTES));
    assert_cuda(gpu.drv->cu.cuCtxSynchronize());
    assert_all(info->host_ptr, N_BYTES, 4);
    cr_assert_eq(process_run("peer", f.daemon.socket, "p", "4", "5", NULL), 0);
    assert_all(info->host_ptr, N_BYTES, 5);

    struct caid_array *r = must_open("p", "r"), *r2 = must_open("p", "r");
    cr_assert_neq(caid_array_get_info(r)->host_ptr, info->host_ptr, "a mapping of its own");
    cr_assert_eq(caid_array_get_info(r)->host_ptr, caid_array_get_info(r2)->host_ptr);
    assert_all(caid_array_get_info(r)->host_ptr, N_BYTES, 5);
    caid_array_close(r2);
    caid_array_close(r);
    caid_array_close(w);
    gpu_end(&gpu);
}

static void
write_to(struct caid_array *array)
{
    volatile char *at = caid_array_get_info(array)->host_ptr;
    *at = 1;
}

/* Neither the CPU nor the GPU writes to a read-only lease. */
FIXTURE_TEST(kinds, pinned_read_only)
{
    const int64_t n = 16;
    OWNED struct caid_array *w = make("pinned", "p", n), *r = must_open("p", "r");
    assert_failed(caid_array_copy_from_host(r, "0123456789abcdef", 16, &error),
                  CAID_ERR_READ_ONLY);
    OPTIONS(caid_copy, copy, .dst = caid_array_get_info(r)->ptr,
            .src = (uintptr_t) "0123456789abcdef", .src_on_host = true, .shape = &n, .ndim = 1,
            .itemsize = 1);
    if (gpu_is_soft()) /* on hardware it would cost the context */
        assert_failed(caid_copy(f.client, &copy, &error), CAID_ERR_DRIVER);
    pid_t pid = fork();
    if (pid == 0) {
        signal(SIGSEGV, SIG_DFL);
        write_to(r);
        _exit(0);
    }
    cr_assert_eq(process_wait(pid), -SIGSEGV);
    write_to(w);
}

/* ---- legacy ---- */

static void
put_hex(char *ret, const uint8_t *bytes, size_t n)
{
    for (size_t i = 0; i < n; i++)
        snprintf(ret + 2 * i, 3, "%02x", bytes[i]);
}

FIXTURE_TEST(kinds, legacy_is_opened_by_any_process)
{
    struct caid_ipc_handle handle;
    char hex[129], offset[24], n[24];

    struct caid_array *first = make("legacy", NULL, N_BYTES);
    struct caid_array *array = make("legacy", NULL, N_BYTES);
    fill(first, 1);
    fill(array, 2);
    assert_ok(caid_array_ipc_handle(array, &handle, &error));
    cr_assert_leq(handle.offset + N_BYTES, handle.size);
    put_hex(hex, handle.handle, sizeof(handle.handle));
    snprintf(offset, sizeof(offset), "%llu", (unsigned long long)handle.offset);
    snprintf(n, sizeof(n), "%d", N_BYTES);
    cr_assert_eq(process_run("plain", hex, offset, n, "2", "9", NULL), 0);
    assert_filled(array, 9);
    assert_filled(first, 1);
    caid_array_close(array);
    caid_array_close(first);
    wait_for_leases(f.client, 0);
}

FIXTURE_TEST(kinds, only_legacy_has_a_handle)
{
    const char *const others[] = {"device", "pinned", "managed"};
    struct caid_ipc_handle handle;

    for (size_t i = 0; i < ARRAY_SIZE(others); i++) {
        struct caid_array *array = make(others[i], NULL, 1);
        assert_failed(caid_array_ipc_handle(array, &handle, &error), CAID_ERR_UNSUPPORTED);
        cr_assert(strstr(error.message, others[i]), "%s", error.message);
        assert_failed(caid_array_ipc_handle(array, NULL, &error), CAID_ERR_INVALID);
        caid_array_close(array);
    }
    struct caid_array *empty = make("legacy", NULL, 0);
    assert_failed(caid_array_ipc_handle(empty, &handle, &error), CAID_ERR_UNSUPPORTED);
    caid_array_close(empty);
    assert_failed(caid_array_ipc_handle(NULL, &handle, &error), CAID_ERR_INVALID);
}

/* Two connections of one process have the block open at once. */
FIXTURE_TEST(kinds, two_clients_of_a_process)
{
    const char *const kinds[] = {"device", "legacy", "pinned"};

    for (size_t i = 0; i < ARRAY_SIZE(kinds); i++) {
        struct caid_client *first = f.client;
        struct caid_array *a = make(kinds[i], kinds[i], N_BYTES);
        f.client = daemon_connect(&f.daemon);
        struct caid_array *b = must_open(kinds[i], "rw");
        fill(a, 5);
        assert_filled(b, 5);
        caid_array_close(b);
        caid_client_close(f.client);
        f.client = first;
        assert_filled(a, 5);
        caid_array_close(a);
    }
}

/* ---- managed ---- */

static void
use_managed(void)
{
    const int64_t shape[] = {3, 4}, strides[] = {8, 24};
    struct caid_array *array;

    OPTIONS(caid_create_options, options, .typestr = "<f8", .shape = shape, .strides = strides,
            .ndim = 2, .memory = "managed", .metadata = "m", .alignment = 1 << 21,
            .flags = CAID_ARRAY_ATTACH_HOST);
    assert_ok(caid_array_create(f.client, &array, &options, &error));
    const struct caid_array_info *info = caid_array_get_info(array);
    cr_assert(info->ptr == (uintptr_t)info->host_ptr && info->ptr % (1 << 21) == 0);
    cr_assert(info->nbytes == 96 && info->strides[1] == 24 && !info->name && !info->pool);
    cr_assert_str_eq(info->memory, "managed");
    cr_assert_str_eq(info->metadata, "m");
    memset(info->host_ptr, 1, 96);
    double back[12];
    assert_ok(caid_array_copy_to_host(array, back, 96, &error));
    assert_all((unsigned char *)back, 96, 1);
    assert_failed(caid_array_publish(array, "x", NULL, NULL, &error), CAID_ERR_UNSUPPORTED);
    caid_array_close(array);
    OWNED struct caid_array *empty = make("managed", NULL, 0);
    cr_assert_eq(caid_array_get_info(empty)->ptr, 0);
}

FIXTURE_TEST(kinds, managed_is_of_this_process)
{
    const int64_t negative = -1;
    struct caid_array *array = NULL;

    use_managed();
    OPTIONS(caid_create_options, options, .memory = "managed", .typestr = "<f8", .name = "x");
    assert_failed(caid_array_create(f.client, &array, &options, &error), CAID_ERR_UNSUPPORTED);
    options.name = NULL;
    options.typestr = "<q8";
    assert_failed(caid_array_create(f.client, &array, &options, &error), CAID_ERR_INVALID);
    options.typestr = "<f8";
    options.ndim = 1;
    options.shape = &negative;
    assert_failed(caid_array_create(f.client, &array, &options, &error), CAID_ERR_INVALID);
    options.device = 99;
    options.ndim = 0;
    assert_failed(caid_array_create(f.client, &array, &options, &error), CAID_ERR_DEVICE);
    cr_assert_null(array);
}

CLIENT_TEST(kinds, managed_needs_no_daemon)
{
    struct test_gpu gpu;

    assert_ok(cuda_driver_open(&f.client, NULL, &error));
    gpu_begin(&gpu);
    uint64_t before = gpu_is_soft() ? soft_live(&gpu, "managed_allocations") : 0;
    use_managed();
    struct caid_array *kept = make("managed", NULL, 8);
    caid_client_close(f.client);
    memset(caid_array_get_info(kept)->host_ptr, 1, 8);
    caid_array_close(kept);
    if (gpu_is_soft())
        cr_assert_eq(soft_live(&gpu, "managed_allocations"), before);
    gpu_end(&gpu);
}

/* ---- host memory of this process ---- */

CLIENT_TEST(kinds, host_memory)
{
    static char mine[8192] __attribute__((aligned(4096)));
    struct caid_client *client;
    uint64_t ptr = 0;
    void *memory;

    assert_ok(cuda_driver_open(&client, NULL, &error));
    assert_ok(cuda_host_alloc(client, 0, 4096, CUDA_HOST_MAPPED | CUDA_HOST_PORTABLE, &memory,
                              &ptr, &error));
    cr_assert(memory && ptr);
    memset(memory, 1, 4096);
    assert_ok(cuda_host_free(client, 0, memory, &error));
    assert_ok(cuda_host_alloc(client, 0, 64, CUDA_HOST_WRITE_COMBINED, &memory, NULL, &error));
    assert_ok(cuda_host_free(client, 0, memory, &error));

    ptr = 0;
    assert_ok(
        cuda_host_register(client, 0, mine, sizeof(mine), CUDA_HOST_MAPPED, &ptr, &error));
    cr_assert(ptr);
    assert_failed(cuda_host_register(client, 0, mine, sizeof(mine), 0, NULL, &error),
                  CAID_ERR_DRIVER);
    assert_ok(cuda_host_unregister(client, 0, mine, &error));
    assert_failed(cuda_host_unregister(client, 0, mine, &error), CAID_ERR_DRIVER);
    assert_failed(cuda_host_register(client, 0, mine, 1, CUDA_HOST_WRITE_COMBINED, NULL,
                                     &error),
                  CAID_ERR_INVALID);
    assert_failed(cuda_host_alloc(client, 0, 1, 64, &memory, NULL, &error), CAID_ERR_INVALID);
    assert_failed(cuda_host_alloc(client, 0, 1, 0, NULL, NULL, &error), CAID_ERR_INVALID);
    assert_failed(cuda_host_alloc(client, 99, 1, 0, &memory, NULL, &error), CAID_ERR_DEVICE);
    caid_client_close(client);
}
