/* SPDX-License-Identifier: Apache-2.0 */
#include "drv.h"

#include <dlfcn.h>
#include <link.h>
#include <linux/limits.h>
#include <pthread.h>
#include <stdarg.h>
#include <stdio.h>
#include <string.h>

#include "base/macros.h"
#include "nvml.h"

#define CUDA_LIBRARY  "libcuda.so.1"
#define NVML_LIBRARY  "libnvidia-ml.so.1"
#define SOFT_LIBRARY  "libcaid-softcuda.so"
#define LOOKUP_SYMBOL "cuGetProcAddress_v2"
/* What only the software driver exports; it is how a library says which kind it is. */
#define SOFT_SYMBOL "caid_softcuda_version"

typedef CUresult (*drv_lookup_fn)(const char *symbol, void **ret, int version, cuuint64_t flags,
                                  CUdriverProcAddressQueryResult *status);

/* Errors. */

PRINTF(4, 5)

static void
error_set(struct drv_error *err, const char *call, int result, const char *fmt, ...)
{
    if (!err)
        return;
    err->result = result;
    err->call = call;
    va_list args;
    va_start(args, fmt);
    vsnprintf(err->message, sizeof(err->message), fmt, args);
    va_end(args);
}

static int
result_errno(CUresult result)
{
    switch (result) {
    case CUDA_SUCCESS: return 0;
    case CUDA_ERROR_OUT_OF_MEMORY: return -ENOMEM;
    case CUDA_ERROR_INVALID_VALUE: return -EINVAL;
    case CUDA_ERROR_NOT_SUPPORTED: return -ENOTSUP;
    case CUDA_ERROR_NO_DEVICE:
    case CUDA_ERROR_INVALID_DEVICE: return -ENODEV;
    case CUDA_ERROR_NOT_PERMITTED: return -EPERM;
    case CUDA_ERROR_NOT_FOUND: return -ENOSYS;
    default: return -EIO;
    }
}

/* The driver's own words first: it knows results that are newer than this table. */
static void
result_words(const struct drv *drv, CUresult result, const char **ret_name,
             const char **ret_text)
{
    const char *name, *text;
    if (drv->cu.cuGetErrorName(result, &name) == CUDA_SUCCESS &&
        drv->cu.cuGetErrorString(result, &text) == CUDA_SUCCESS) {
        *ret_name = name;
        *ret_text = text;
        return;
    }
    switch (result) {
#define RESULT(symbol, number, words) \
    case symbol:                      \
        *ret_name = #symbol;          \
        *ret_text = words;            \
        return;
#include "results.def"
#undef RESULT
    }
    *ret_name = "CUDA error";
    *ret_text = "not known to this driver";
}

int
drv_fail(const struct drv *drv, struct drv_error *err, const char *call, CUresult result)
{
    if (err && result != CUDA_SUCCESS) {
        const char *name, *text;
        result_words(drv, result, &name, &text);
        error_set(err, call, (int)result, "%s: %s (%d): %s", call, name, (int)result, text);
    }
    return result_errno(result);
}

/* The table. */

#pragma GCC diagnostic push
#pragma GCC diagnostic ignored "-Wunused-parameter"
#define SYMBOL(name, lookup, version, ret, args) \
    static ret missing_##name args               \
    {                                            \
        return CUDA_ERROR_NOT_FOUND;             \
    }
#include "symbols.def"
#undef SYMBOL
#pragma GCC diagnostic pop

static void *
table_find(drv_lookup_fn lookup, const char *symbol, int version)
{
    void *address = NULL;
    CUdriverProcAddressQueryResult status = CU_GET_PROC_ADDRESS_SYMBOL_NOT_FOUND;
    CUresult result = lookup(symbol, &address, version, CU_GET_PROC_ADDRESS_DEFAULT, &status);
    if (result != CUDA_SUCCESS || status != CU_GET_PROC_ADDRESS_SUCCESS)
        return NULL;
    return address;
}

/* memcpy: ISO C knows no conversion of a data pointer to a function pointer. */
static void
table_fill(struct drv_table *table, drv_lookup_fn lookup)
{
    void *address;
#define SYMBOL(name, symbol, version, ret, args)         \
    address = table_find(lookup, symbol, version);       \
    if (address)                                         \
        memcpy(&table->name, &address, sizeof(address)); \
    else                                                 \
        table->name = missing_##name;
#include "symbols.def"
#undef SYMBOL
}

/* Opening. */

