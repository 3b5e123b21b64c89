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

CAID_TEST(soft_devices, a_list_chooses_and_orders_them)
{
    name_devices();
    cr_assert_str_eq(seen(NULL), "012");
    cr_assert_str_eq(seen(""), "-");
    cr_assert_str_eq(seen("1"), "1");
    cr_assert_str_eq(seen("2,0"), "20");
    cr_assert_str_eq(seen("0,1,2"), "012");
    cr_assert_str_eq(seen(uuids[1]), "1");
    cr_assert_str_eq(seen("GPU-a2,GPU-a0"), "20");
}

/* It ends with the first entry that names no device. */
CAID_TEST(soft_devices, a_list_ends_where_it_makes_no_sense)
{
    name_devices();
    cr_assert_str_eq(seen("-1"), "-");
    cr_assert_str_eq(seen("1,-1,0"), "1");
    cr_assert_str_eq(seen("0,7,1"), "0");
    cr_assert_str_eq(seen("99999999999"), "-");
    cr_assert_str_eq(seen("0,"), "0");
    cr_assert_str_eq(seen(",0"), "-");
    cr_assert_str_eq(seen("GPU-b0"), "-");
    cr_assert_str_eq(seen("GPU-"), "-");
    cr_assert_str_eq(seen("gpu-a0"), "-");
    cr_assert_str_eq(seen("GPU-a"), "-", "not the only one");
    cr_assert_str_eq(seen("all"), "-");
    cr_assert_str_eq(seen("GPU-a2,0"), "2", "no index among UUIDs");
    cr_assert_str_eq(seen("0,GPU-a2"), "0", "no UUID among indices");
}

CAID_TEST(soft_devices, a_list_may_be_untidy)
{
    char longer[80];
    name_devices();
    cr_assert_str_eq(seen(" 0 , 2"), "02");
    cr_assert_str_eq(seen("1garbage"), "1");
    cr_assert_str_eq(seen("0x2"), "0");
    cr_assert_str_eq(seen("GPU-A2"), "2");
    snprintf(longer, sizeof(longer), "%szz", uuids[1]);
    cr_assert_str_eq(seen(longer), "1");
    cr_assert_str_eq(seen("0,0"), "twice");
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
    MUST(cuDeviceGetPCIBusId(text, sizeof(text), 0));
    MUST(cuDeviceGetByPCIBusId(&ordinal, text));
    cr_assert_eq(ordinal, 0);
    MUST(cuDeviceGetAttribute(&bus, CU_DEVICE_ATTRIBUTE_PCI_BUS_ID, 0));
    cr_assert_eq(bus, 3);
    cr_assert_eq(cu.cuDeviceGetByPCIBusId(&ordinal, "CA1D:02:00.0"), CUDA_ERROR_INVALID_DEVICE,
                 "hidden");
    cr_assert_eq(cu.cuDeviceGet(&ordinal, 2), CUDA_ERROR_INVALID_DEVICE);

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
    nvmlMemory_v2_t memory = {.version = NVML_STRUCT_VERSION(nvmlMemory_v2_t, 2U)};
    nvmlPciInfoExt_v1_t bus = {.version = NVML_STRUCT_VERSION(nvmlPciInfoExt_v1_t, 1U)};
    nvmlPciInfo_t old_bus;
    nvmlDevice_t device, again;
    unsigned int index;
    int major, minor, version;
    nvmlEnableState_t persistence;
    char text[32];
    name_devices();
    see_some("0");
    soft_start();
    cr_assert_eq(cu.nvmlDeviceGetIndex(NULL, &index), NVML_ERROR_UNINITIALIZED);
    cr_assert_eq(cu.nvmlInit_v2(), NVML_SUCCESS);
    device = nvml_device(1);
    cr_assert_eq(cu.nvmlDeviceGetIndex(device, &index), NVML_SUCCESS);
    cr_assert_eq(index, 1);
    cr_assert_eq(cu.nvmlDeviceGetMemoryInfo_v2(device, &memory), NVML_SUCCESS);
    cr_assert_eq(memory.used, 0);
    cr_assert_eq(memory.total, memory.free);
    memory.version = 1;
    cr_assert_eq(cu.nvmlDeviceGetMemoryInfo_v2(device, &memory),
                 NVML_ERROR_ARGUMENT_VERSION_MISMATCH);
    cr_assert_eq(cu.nvmlDeviceGetPciInfoExt(device, &bus), NVML_SUCCESS);
    cr_assert_eq(cu.nvmlDeviceGetPciInfo_v3(device, &old_bus), NVML_SUCCESS);
    cr_assert_str_eq(bus.busId, old_bus.busId);
    cr_assert_eq(cu.nvmlDeviceGetHandleByPciBusId_v2(bus.busId, &again), NVML_SUCCESS);
    cr_assert_eq(again, device);
    cr_assert_eq(cu.nvmlDeviceGetHandleByPciBusId_v2("0000:01:00.0", &again),
                 NVML_ERROR_NOT_FOUND);
    cr_assert_eq(cu.nvmlDeviceGetHandleByUUID(uuids[1], &again), NVML_SUCCESS);
    cr_assert_eq(cu.nvmlDeviceGetHandleByUUID(uuids[1] + 4, &again), NVML_SUCCESS);
    cr_assert_eq(again, device);
    cr_assert_eq(cu.nvmlDeviceGetPersistenceMode(device, &persistence), NVML_SUCCESS);
    cr_assert_eq(persistence, NVML_FEATURE_ENABLED);
    cr_assert_eq(cu.nvmlDeviceGetCudaComputeCapability(device, &major, &minor), NVML_SUCCESS);
    cr_assert_eq(major, 9);
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
    CUdeviceptr at;
    int ordinal;
    name_devices();
    see_some("2,1");
    soft_start();
    MUST(cuMemCreate(&handle, GRAN, &prop, 0));
    cr_assert_eq(used_of(2), GRAN);
    cr_assert_eq(used_of(0), 0);
    MUST(cuMemRelease(handle));
    MUST(cuDevicePrimaryCtxRetain(&context, 1));
    MUST(cuCtxSetCurrent(context));
    MUST(cuMemAlloc_v2(&at, GRAN));
    MUST(cuPointerGetAttribute(&ordinal, CU_POINTER_ATTRIBUTE_DEVICE_ORDINAL, at));
    cr_assert_eq(ordinal, 1);
    cr_assert_eq(used_of(1), GRAN);
    MUST(cuMemFree_v2(at));
    MUST(cuDeviceGetDefaultMemPool(&pool, 1));
    MUST(cuMemAllocAsync(&at, GRAN, NULL));
    MUST(cuPointerGetAttribute(&ordinal, CU_POINTER_ATTRIBUTE_DEVICE_ORDINAL, at));
    cr_assert_eq(ordinal, 1);
    cr_assert_eq(used_of(1), 32 * MIB);
    MUST(cuMemFreeAsync(at, NULL));
    MUST(cuCtxSynchronize());
    cr_assert_eq(used_of(1), 0);
}

