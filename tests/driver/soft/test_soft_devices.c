/* SPDX-License-Identifier: Apache-2.0 */
/* Which devices a process has, what it calls them, and what it can do with those of others. */
#include "caid_test.h"

#include <stdio.h>
#include <string.h>
#include <unistd.h>

#include "soft_peer.h"
#include "soft_test.h"

#define N_DEVICES 3

/* Of the devices: they differ in the first byte (device_init()), which is a0, a1 or a2 here, and
 * are the test's own. Made before there are peers. */
static char uuids[N_DEVICES][64];

static void
name_devices(void)
{
    for (int i = 0; i < N_DEVICES; i++)
        snprintf(uuids[i], sizeof(uuids[i]), "GPU-a%d%06x-4455-4677-8899-aabbccddeeff", i,
                 (unsigned)getpid() & 0xffffff);
}

static const char *visible; /* for the next peer; NULL: not set */

static void
see_some(const char *list)
{
    setenv("CAID_SOFTCUDA_DEVICES", "3", 1);
    setenv("CAID_SOFTCUDA_UUID", uuids[0], 1);
    unsetenv("CUDA_VISIBLE_DEVICES");
    if (list)
        setenv("CUDA_VISIBLE_DEVICES", list, 1);
}

/* Which of all the devices it is that the process calls that; -1 for none. */
static int
index_of(CUdevice ordinal)
{
    CUuuid uuid;
    if (cu.cuDeviceGetUuid_v2(&uuid, ordinal) != CUDA_SUCCESS)
        return -1;
    return (unsigned char)uuid.bytes[0] - 0xa0;
}

struct sight {
    CUresult init;
    int n;
    int order[N_DEVICES];
};

static void
tell_sight(int socket)
{
    struct sight sight = {.order = {-1, -1, -1}};
    see_some(visible);
    soft_load_path(SOFTCUDA_PATH);
    sight.init = cu.cuInit(0);
    if (sight.init == CUDA_SUCCESS)
        MUST(cuDeviceGetCount(&sight.n));
    for (int i = 0; i < sight.n && i < N_DEVICES; i++)
        sight.order[i] = index_of(i);
    peer_say(socket, &sight, sizeof(sight));
}

/* What a process sees with that list: the devices as digits, "-" for none. */
static const char *
seen(const char *list)
{
    static char text[N_DEVICES + 2];
    struct sight sight;
    visible = list;
    struct peer peer = peer_start(tell_sight);
    peer_hear(peer.socket, &sight, sizeof(sight));
    peer_wait(&peer);
    if (sight.init == CUDA_ERROR_NO_DEVICE)
        return "-";
    if (sight.init == CUDA_ERROR_INVALID_DEVICE)
        return "twice";
    cr_assert_eq(sight.init, CUDA_SUCCESS);
    for (int i = 0; i < sight.n; i++)
        text[i] = (char)('0' + sight.order[i]);
    text[sight.n] = '\0';
    return text;
}

/* U0, U1, U2 stand for the UUIDs. A list ends with its first entry that names no device. */
CAID_TEST(soft_devices, a_list_chooses_and_orders_them)
{
    static const struct {
        const char *list, *seen;
    } cases[] = {
        {NULL, "012"},
        {"", "-"},
        {"1", "1"},
        {"2,0", "20"},
        {"0,1,2", "012"},
        {"U1", "1"},
        {"GPU-a2,GPU-a0", "20"},
        {"-1", "-"},
        {"1,-1,0", "1"},
        {"0,7,1", "0"},
        {"99999999999", "-"},
        {"0,", "0"},
        {",0", "-"},
        {"GPU-b0", "-"},
        {"GPU-", "-"},
        {"gpu-a0", "-"},
        {"GPU-a", "-"},
        {"all", "-"},
        {"GPU-a2,0", "2"},
        {"0,GPU-a2", "0"},
        {" 0 , 2", "02"},
        {"1garbage", "1"},
        {"0x2", "0"},
        {"GPU-A2", "2"},
        {"U1zz", "1"},
        {"0,0", "twice"},
    };

    char list[80];
    name_devices();
    for (size_t i = 0; i < ARRAY_SIZE(cases); i++) {
        const char *given = cases[i].list;
        if (given && given[0] == 'U') {
            snprintf(list, sizeof(list), "%s%s", uuids[given[1] - '0'], given + 2);
            given = list;
        }
        cr_expect_str_eq(seen(given), cases[i].seen, "%s", given ? given : "not set");
    }
}

static nvmlDevice_t
nvml_device(unsigned int index)
{
    nvmlDevice_t device;
    cr_assert_eq(cu.nvmlDeviceGetHandleByIndex_v2(index, &device), NVML_SUCCESS);
    return device;
}