static void
library_closep(void **library)
{
    if (*library)
        dlclose(*library);
}

static char *
library_path(void *library, const char *name)
{
    struct link_map *map;
    if (dlinfo(library, RTLD_DI_LINKMAP, &map) == 0 && map->l_name[0])
        name = map->l_name;
    return strdup(name);
}

static int
drv_init(struct drv *drv, struct drv_error *err)
{
    struct drv_error why;
    int n_devices;
    if (DRV_CALL(drv, &why, cuInit, 0) < 0 ||
        DRV_CALL(drv, &why, cuDriverGetVersion, &drv->version) < 0 ||
        DRV_CALL(drv, &why, cuDeviceGetCount, &n_devices) < 0)
        error_set(err, why.call, why.result, "%s: %s", drv->path, why.message);
    else if (n_devices == 0)
        error_set(err, "cuDeviceGetCount", 0, "%s: no device", drv->path);
    else
        return 0;
    return -ENODEV;
}

static int
drv_open_nvml(struct drv *drv)
{
    const char *library = drv->kind == DRV_SOFT ? drv->path : NVML_LIBRARY;
    int r = nvml_open(&drv->nvml, library);
    return r == -ENOSYS ? 0 : r;
}

DEFINE_CLEANUP(struct drv *, drv_free)

static int
drv_open_library(struct drv **ret, const char *name, struct drv_error *err)
{
    _cleanup_(library_closep) void *library = dlopen(name, RTLD_NOW | RTLD_LOCAL);
    if (!library) {
        error_set(err, "dlopen", 0, "%s", dlerror());
        return -ENODEV;
    }
    void *address = dlsym(library, LOOKUP_SYMBOL);
    if (!address) {
        error_set(err, "dlsym", 0, "%s: no %s: not a CUDA driver of version 12.0 or later",
                  name, LOOKUP_SYMBOL);
        return -ENODEV;
    }
    drv_lookup_fn lookup;
    memcpy(&lookup, &address, sizeof(lookup));

    _cleanup_(drv_freep) struct drv *drv = calloc(1, sizeof(*drv));
    if (!drv)
        return -ENOMEM;
    drv->kind = dlsym(library, SOFT_SYMBOL) ? DRV_SOFT : DRV_CUDA;
    drv->path = library_path(library, name);
    if (!drv->path)
        return -ENOMEM;
    table_fill(&drv->cu, lookup);

    TAKE_PTR(library); /* from cuInit on it stays loaded: it has threads and exit handlers */
    int r = drv_init(drv, err);
    if (r < 0)
        return r;
    r = drv_open_nvml(drv);
    if (r < 0)
        return r;
    *ret = TAKE_PTR(drv);
    return 0;
}

static int
drv_open_soft(struct drv **ret, struct drv_error *err)
{
    char path[PATH_MAX];
    int r = drv_soft_path(path, sizeof(path));
    if (r < 0) {
        error_set(
            err, "dlopen", 0,
            SOFT_LIBRARY
            ": not found beside this program, in its ../lib, ../lib/caid or in " CAID_LIBDIR);
        return -ENODEV;
    }
    return drv_open_library(ret, path, err);
}

/* A software driver that steps in leaves the real one's reason in err. */
static int
drv_open_auto(struct drv **ret, struct drv_error *err)
{
    int r = drv_open_library(ret, CUDA_LIBRARY, err);
    return r == -ENODEV ? drv_open_soft(ret, err) : r;
}

static int
drv_open_choice(struct drv **ret, const char *choice, struct drv_error *err)
{
    if (strcmp(choice, "auto") == 0)
        return drv_open_auto(ret, err);
    if (strcmp(choice, "cuda") == 0)
        return drv_open_library(ret, CUDA_LIBRARY, err);
    if (strcmp(choice, "soft") == 0)
        return drv_open_soft(ret, err);
    if (strchr(choice, '/'))
        return drv_open_library(ret, choice, err);
    error_set(err, "drv_open", 0,
              "driver \"%s\": neither auto, cuda, soft nor a path (with a /)", choice);
    return -EINVAL;
}

int
drv_open(struct drv **ret, const char *choice, struct drv_error *err)
{
    /* One at a time: loading a driver is no place for races, and ThreadSanitizer cannot see the
     * loader's own lock. */
    static pthread_mutex_t lock = PTHREAD_MUTEX_INITIALIZER;

    if (!choice)
        choice = secure_getenv("CAID_CUDA_DRIVER");
    if (!choice || !choice[0])
        choice = "auto";
    error_set(err, "drv_open", 0, "%s", "");
    pthread_mutex_lock(&lock);
    int r = drv_open_choice(ret, choice, err);
    pthread_mutex_unlock(&lock);
    if (r == -ENOMEM)
        error_set(err, "drv_open", 0, "driver \"%s\": out of host memory", choice);
    return r;
}

