/* SPDX-License-Identifier: Apache-2.0 */
#include "soft_test.h"

#include <dlfcn.h>
#include <sched.h>
#include <signal.h>
#include <stdio.h>
#include <string.h>
#include <sys/prctl.h>
#include <unistd.h>

struct soft_api cu;
void (*soft_end_peers)(void);

/* What soft_end() is to end, if nobody has before; of this thread, as programs have several. */
static _Thread_local struct soft_mapping mappings[8];
static _Thread_local CUmemoryPool pools[8];
static _Thread_local size_t n_mappings, n_pools;

static void *
load_symbol(void *library, const char *name)
{
    void *symbol = dlsym(library, name);
    if (!symbol) {
        fprintf(stderr, "%s\n", dlerror());
        abort();
    }
    return symbol;
}

void
soft_load_path(const char *path)
{
    void *library = dlopen(path, RTLD_NOW | RTLD_LOCAL);
    if (!library) {
        fprintf(stderr, "%s\n", dlerror());
        abort();
    }
#define LOAD(symbol)                                  *(void **)&cu.symbol = load_symbol(library, #symbol);
#define EXPORT(symbol, ...)                           LOAD(symbol)
#define EXPORT_PT(symbol, base, version, suffix, ...) LOAD(symbol) LOAD(symbol##suffix)
#define ENTRY(symbol, ...)
#define NVML(symbol, ...) LOAD(symbol)
#include "soft/exports.def"
    LOAD(nvmlErrorString)
    LOAD(caid_softcuda_control)
    LOAD(caid_softcuda_version)
}

void
soft_must(CUresult result, const char *call, int line)
{
    const char *name = NULL;
    if (result == CUDA_SUCCESS)
        return;
    cu.cuGetErrorName(result, &name);
    fprintf(stderr, "line %d: %s: %s\n", line, call, name ? name : "?");
    abort();
}

void
soft_start(void)
{
    char uuid[64];
    snprintf(uuid, sizeof(uuid), "GPU-%08x-0000-4000-8000-000000000000", (unsigned)getpid());
    setenv("CAID_SOFTCUDA_UUID", uuid, 0);
    soft_load_path(SOFTCUDA_PATH);
    MUST(cuInit(0));
}

CUcontext
soft_start_context(void)
{
    CUcontext context;
    soft_start();
    MUST(cuDevicePrimaryCtxRetain(&context, 0));
    MUST(cuCtxSetCurrent(context));
    return context;
}

void
soft_end(void)
{
    int n = 0;
    if (soft_end_peers)
        soft_end_peers();
    if (cu.cuInit && cu.cuDeviceGetCount(&n) != CUDA_SUCCESS)
        n = 0;
    if (n > 0)
        cu.cuCtxSynchronize(); /* a default pool gives back what was freed */
    for (int i = 0; i < n; i++)
        cu.cuDevicePrimaryCtxReset_v2(i);
    while (n_mappings > 0) {
        struct soft_mapping last = mappings[n_mappings - 1];
        soft_unmap(&last);
    }
    while (n_pools > 0)
        cu.cuMemPoolDestroy(pools[--n_pools]);
}

uint64_t
soft_used(void)
{
    nvmlDevice_t device;
    nvmlMemory_t memory;
    if (cu.nvmlInit_v2() != NVML_SUCCESS ||
        cu.nvmlDeviceGetHandleByIndex_v2(0, &device) != NVML_SUCCESS ||
        cu.nvmlDeviceGetMemoryInfo(device, &memory) != NVML_SUCCESS ||
        cu.nvmlShutdown() != NVML_SUCCESS)
        abort();
    return memory.used;
}

uint64_t
soft_used_later(uint64_t bytes)
{
    for (int i = 0; i < 1000 && soft_used() != bytes; i++)
        usleep(10000);
    return soft_used();
}

CUmemAllocationProp
soft_prop(int ordinal)
{
    return (CUmemAllocationProp){
        .type = CU_MEM_ALLOCATION_TYPE_PINNED,
        .requestedHandleTypes = CU_MEM_HANDLE_TYPE_POSIX_FILE_DESCRIPTOR,
        .location = {CU_MEM_LOCATION_TYPE_DEVICE, ordinal},
    };
}

void
soft_set_access(const struct soft_mapping *mapping, int access)
{
    CUmemAccessDesc desc = {{CU_MEM_LOCATION_TYPE_DEVICE, 0}, (CUmemAccess_flags)access};
    MUST(cuMemSetAccess(mapping->at, mapping->size, &desc, 1));
}