/* Memory on each device, full of its index. */
static void
export_all(int socket)
{
    char byte;
    see_some(NULL);
    soft_start();
    for (int i = 0; i < N_DEVICES; i++) {
        CUmemGenericAllocationHandle handle;
        CUmemAllocationProp prop = soft_prop(i);
        CUmemAccessDesc desc = {{CU_MEM_LOCATION_TYPE_DEVICE, i}, 3};
        CUdeviceptr at;
        int fd;
        MUST(cuMemCreate(&handle, GRAN, &prop, 0));
        MUST(cuMemAddressReserve(&at, GRAN, 0, 0, 0));
        MUST(cuMemMap(at, GRAN, 0, handle, 0));
        MUST(cuMemSetAccess(at, GRAN, &desc, 1));
        memset((void *)(uintptr_t)at, 0x10 + i, GRAN);
        MUST(cuMemExportToShareableHandle(&fd, handle, 1, 0));
        peer_say_fd(socket, fd);
        close(fd);
    }
    peer_hear_if_any(socket, &byte, 1);
}

static struct soft_mapping
import_from(int socket)
{
    struct soft_mapping mapping = {.size = GRAN};
    int fd = peer_hear_fd(socket);
    MUST(cuMemImportFromShareableHandle(&mapping.handle, (void *)(intptr_t)fd, 1));
    close(fd);
    MUST(cuMemAddressReserve(&mapping.at, GRAN, 0, 0, 0));
    MUST(cuMemMap(mapping.at, GRAN, 0, mapping.handle, 0));
    soft_set_access(&mapping, CU_MEM_ACCESS_FLAGS_PROT_READWRITE);
    return mapping;
}