/* NVML's indices, buses and UUIDs stay with the devices. */
CAID_TEST(soft_devices, only_ordinals_are_the_process_s_own)
{
    char text[64];
    unsigned int count;
    CUdevice ordinal;
    int bus;
    name_devices();
    see_some("2,0");
    soft_start();
    cr_assert_eq(index_of(0), 2);
    cr_assert_eq(index_of(1), 0);
    cr_assert_eq(index_of(2), -1);
    MUST(cuDeviceGetAttribute(&bus, CU_DEVICE_ATTRIBUTE_PCI_BUS_ID, 0));
    cr_assert_eq(bus, 3);
    REFUSED(INVALID_DEVICE, cuDeviceGet(&ordinal, 2));

    cr_assert_eq(cu.nvmlInit_v2(), NVML_SUCCESS);
    cr_assert_eq(cu.nvmlDeviceGetCount_v2(&count), NVML_SUCCESS);
    cr_assert_eq(count, N_DEVICES);
    for (unsigned int i = 0; i < N_DEVICES; i++) {
        cr_assert_eq(cu.nvmlDeviceGetUUID(nvml_device(i), text, sizeof(text)), NVML_SUCCESS);
        cr_assert_str_eq(text, uuids[i]);
    }
    cr_assert_eq(cu.nvmlShutdown(), NVML_SUCCESS);
}

CAID_TEST(soft_devices, nvml_describes_them)
{
    nvmlDevice_t device, again;
    nvmlEnableState_t persistence;
    char text[32];
    int version;
    name_devices();
    see_some("0");
    soft_start();
    cr_assert_eq(cu.nvmlDeviceGetHandleByIndex_v2(1, &device), NVML_ERROR_UNINITIALIZED);
    cr_assert_eq(cu.nvmlInit_v2(), NVML_SUCCESS);
    device = nvml_device(1);
    cr_assert_eq(cu.nvmlDeviceGetHandleByUUID(uuids[1], &again), NVML_SUCCESS);
    cr_assert_eq(again, device);
    cr_assert_eq(cu.nvmlDeviceGetHandleByUUID(uuids[1] + 4, &again), NVML_SUCCESS);
    cr_assert_eq(again, device);
    cr_assert_eq(cu.nvmlDeviceGetPersistenceMode(device, &persistence), NVML_SUCCESS);
    cr_assert_eq(persistence, NVML_FEATURE_ENABLED);
    cr_assert_eq(cu.nvmlSystemGetCudaDriverVersion_v2(&version), NVML_SUCCESS);
    cr_assert_eq(version, 13000);
    cr_assert_eq(cu.nvmlSystemGetDriverVersion(text, sizeof(text)), NVML_SUCCESS);
    cr_assert_str_eq(text, cu.caid_softcuda_version());
    cr_assert_eq(cu.nvmlSystemGetNVMLVersion(text, 3), NVML_ERROR_INSUFFICIENT_SIZE);
    cr_assert_eq(cu.nvmlShutdown(), NVML_SUCCESS);
}

static uint64_t
used_of(unsigned int index)
{
    nvmlMemory_t memory;
    cr_assert_eq(cu.nvmlInit_v2(), NVML_SUCCESS);
    cr_assert_eq(cu.nvmlDeviceGetMemoryInfo(nvml_device(index), &memory), NVML_SUCCESS);
    cr_assert_eq(cu.nvmlShutdown(), NVML_SUCCESS);
    return memory.used;
}

/* What is allocated under an ordinal is on the device that it stands for. */
CAID_TEST(soft_devices, memory_is_on_the_device_that_the_ordinal_means)
{
    CUmemGenericAllocationHandle handle;
    CUmemAllocationProp prop = soft_prop(0);
    CUmemoryPool pool;
    CUcontext context;
    name_devices();
    see_some("2,1");
    soft_start();
    MUST(cuMemCreate(&handle, GRAN, &prop, 0));
    cr_assert_eq(used_of(2), GRAN);
    cr_assert_eq(used_of(0), 0);
    MUST(cuMemRelease(handle));
    MUST(cuDevicePrimaryCtxRetain(&context, 1));
    MUST(cuCtxSetCurrent(context));
    CUdeviceptr at = soft_memory(GRAN);
    ATTRIBUTE_IS(DEVICE_ORDINAL, at, 1);
    cr_assert_eq(used_of(1), GRAN);
    MUST(cuMemFree_v2(at));
    MUST(cuDeviceGetMemPool(&pool, 1));
    MUST(cuMemAllocAsync(&at, GRAN, NULL));
    ATTRIBUTE_IS(DEVICE_ORDINAL, at, 1);
    cr_assert_eq(used_of(1), GRAN);
    MUST(cuMemFreeAsync(at, NULL));
    MUST(cuCtxSynchronize());
    cr_assert_eq(used_of(1), 0);
}

/* Peers. */

static CUcontext contexts[2];
static CUdeviceptr memory[2]; /* of each device */