struct soft_mapping
soft_map(size_t size, int access)
{
    struct soft_mapping mapping = {.size = size};
    CUmemAllocationProp prop = soft_prop(0);
    MUST(cuMemCreate(&mapping.handle, size, &prop, 0));
    MUST(cuMemAddressReserve(&mapping.at, size, 0, 0, 0));
    MUST(cuMemMap(mapping.at, size, 0, mapping.handle, 0));
    if (access)
        soft_set_access(&mapping, access);
    if (n_mappings < ARRAY_SIZE(mappings))
        mappings[n_mappings++] = mapping;
    return mapping;
}

void
soft_unmap(struct soft_mapping *mapping)
{
    for (size_t i = 0; i < n_mappings; i++)
        if (mappings[i].at == mapping->at)
            mappings[i] = mappings[--n_mappings];
    MUST(cuMemUnmap(mapping->at, mapping->size));
    MUST(cuMemAddressFree(mapping->at, mapping->size));
    MUST(cuMemRelease(mapping->handle));
}

CUstream
soft_stream(unsigned int flags)
{
    CUstream stream;
    MUST(cuStreamCreate(&stream, flags));
    return stream;
}

CUevent
soft_event(unsigned int flags)
{
    CUevent event;
    MUST(cuEventCreate(&event, flags));
    return event;
}

CUdeviceptr
soft_memory(size_t size)
{
    CUdeviceptr at;
    MUST(cuMemAlloc_v2(&at, size));
    return at;
}

CUmemoryPool
soft_pool(CUmemAllocationHandleType handles, CUmemLocationType where, size_t max)
{
    CUmemPoolProps props = {.allocType = CU_MEM_ALLOCATION_TYPE_PINNED,
                            .handleTypes = handles,
                            .location = {where, 0},
                            .maxSize = max};
    CUmemoryPool pool;
    MUST(cuMemPoolCreate(&pool, &props));
    if (n_pools < ARRAY_SIZE(pools))
        pools[n_pools++] = pool;
    return pool;
}

void *
soft_pinned(void)
{
    void *at;
    MUST(cuMemHostAlloc(&at, PAGE, 0));
    memset(at, 0, PAGE);
    return at;
}

void
soft_fill(CUdeviceptr at, unsigned char value, size_t size)
{
    MUST(cuMemsetD8_v2(at, value, size));
    MUST(cuCtxSynchronize());
}

bool
soft_holds(CUdeviceptr at, unsigned char value, size_t size)
{
    _cleanup_free_ unsigned char *bytes = malloc(size);
    MUST(cuMemcpyDtoH_v2(bytes, at, size));
    for (size_t i = 0; i < size; i++)
        if (bytes[i] != value)
            return false;
    return true;
}

size_t
soft_live(const char *kind)
{
    char reply[1024], name[64], *rest = reply, *line;
    size_t n;
    if (cu.caid_softcuda_control("live", reply, sizeof(reply)) < 0)
        abort();
    while ((line = strsep(&rest, "\n")))
        if (sscanf(line, "%63s %zu", name, &n) == 2 && strcmp(name, kind) == 0)
            return n;
    abort();
}

static void
gate_wait(void *data)
{
    struct gate *gate = data;
    while (sem_wait(&gate->open) < 0)
        ;
}

void
gate_close(struct gate *gate, CUstream stream)
{
    sem_init(&gate->open, 0, 0);
    MUST(cuLaunchHostFunc(stream, gate_wait, gate));
}

void
gate_open(struct gate *gate)
{
    sem_post(&gate->open);
}

pid_t
soft_fork(void)
{
    pid_t child = fork();
    if (child < 0)
        abort();
    if (child == 0)
        prctl(PR_SET_PDEATHSIG, SIGKILL);
    return child;
}

static void *
blocked_run(void *arg)
{
    struct blocked *blocked = arg;
    blocked->tid = gettid();
    blocked->result = blocked->call(blocked->arg);
    blocked->returned = true;
    return NULL;
}

void
blocked_start(struct blocked *blocked, CUresult (*call)(void *), void *arg)
{
    *blocked = (struct blocked){.call = call, .arg = arg};
    if (pthread_create(&blocked->thread, NULL, blocked_run, blocked) != 0)
        abort();
}

/* The letter for its state, of a thread of this process: R, S, ... */
static char
thread_state(pid_t tid)
{
    char path[64], state = '?';
    snprintf(path, sizeof(path), "/proc/self/task/%d/stat", (int)tid);
    FILE *file = fopen(path, "re");
    if (file && fscanf(file, "%*d (%*[^)]) %c", &state) != 1)
        state = '?';
    if (file)
        fclose(file);
    return state;
}

bool
blocked_waits(struct blocked *blocked)
{
    while (!blocked->returned && (blocked->tid == 0 || thread_state(blocked->tid) != 'S'))
        sched_yield();
    return !blocked->returned;
}

CUresult
blocked_join(struct blocked *blocked)
{
    pthread_join(blocked->thread, NULL);
    return blocked->result;
}
