/* SPDX-License-Identifier: Apache-2.0 */
/* How the driver is entered: settings, initialisation, look-up of entry points, device figures. */
#include "caid_test.h"

#include <dlfcn.h>
#include <fcntl.h>
#include <stdio.h>
#include <string.h>
#include <sys/stat.h>

#include "soft_test.h"

static void *
look_up(const char *base, int version, uint64_t flags)
{
    CUdriverProcAddressQueryResult status;
    void *fn = NULL;
    MUST(cuGetProcAddress_v2(base, &fn, version, flags, &status));
    cr_assert_eq(status, fn ? CU_GET_PROC_ADDRESS_SUCCESS : status);
    return fn;
}

CAID_TEST(soft_entry, every_export_is_found_by_its_base_name_and_version)
{
    soft_start();
#define CHECK(symbol, base, version) \
    cr_expect_eq(look_up(base, version, 0), *(void **)&cu.symbol, "%s %d", base, version);
#define EXPORT(symbol, base, version, ...) CHECK(symbol, base, version)
#define EXPORT_PT(symbol, base, version, suffix, ...)                                   \
    CHECK(symbol, base, version)                                                        \
    cr_expect_eq(look_up(base, version, CU_GET_PROC_ADDRESS_PER_THREAD_DEFAULT_STREAM), \
                 *(void **)&cu.symbol##suffix, "%s %d", base, version);
#define NVML(symbol, ...)
#define ENTRY(symbol, base, version, ...) \
    cr_expect_neq(look_up(base, version, 0), look_up(base, version - 1, 0), "%s", base);
#include "soft/exports.def"
#undef EXPORT
#undef EXPORT_PT
#undef ENTRY
#undef NVML
}

CAID_TEST(soft_entry, look_up_says_why_it_found_nothing)
{
    CUdriverProcAddressQueryResult status;
    void *fn = &fn;
    soft_start();
    MUST(cuGetProcAddress_v2("cuNoSuchThing", &fn, 12000, 0, &status));
    cr_assert_eq(fn, NULL);
    cr_assert_eq(status, CU_GET_PROC_ADDRESS_SYMBOL_NOT_FOUND);
    fn = &fn;
    MUST(cuGetProcAddress_v2("cuMemCreate", &fn, 10019, 0, &status));
    cr_assert_eq(fn, NULL);
    cr_assert_eq(status, CU_GET_PROC_ADDRESS_VERSION_NOT_SUFFICIENT);
    REFUSED(INVALID_VALUE, cuGetProcAddress_v2("cuInit", &fn, 13010, 0, &status));
    REFUSED(INVALID_VALUE, cuGetProcAddress_v2("cuInit", &fn, 12000, 4, &status));
    cr_assert_eq(look_up("cuMemAlloc_v2", 12000, 0), NULL, "base names only");
}

/* Between two versions of an ABI the older one is given. */
CAID_TEST(soft_entry, an_older_version_gets_the_older_abi)
{
    soft_start();
    cr_assert_eq(look_up("cuCtxCreate", 12049, 0), *(void **)&cu.cuCtxCreate_v2);
    cr_assert_eq(look_up("cuCtxCreate", 13000, 0), *(void **)&cu.cuCtxCreate_v4);
    cr_assert_eq(look_up("cuCtxSynchronize", 12090, 0), *(void **)&cu.cuCtxSynchronize);
}

CAID_TEST(soft_entry, results_have_names_and_texts)
{
    const char *text;
    soft_load_path(SOFTCUDA_PATH);
#define RESULT(name, number, words)                                           \
    cr_expect_eq(cu.cuGetErrorName((CUresult)number, &text), CUDA_SUCCESS);   \
    cr_expect_str_eq(text, #name);                                            \
    cr_expect_eq(cu.cuGetErrorString((CUresult)number, &text), CUDA_SUCCESS); \
    cr_expect_str_eq(text, words);
#include "results.def"
#undef RESULT
    REFUSED(INVALID_VALUE, cuGetErrorName((CUresult)12345, &text));
    cr_assert_eq(text, NULL);
}

CAID_TEST(soft_entry, nothing_works_before_init)
{
    int n;
    CUcontext context;
    CUmemGenericAllocationHandle handle;
    CUmemAllocationProp prop = soft_prop(0);
    soft_load_path(SOFTCUDA_PATH);
    REFUSED(NOT_INITIALIZED, cuDeviceGetCount(&n));
    REFUSED(NOT_INITIALIZED, cuCtxGetCurrent(&context));
    REFUSED(NOT_INITIALIZED, cuMemCreate(&handle, GRAN, &prop, 0));
    REFUSED(NOT_INITIALIZED, cuStreamDestroy_v2(NULL));
    REFUSED(INVALID_VALUE, cuInit(1));
    MUST(cuDriverGetVersion(&n));
    cr_assert_eq(n, 13000);
    MUST(cuInit(0));
    MUST(cuInit(0));
    MUST(cuDeviceGetCount(&n));
    cr_assert_eq(n, 1);
    cr_assert_str_eq(cu.caid_softcuda_version(), CAID_VERSION);
}

CAID_TEST(soft_entry, settings_make_the_devices)
{
    char text[64];
    CUuuid uuid, other;
    size_t total;
    int n;
    setenv("CAID_SOFTCUDA_DEVICES", "3", 1);
    setenv("CAID_SOFTCUDA_MEMORY", "64M", 1);
    setenv("CAID_SOFTCUDA_NAME", "a name", 1);
    setenv("CAID_SOFTCUDA_UUID", "01234567-89ab-cdef-0123-456789abcdef", 1);
    soft_start();
    MUST(cuDeviceGetCount(&n));
    cr_assert_eq(n, 3);
    for (int i = 0; i < n; i++) {
        MUST(cuDeviceTotalMem_v2(&total, i));
        cr_assert_eq(total, 64 * MIB);
        MUST(cuDeviceGetName(text, sizeof(text), i));
        cr_assert_str_eq(text, "a name");
    }
    MUST(cuDeviceGetUuid_v2(&uuid, 0));
    cr_assert_arr_eq(uuid.bytes,
                     "\x01\x23\x45\x67\x89\xab\xcd\xef\x01\x23\x45\x67\x89\xab\xcd\xef", 16);
    MUST(cuDeviceGetUuid_v2(&other, 2));
    cr_assert_arr_neq(uuid.bytes, other.bytes, 16);
    MUST(cuDeviceGetName(text, 4, 0));
    cr_assert_str_eq(text, "a n");
    REFUSED(INVALID_DEVICE, cuDeviceGet(&n, 3));
    REFUSED(INVALID_DEVICE, cuDeviceTotalMem_v2(&total, -1));
}

CAID_TEST(soft_entry, no_devices_is_a_machine_without_a_gpu)
{
    setenv("CAID_SOFTCUDA_DEVICES", "0", 1);
    soft_load_path(SOFTCUDA_PATH);
    REFUSED(NO_DEVICE, cuInit(0));
    int n;
    REFUSED(NOT_INITIALIZED, cuDeviceGetCount(&n));
}

/* A bad setting is an error, not a default, and names itself. */
static void
assert_refused(const char *name, const char *value)
{
    char said[256] = "";
    int ends[2];
    cr_assert_eq(pipe(ends), 0);
    int saved = dup(2);
    dup2(ends[1], 2);
    setenv(name, value, 1);
    CUresult result = cu.cuInit(0);
    dup2(saved, 2);
    close(saved);
    close(ends[1]);
    cr_assert_gt(read(ends[0], said, sizeof(said) - 1), 0, "%s=%s", name, value);
    close(ends[0]);
    unsetenv(name);
    cr_assert_eq(result, CUDA_ERROR_INVALID_VALUE, "%s=%s", name, value);
    cr_assert_neq(strstr(said, name), NULL, "%s", said);
}

CAID_TEST(soft_entry, bad_settings_are_refused)
{
    soft_load_path(SOFTCUDA_PATH);

    static const struct {
        const char *name, *values[16];
    } bad[] = {
        {"CAID_SOFTCUDA_DEVICES", {"17", "-1", "two"}},
        {"CAID_SOFTCUDA_MEMORY", {"1G5", "3M", "0", "65T", "99999999999999999999"}},
        {"CAID_SOFTCUDA_UUID",
         {"GPU-0123", "GPU-01234567-89ab-cdef-0123-456789abcdeg",
          "GPU-01234567-89ab-cdef-0123-456789abcdef0"}},
        {"CAID_SOFTCUDA_DELAY_US", {"fast"}},
        {"CAID_SOFTCUDA_JITTER_SEED", {"1x"}},
        {"CAID_SOFTCUDA_PERSISTENCE", {"2"}},
        {"CAID_SOFTCUDA_ATTRIBUTES",
         {"122", "122=", "=0", "0=1", "148=1", "122=x", "122=0,", ",122=0", "122=-", "122=0x1",
          "33=1", "50=1", "113=0 2", "122 =0", "122=99999999999"}},
    };

    for (size_t i = 0; i < ARRAY_SIZE(bad); i++)
        for (const char *const *value = bad[i].values; *value; value++)
            assert_refused(bad[i].name, *value);
    MUST(cuInit(0)); /* and once they are right, it works */
}

CAID_TEST(soft_entry, nvml_needs_its_own_init_and_no_context)
{
    nvmlDevice_t device, same;
    nvmlMemory_t memory;
    unsigned int n;
    char uuid[80];
    soft_load_path(SOFTCUDA_PATH);
    cr_assert_eq(cu.nvmlDeviceGetCount_v2(&n), NVML_ERROR_UNINITIALIZED);
    cr_assert_eq(cu.nvmlShutdown(), NVML_ERROR_UNINITIALIZED);
    cr_assert_eq(cu.nvmlInit_v2(), NVML_SUCCESS);
    cr_assert_eq(cu.nvmlDeviceGetCount_v2(&n), NVML_SUCCESS);
    cr_assert_eq(n, 1);
    cr_assert_eq(cu.nvmlDeviceGetHandleByIndex_v2(1, &device), NVML_ERROR_INVALID_ARGUMENT);
    cr_assert_eq(cu.nvmlDeviceGetHandleByIndex_v2(0, &device), NVML_SUCCESS);
    cr_assert_eq(cu.nvmlDeviceGetUUID(device, uuid, 8), NVML_ERROR_INSUFFICIENT_SIZE);
    cr_assert_eq(cu.nvmlDeviceGetUUID(device, uuid, sizeof(uuid)), NVML_SUCCESS);
    cr_assert_eq(cu.nvmlDeviceGetHandleByUUID(uuid, &same), NVML_SUCCESS);
    cr_assert_eq(same, device);
    cr_assert_eq(cu.nvmlDeviceGetHandleByUUID("GPU-0", &same), NVML_ERROR_NOT_FOUND);
    cr_assert_eq(cu.nvmlDeviceGetMemoryInfo(device, &memory), NVML_SUCCESS);
    cr_assert_eq(memory.total, UINT64_C(4) << 30);
    cr_assert_eq(memory.free + memory.used, memory.total);
    cr_assert_eq(cu.nvmlDeviceGetMemoryInfo((nvmlDevice_t)&n, &memory),
                 NVML_ERROR_INVALID_ARGUMENT);
    cr_assert_eq(cu.nvmlShutdown(), NVML_SUCCESS);
    cr_assert_eq(cu.nvmlDeviceGetCount_v2(&n), NVML_ERROR_UNINITIALIZED);
}

static void
copy_file(const char *from, const char *to)
{
    char command[1024];
    snprintf(command, sizeof(command), "cp '%s' '%s'", from, to);
    cr_assert_eq(system(command), 0);
}

/* The library under two paths: what one made the other knows. */
CAID_TEST(soft_entry, two_copies_in_one_process_are_one_driver)
{
    char path[] = "/tmp/caid-soft-copy-XXXXXX";
    int fd = mkstemp(path);
    cr_assert_geq(fd, 0);
    close(fd);
    copy_file(SOFTCUDA_PATH, path);
    CUcontext context = soft_start_context();
    struct soft_mapping mapping = soft_map(GRAN, 3);
    struct soft_api first = cu;
    soft_load_path(path);
    unlink(path);
    cr_assert_neq(*(void **)&first.cuInit, *(void **)&cu.cuInit);

    CUcontext current;
    MUST(cuInit(0));
    MUST(cuCtxGetCurrent(&current));
    cr_assert_eq(current, context);
    MUST(cuMemsetD8_v2(mapping.at, 0x5a, mapping.size));
    MUST(cuCtxSynchronize());
    cr_assert_eq(*(unsigned char *)(uintptr_t)mapping.at, 0x5a);
    soft_unmap(&mapping);
    cr_assert_eq(first.cuMemRelease(mapping.handle), CUDA_ERROR_INVALID_VALUE);
}