/* A device that the process does not see is -2 to it, and its memory is as good as any. */
CAID_TEST(soft_devices, memory_of_a_hidden_device_is_imported)
{
    static const int expected[N_DEVICES] = {CU_DEVICE_INVALID, 0, CU_DEVICE_INVALID};
    name_devices();
    struct peer peer = peer_start(export_all);
    struct soft_mapping mappings[N_DEVICES];
    CUmemAllocationProp prop;
    unsigned char seen_byte;
    int ordinal;
    see_some("1");
    soft_start_context();
    for (int i = 0; i < N_DEVICES; i++) {
        mappings[i] = import_from(peer.socket);
        MUST(cuMemGetAllocationPropertiesFromHandle(&prop, mappings[i].handle));
        cr_assert_eq(prop.location.id, expected[i]);
        MUST(cuPointerGetAttribute(&ordinal, CU_POINTER_ATTRIBUTE_DEVICE_ORDINAL,
                                   mappings[i].at));
        cr_assert_eq(ordinal, 0, "a pointer is told to be of a device that there is");
        MUST(cuMemcpyDtoH_v2(&seen_byte, mappings[i].at + GRAN - 1, 1));
        cr_assert_eq(seen_byte, 0x10 + i);
    }
    MUST(cuMemcpyDtoD_v2(mappings[2].at, mappings[0].at, GRAN));
    MUST(cuCtxSynchronize());
    cr_assert_eq(*(unsigned char *)(uintptr_t)mappings[2].at, 0x10);
    for (int i = 0; i < N_DEVICES; i++)
        soft_unmap(&mappings[i]);
    peer_end(&peer);
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

CAID_TEST(soft_devices, copies_reach_every_device)
{
    CUstream stream;
    unsigned char byte;
    start_two();
    MUST(cuStreamCreate(&stream, CU_STREAM_NON_BLOCKING));
    MUST(cuMemcpyPeer(memory[1], contexts[1], memory[0], contexts[0], GRAN));
    MUST(cuMemcpyDtoH_v2(&byte, memory[1] + GRAN - 1, 1));
    cr_assert_eq(byte, 0x50);
    MUST(cuMemcpyPeerAsync(memory[0] + 1, contexts[0], memory[1], contexts[1], 1, stream));
    MUST(cuMemcpyDtoDAsync_v2(memory[0], memory[1], 1, stream));
    MUST(cuStreamSynchronize(stream));
    /* Whose memory it is does not matter, only that there are such contexts. */
    MUST(cuMemcpyPeer(memory[1], contexts[0], memory[0], NULL, 1));
    cr_assert_eq(cu.cuMemcpyPeer(memory[1], (CUcontext)0x1234, memory[0], NULL, 1),
                 CUDA_ERROR_INVALID_CONTEXT);
    cr_assert_eq(cu.cuMemcpyPeer((uintptr_t)&byte, NULL, memory[0], NULL, 1),
                 CUDA_ERROR_INVALID_VALUE);
    MUST(cuStreamDestroy_v2(stream));
    end_two();
}

/* In line with the work of both contexts, though it runs in neither's stream. */
CAID_TEST(soft_devices, a_peer_copy_waits_for_both_contexts)
{
    CUstream before, after;
    struct gate gate;
    CUcontext third;
    unsigned char byte;
    start_two();
    MUST(cuCtxSetCurrent(contexts[0]));
    MUST(cuStreamCreate(&before, CU_STREAM_NON_BLOCKING));
    MUST(cuCtxSetCurrent(contexts[1]));
    MUST(cuStreamCreate(&after, CU_STREAM_NON_BLOCKING));
    gate_close(&gate, before);
    MUST(cuMemsetD8Async(memory[0], 0x77, GRAN, before));
    MUST(cuCtxCreate_v2(&third, 0, 1));
    MUST(cuMemcpyPeer(memory[1], contexts[1], memory[0], contexts[0], GRAN));
    MUST(cuMemsetD8Async(memory[1] + 1, 0x78, 1, after));
    cr_assert_eq(cu.cuStreamQuery(after), CUDA_ERROR_NOT_READY);
    gate_open(&gate);
    MUST(cuStreamSynchronize(after));
    MUST(cuMemcpyDtoH_v2(&byte, memory[1], 1));
    cr_assert_eq(byte, 0x77);
    MUST(cuMemcpyDtoH_v2(&byte, memory[1] + 1, 1));
    cr_assert_eq(byte, 0x78);
    MUST(cuCtxDestroy_v2(third));
    MUST(cuStreamDestroy_v2(before));
    MUST(cuStreamDestroy_v2(after));
    end_two();
}

static CUresult
free_first(void *arg UNUSED)
{
    return cu.cuMemFree_v2(memory[0]);
}

/* Freeing waits for the work on the memory, whichever context's it is. */
CAID_TEST(soft_devices, memory_is_freed_after_the_work_of_peers)
{
    CUstream stream, other;
    struct gate gate;
    struct blocked blocked;
    start_two();
    MUST(cuStreamCreate(&stream, CU_STREAM_NON_BLOCKING));
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
    MUST(cuStreamCreate(&other, CU_STREAM_NON_BLOCKING));
    gate_close(&gate, other);
    MUST(cuMemFree_v2(memory[1]));
    gate_open(&gate);
    MUST(cuStreamDestroy_v2(other));
    MUST(cuStreamDestroy_v2(stream));
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
    cr_assert_eq(cu.cuStreamWriteValue32_v2(NULL, memory[0], 1, 0), CUDA_ERROR_INVALID_VALUE);
    cr_assert_eq(cu.cuCtxEnablePeerAccess(contexts[0], 1), CUDA_ERROR_INVALID_VALUE);
    cr_assert_eq(cu.cuCtxEnablePeerAccess(contexts[1], 0), CUDA_ERROR_PEER_ACCESS_UNSUPPORTED);
    MUST(cuCtxEnablePeerAccess(contexts[0], 0));
    cr_assert_eq(cu.cuCtxEnablePeerAccess(contexts[0], 0),
                 CUDA_ERROR_PEER_ACCESS_ALREADY_ENABLED);
    assert_reach(memory[0], true);
    MUST(cuStreamWriteValue32_v2(NULL, memory[0], 1, 0));
    MUST(cuCtxSetCurrent(contexts[0]));
    cr_assert_eq(cu.cuMemsetD8_v2(memory[1], 1, 16), CUDA_ERROR_INVALID_VALUE);
    MUST(cuCtxSetCurrent(contexts[1]));
    MUST(cuCtxDisablePeerAccess(contexts[0]));
    cr_assert_eq(cu.cuCtxDisablePeerAccess(contexts[0]), CUDA_ERROR_PEER_ACCESS_NOT_ENABLED);
    assert_reach(memory[0], false);
    end_two();
}

/* Mappings and pools have access of their own. */
CAID_TEST(soft_devices, access_is_given_to_mappings_and_pools)
{
    CUmemAccessDesc desc = {{CU_MEM_LOCATION_TYPE_DEVICE, 1}, 3};
    CUmemoryPool pool;
    CUdeviceptr at;
    int flags;
    start_two();
    struct soft_mapping mapping = soft_map(GRAN, 3);
    assert_reach(mapping.at, false);
    MUST(cuPointerGetAttribute(&flags, CU_POINTER_ATTRIBUTE_ACCESS_FLAGS, mapping.at));
    cr_assert_eq(flags, 0);
    MUST(cuMemSetAccess(mapping.at, GRAN, &desc, 1));
    assert_reach(mapping.at, true);
    soft_unmap(&mapping);

    MUST(cuDeviceGetDefaultMemPool(&pool, 0));
    MUST(cuMemAllocFromPoolAsync(&at, 512, pool, NULL));
    assert_reach(at, false);
    MUST(cuMemPoolSetAccess(pool, &desc, 1));
    assert_reach(at, true);
    MUST(cuMemFreeAsync(at, NULL));
    MUST(cuCtxSynchronize());
    end_two();
}

CAID_TEST(soft_devices, links_are_described)
{
    int value = -1;
    start_two();
    MUST(cuDeviceCanAccessPeer(&value, 0, 1));
    cr_assert_eq(value, 1);
    MUST(cuDeviceCanAccessPeer(&value, 0, 0));
    cr_assert_eq(value, 0);
    MUST(cuDeviceGetP2PAttribute(&value, CU_DEVICE_P2P_ATTRIBUTE_ACCESS_SUPPORTED, 0, 1));
    cr_assert_eq(value, 1);
    MUST(cuDeviceGetP2PAttribute(&value, CU_DEVICE_P2P_ATTRIBUTE_PERFORMANCE_RANK, 0, 1));
    cr_assert_eq(value, 0);
    cr_assert_eq(cu.cuDeviceGetP2PAttribute(&value, (CUdevice_P2PAttribute)2, 0, 0),
                 CUDA_ERROR_INVALID_DEVICE);
    cr_assert_eq(cu.cuDeviceGetP2PAttribute(&value, (CUdevice_P2PAttribute)2, 0, 2),
                 CUDA_ERROR_INVALID_DEVICE);
    cr_assert_eq(cu.cuDeviceGetP2PAttribute(&value, (CUdevice_P2PAttribute)9, 0, 1),
                 CUDA_ERROR_INVALID_VALUE);
    end_two();
}