struct drv *
drv_free(struct drv *drv)
{
    if (!drv)
        return NULL;
    nvml_free(drv->nvml);
    free(drv->path);
    free(drv);
    return NULL;
}

const char *
drv_kind_name(enum drv_kind kind)
{
    return kind == DRV_SOFT ? "soft" : "cuda";
}

/* Where the software driver lies. */

/* The file that this code was loaded from: a program, libcaid.so or the Python extension. */
static int
own_file(char path[PATH_MAX])
{
    static const char anchor = 0;
    Dl_info info;
    struct link_map *map;
    if (!dladdr1(&anchor, &info, (void **)&map, RTLD_DL_LINKMAP))
        return -ENOENT;
    /* A program has no name of its own here, and argv[0] is anything. */
    const char *name = map->l_name[0] ? map->l_name : "/proc/self/exe";
    return realpath(name, path) ? 0 : -errno;
}

static int
soft_path_try(const char *dir, const char *below, char *ret_path, size_t size)
{
    char candidate[PATH_MAX], path[PATH_MAX];
    int n = snprintf(candidate, sizeof(candidate), "%s%s/" SOFT_LIBRARY, dir, below);
    if (n < 0 || (size_t)n >= sizeof(candidate))
        return -ENAMETOOLONG;
    if (!realpath(candidate, path))
        return -errno;
    if (strlen(path) >= size)
        return -ENAMETOOLONG;
    strcpy(ret_path, path);
    return 0;
}

int
drv_soft_path(char *ret_path, size_t size)
{
    static const char *const below[] = {"", "/../lib", "/../lib/caid", "/.."};
    char file[PATH_MAX];
    int r = own_file(file);
    if (r == 0) {
        *strrchr(file, '/') = '\0';
        for (size_t i = 0; i < ARRAY_SIZE(below); i++) {
            if (soft_path_try(file, below[i], ret_path, size) == 0)
                return 0;
        }
    }
    return soft_path_try(CAID_LIBDIR, "", ret_path, size) == 0 ? 0 : -ENOENT;
}

/* Devices. */

int
drv_device_count(const struct drv *drv, int *ret_n, struct drv_error *err)
{
    int n;
    int r = DRV_CALL(drv, err, cuDeviceGetCount, &n);
    if (r == 0)
        *ret_n = n;
    return r;
}

static void
uuid_format(const CUuuid *uuid, char text[DRV_UUID_SIZE])
{
    unsigned char b[sizeof(uuid->bytes)];
    memcpy(b, uuid->bytes, sizeof(b));
    snprintf(text, DRV_UUID_SIZE,
             "GPU-%02x%02x%02x%02x-%02x%02x-%02x%02x-%02x%02x-%02x%02x%02x%02x%02x%02x", b[0],
             b[1], b[2], b[3], b[4], b[5], b[6], b[7], b[8], b[9], b[10], b[11], b[12], b[13],
             b[14], b[15]);
}

static int
device_attribute(const struct drv *drv, CUdevice device, CUdevice_attribute attribute, int *ret,
                 struct drv_error *err)
{
    int value;
    int r = DRV_CALL(drv, err, cuDeviceGetAttribute, &value, attribute, device);
    if (r == 0)
        *ret = value;
    return r;
}

/* Granularity is asked for the kind of memory that vmm.c creates. */
static int
device_get_vmm(const struct drv *drv, struct drv_device *device, struct drv_error *err)
{
    int vmm = 0, fd = 0;
    int r = device_attribute(drv, device->ordinal,
                             CU_DEVICE_ATTRIBUTE_VIRTUAL_MEMORY_MANAGEMENT_SUPPORTED, &vmm,
                             err);
    if (r < 0)
        return r;
    r = device_attribute(drv, device->ordinal,
                         CU_DEVICE_ATTRIBUTE_HANDLE_TYPE_POSIX_FILE_DESCRIPTOR_SUPPORTED, &fd,
                         err);
    if (r < 0)
        return r;
    device->vmm_fd = vmm && fd;
    if (!device->vmm_fd)
        return 0;
    CUmemAllocationProp prop = {
        .type = CU_MEM_ALLOCATION_TYPE_PINNED,
        .requestedHandleTypes = CU_MEM_HANDLE_TYPE_POSIX_FILE_DESCRIPTOR,
        .location = {.type = CU_MEM_LOCATION_TYPE_DEVICE, .id = device->ordinal},
    };
    return DRV_CALL(drv, err, cuMemGetAllocationGranularity, &device->granularity, &prop,
                    CU_MEM_ALLOC_GRANULARITY_MINIMUM);
}