static void
start_two(void)
{
    setenv("CAID_SOFTCUDA_DEVICES", "2", 1);
    soft_start();
    for (int i = 0; i < 2; i++) {
        MUST(cuDevicePrimaryCtxRetain(&contexts[i], i));
        MUST(cuCtxSetCurrent(contexts[i]));
        MUST(cuMemAlloc_v2(&memory[i], GRAN));
        MUST(cuMemsetD8_v2(memory[i], (unsigned char)(0x50 + i), GRAN));
        MUST(cuCtxSynchronize());
    }
}

static void
end_two(void)
{
    MUST(cuCtxSynchronize());
    MUST(cuMemFree_v2(memory[0]));
    MUST(cuMemFree_v2(memory[1]));
}

static CUresult
free_first(void *arg UNUSED)
{
    return cu.cuMemFree_v2(memory[0]);
}

/* Freeing waits for the work on the memory, whichever context's it is. */
SOFT_TEST_LATE(soft_devices, memory_is_freed_after_the_work_of_peers)
{
    struct gate gate;
    struct blocked blocked;
    start_two();
    CUstream stream = soft_stream(CU_STREAM_NON_BLOCKING);
    gate_close(&gate, stream);
    MUST(cuMemcpyDtoDAsync_v2(memory[1], memory[0], GRAN, stream));
    blocked_start(&blocked, free_first, NULL);
    cr_assert(blocked_waits(&blocked));
    gate_open(&gate);
    cr_assert_eq(blocked_join(&blocked), CUDA_SUCCESS);
    MUST(cuCtxSynchronize());
    cr_assert_eq(*(unsigned char *)(uintptr_t)memory[1], 0x50);
    /* A context that keeps to itself is not waited for. */
    MUST(cuCtxSetCurrent(contexts[0]));
    CUstream other = soft_stream(CU_STREAM_NON_BLOCKING);
    gate_close(&gate, other);
    MUST(cuMemFree_v2(memory[1]));
    gate_open(&gate);
    MUST(cuCtxSynchronize());
}

/* With device 1 current. */
static void
assert_reach(CUdeviceptr at, bool reached)
{
    CUdeviceptr told;
    CUresult fill = reached ? CUDA_SUCCESS : CUDA_ERROR_INVALID_VALUE;
    cr_assert_eq(cu.cuMemsetD8_v2(at, 1, 16), fill);
    cr_assert_eq(cu.cuMemsetD8Async(at, 1, 16, NULL), fill);
    cr_assert_eq(cu.cuPointerGetAttribute(&told, CU_POINTER_ATTRIBUTE_DEVICE_POINTER, at),
                 fill);
    cr_assert_eq(cu.cuMemGetAddressRange_v2(&told, NULL, at),
                 reached ? CUDA_SUCCESS : CUDA_ERROR_NOT_FOUND);
    MUST(cuCtxSynchronize());
}

CAID_TEST(soft_devices, access_to_a_peer_is_enabled_one_way)
{
    start_two();
    assert_reach(memory[1], true);
    assert_reach(memory[0], false);
    REFUSED(INVALID_VALUE, cuStreamWriteValue32_v2(NULL, memory[0], 1, 0));
    REFUSED(INVALID_VALUE, cuCtxEnablePeerAccess(contexts[0], 1));
    REFUSED(PEER_ACCESS_UNSUPPORTED, cuCtxEnablePeerAccess(contexts[1], 0));
    MUST(cuCtxEnablePeerAccess(contexts[0], 0));
    REFUSED(PEER_ACCESS_ALREADY_ENABLED, cuCtxEnablePeerAccess(contexts[0], 0));
    assert_reach(memory[0], true);
    MUST(cuStreamWriteValue32_v2(NULL, memory[0], 1, 0));
    MUST(cuCtxSetCurrent(contexts[0]));
    REFUSED(INVALID_VALUE, cuMemsetD8_v2(memory[1], 1, 16));
    MUST(cuCtxSetCurrent(contexts[1]));
    end_two();
}

/* Mappings and pools have access of their own. */
CAID_TEST(soft_devices, access_is_given_to_mappings_and_pools)
{
    CUmemAccessDesc desc = {{CU_MEM_LOCATION_TYPE_DEVICE, 1}, 3};
    CUmemoryPool pool;
    CUdeviceptr at;
    start_two();
    struct soft_mapping mapping = soft_map(GRAN, 3);
    assert_reach(mapping.at, false);
    ATTRIBUTE_IS(ACCESS_FLAGS, mapping.at, 0);
    MUST(cuMemSetAccess(mapping.at, GRAN, &desc, 1));
    assert_reach(mapping.at, true);
    soft_unmap(&mapping);

    MUST(cuDeviceGetMemPool(&pool, 0));
    MUST(cuMemAllocFromPoolAsync(&at, 512, pool, NULL));
    assert_reach(at, false);
    MUST(cuMemPoolSetAccess(pool, &desc, 1));
    assert_reach(at, true);
    MUST(cuMemFreeAsync(at, NULL));
    MUST(cuCtxSynchronize());
    end_two();
}