/* An attribute that the driver does not know is 0: the device lacks what it stands for. */
static int
device_trait(const struct drv *drv, CUdevice device, CUdevice_attribute attribute)
{
    int value = 0;
    device_attribute(drv, device, attribute, &value, NULL);
    return value;
}

static const char *
device_compute_mode(const struct drv *drv, CUdevice device)
{
    int mode = -1;
    device_attribute(drv, device, CU_DEVICE_ATTRIBUTE_COMPUTE_MODE, &mode, NULL);
    switch (mode) {
    case CU_COMPUTEMODE_DEFAULT: return "default";
    case CU_COMPUTEMODE_PROHIBITED: return "prohibited";
    case CU_COMPUTEMODE_EXCLUSIVE_PROCESS: return "exclusive";
    default: return NULL;
    }
}

static void
device_get_traits(const struct drv *drv, struct drv_device *device)
{
    CUdevice ordinal = device->ordinal;

    device->ipc = device_trait(drv, ordinal, CU_DEVICE_ATTRIBUTE_IPC_EVENT_SUPPORTED);
    device->memops =
        device_trait(drv, ordinal, CU_DEVICE_ATTRIBUTE_CAN_USE_64_BIT_STREAM_MEM_OPS);
    device->readonly_host =
        device_trait(drv, ordinal, CU_DEVICE_ATTRIBUTE_READ_ONLY_HOST_REGISTER_SUPPORTED);
    device->fabric =
        device_trait(drv, ordinal, CU_DEVICE_ATTRIBUTE_HANDLE_TYPE_FABRIC_SUPPORTED);
    device->rdma =
        device_trait(drv, ordinal, CU_DEVICE_ATTRIBUTE_GPU_DIRECT_RDMA_WITH_CUDA_VMM_SUPPORTED);
    device->mps = device_trait(drv, ordinal, CU_DEVICE_ATTRIBUTE_MPS_ENABLED);
    device->compute_mode = device_compute_mode(drv, ordinal);
    snprintf(device->pci, sizeof(device->pci), "%04x:%02x:%02x.0",
             device_trait(drv, ordinal, CU_DEVICE_ATTRIBUTE_PCI_DOMAIN_ID) & 0xffff,
             device_trait(drv, ordinal, CU_DEVICE_ATTRIBUTE_PCI_BUS_ID) & 0xff,
             device_trait(drv, ordinal, CU_DEVICE_ATTRIBUTE_PCI_DEVICE_ID) & 0xff);
}

int
drv_device_get(const struct drv *drv, int ordinal, struct drv_device *ret,
               struct drv_error *err)
{
    struct drv_device device = {0};
    CUuuid uuid;
    int r;
    if ((r = DRV_CALL(drv, err, cuDeviceGet, &device.ordinal, ordinal)) < 0 ||
        (r = DRV_CALL(drv, err, cuDeviceGetName, device.name, sizeof(device.name),
                      device.ordinal)) < 0 ||
        (r = DRV_CALL(drv, err, cuDeviceGetUuid, &uuid, device.ordinal)) < 0 ||
        (r = DRV_CALL(drv, err, cuDeviceTotalMem, &device.total, device.ordinal)) < 0 ||
        (r = device_get_vmm(drv, &device, err)) < 0)
        return r;
    uuid_format(&uuid, device.uuid);
    device_get_traits(drv, &device);
    *ret = device;
    return 0;
}

int
drv_memory_info(const struct drv *drv, const char *uuid, uint64_t *ret_free,
                uint64_t *ret_total, struct drv_error *err)
{
    if (!drv->nvml) {
        error_set(err, "nvmlInit_v2", 0, "device %s: no memory figures: %s not found", uuid,
                  NVML_LIBRARY);
        return -ENOSYS;
    }
    return nvml_memory_info(drv->nvml, uuid, ret_free, ret_total, err);
}

int
drv_persistence(const struct drv *drv, const char *uuid, bool *ret_on)
{
    return drv->nvml ? nvml_persistence(drv->nvml, uuid, ret_on) : -ENOSYS;
}
