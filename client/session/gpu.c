/* SPDX-License-Identifier: Apache-2.0 */
#include "gpu.h"

#include <errno.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include "client.h"
#include "feature.h"

int
gpu_init(struct gpu *gpu, const char *choice)
{
    gpu->choice = strdup(choice);
    return gpu->choice ? 0 : -ENOMEM;
}

static void
gpus_abandon(struct caid_client *client)
{
    free(client->gpu.devices);
    free(client->gpu.choice);
}

/* If the client keeps memory, the contexts that may use it stay, too, until the process exits. */
static void
gpus_deinit(struct caid_client *client)
{
    struct gpu *gpu = &client->gpu;

    for (uint32_t i = 0; !client->keeps && i < gpu->n_devices; i++)
        if (gpu->devices[i].context)
            gpu->drv->cu.cuDevicePrimaryCtxRelease(gpu->devices[i].ordinal);
    drv_free(gpu->drv);
    gpus_abandon(client);
}

const struct feature gpu_feature = {.deinit = gpus_deinit, .abandon = gpus_abandon};

bool
gpu_is_dead(CUresult result)
{
    switch (result) {
    case CUDA_ERROR_DEINITIALIZED:
    case CUDA_ERROR_ECC_UNCORRECTABLE:
    case CUDA_ERROR_NVLINK_UNCORRECTABLE:
    case CUDA_ERROR_ILLEGAL_ADDRESS:
    case CUDA_ERROR_LAUNCH_TIMEOUT:
    case CUDA_ERROR_CONTEXT_IS_DESTROYED:
    case CUDA_ERROR_ASSERT:
    case CUDA_ERROR_HARDWARE_STACK_ERROR:
    case CUDA_ERROR_ILLEGAL_INSTRUCTION:
    case CUDA_ERROR_MISALIGNED_ADDRESS:
    case CUDA_ERROR_INVALID_ADDRESS_SPACE:
    case CUDA_ERROR_INVALID_PC:
    case CUDA_ERROR_LAUNCH_FAILED:
    case CUDA_ERROR_EXTERNAL_DEVICE: return true;
    default: return false;
    }
}

bool
gpu_is_gone(CUresult result)
{
    return result == CUDA_ERROR_INVALID_CONTEXT || gpu_is_dead(result);
}

bool
gpu_is_over(CUresult result)
{
    return result == CUDA_SUCCESS || gpu_is_gone(result);
}

bool
gpu_is_capturing(CUresult result)
{
    return result >= CUDA_ERROR_STREAM_CAPTURE_UNSUPPORTED &&
           result <= CUDA_ERROR_STREAM_CAPTURE_WRONG_THREAD;
}

CUresult
gpu_captures(const struct drv *drv, CUstream stream, bool *ret)
{
    CUstreamCaptureStatus status = CU_STREAM_CAPTURE_STATUS_NONE;
    CUresult result = drv->cu.cuStreamIsCapturing(stream, &status);

    *ret = result == CUDA_SUCCESS ? status != CU_STREAM_CAPTURE_STATUS_NONE
                                  : gpu_is_capturing(result);
    return *ret ? CUDA_SUCCESS : result;
}

CUcontext
gpu_current(const struct drv *drv)
{
    CUcontext context;

    return drv->cu.cuCtxGetCurrent(&context) == CUDA_SUCCESS ? context : NULL;
}

int
gpu_relax(const struct drv *drv)
{
    CUstreamCaptureMode mode = CU_STREAM_CAPTURE_MODE_RELAXED;

    return drv->cu.cuThreadExchangeStreamCaptureMode(&mode) == CUDA_SUCCESS ? (int)mode : -1;
}

void
gpu_unrelax(const struct drv *drv, int before)
{
    CUstreamCaptureMode mode = (CUstreamCaptureMode)before;

    if (before >= 0)
        drv->cu.cuThreadExchangeStreamCaptureMode(&mode);
}

CUresult
gpu_synchronize(const struct drv *drv, CUcontext context, CUevent event)
{
    CUresult result = drv->cu.cuCtxPushCurrent(context);
    if (result != CUDA_SUCCESS)
        return result;
    int mode = gpu_relax(drv);
    result = event ? drv->cu.cuEventSynchronize(event) : drv->cu.cuCtxSynchronize();
    gpu_unrelax(drv, mode);
    gpu_pop(drv);
    return result;
}

int
gpu_result(const struct drv *drv, const char *call, CUresult result, const char *doing,
           struct caid_error *error)
{
    struct drv_error cause = {0};

    if (result == CUDA_SUCCESS)
        return 0;
    int r = drv_fail(drv, &cause, call, result);
    return fail_driver(error, r, &cause, "%s", doing);
}

static int
list_device(const struct caid_client *client, const struct drv *drv, int ordinal,
            struct gpu_device *ret, struct drv_error *cause)
{
    struct drv_device found;

    int r = drv_device_get(drv, ordinal, &found, cause);
    if (r < 0)
        return r;
    ret->ordinal = found.ordinal;
    memcpy(ret->uuid, found.uuid, sizeof(ret->uuid));
    memcpy(ret->pci, found.pci, sizeof(ret->pci));
    ret->index = client_find_device(client, MSG_STR(found.uuid));
    return 0;
}

/* Lists this process's devices, by ordinal. */
static int
list_devices(const struct caid_client *client, const struct drv *drv, struct gpu_device **ret,
             uint32_t *ret_n, struct drv_error *cause)
{
    int n;

    int r = drv_device_count(drv, &n, cause);
    if (r < 0)
        return r;
    if (n > GPU_PLACES_MAX)
        n = GPU_PLACES_MAX;
    _cleanup_free_ struct gpu_device *devices = calloc(n > 0 ? (size_t)n : 1, sizeof(*devices));
    if (!devices)
        return -ENOMEM;
    for (int i = 0; i < n; i++) {
        r = list_device(client, drv, i, &devices[i], cause);
        if (r < 0)
            return r;
    }
    *ret = TAKE_PTR(devices);
    *ret_n = (uint32_t)n;
    return 0;
}

static int
fail_forked(const struct drv_error *cause, struct caid_error *error)
{
    int r = fail(error, CAID_ERR_FORKED,
                 "CUDA does not work in a child after fork() of a process that has used it: "
                 "use spawn or forkserver (multiprocessing's start methods): %s",
                 cause->message);
    if (error)
        error->cuda_result = cause->result;
    return r;
}

/* In such a child the driver's error is NOT_INITIALIZED, after which "auto" would take the software
 * driver. */
int
gpu_load(struct drv **ret, const char *choice, struct caid_error *error)
{
    struct drv_error cause = {0};
    struct drv *drv = NULL;

    int r = drv_open(&drv, choice, &cause);
    if (cause.result == CUDA_ERROR_NOT_INITIALIZED) {
        drv_free(drv);
        return fail_forked(&cause, error);
    }
    if (r < 0)
        return fail_driver(error, r, &cause, "cannot use CUDA driver \"%s\"", choice);
    *ret = drv;
    return 0;
}

/* Under gpu->lock. */
static int
gpu_open(struct caid_client *client, struct caid_error *error)
{
    struct gpu *gpu = &client->gpu;
    struct drv_error cause = {0};
    struct drv *drv;

    if (gpu->drv)
        return 0;
    int r = gpu_load(&drv, gpu->choice, error);
    if (r < 0)
        return r;
    r = list_devices(client, drv, &gpu->devices, &gpu->n_devices, &cause);
    if (r < 0) {
        drv_free(drv);
        return fail_driver(error, r, &cause, "cannot find this process's CUDA devices");
    }
    gpu->drv = drv;
    return 0;
}

int
gpu_driver(struct caid_client *client, const struct drv **ret, struct caid_error *error)
{
    pthread_mutex_lock(&client->gpu.lock);
    int r = gpu_open(client, error);
    if (r == 0)
        *ret = client->gpu.drv;
    pthread_mutex_unlock(&client->gpu.lock);
    return r;
}

const struct drv *
gpu_opened(struct caid_client *client)
{
    pthread_mutex_lock(&client->gpu.lock);
    const struct drv *drv = client->gpu.drv;
    pthread_mutex_unlock(&client->gpu.lock);
    return drv;
}

/* ---- which device is meant ---- */

/* The index of what this process sees as `ordinal`. */
static int
ordinal_index(struct caid_client *client, int32_t ordinal, int32_t *ret,
              struct caid_error *error)
{
    const struct gpu *gpu = &client->gpu;
    const struct gpu_device *device = gpu_find_ordinal(gpu, ordinal);

    if (!device)
        return fail(error, CAID_ERR_DEVICE,
                    "CUDA device %d: this process sees %u (driver %s; see "
                    "CUDA_VISIBLE_DEVICES)",
                    ordinal, gpu->n_devices, gpu->drv->path);
    if (device->index < 0)
        return fail(error, CAID_ERR_DEVICE,
                    "%s: the daemon has not got %s, CUDA device %d of this process",
                    client->socket, device->uuid, ordinal);
    *ret = device->index;
    return 0;
}

int
caid_client_find_device(struct caid_client *client, int32_t ordinal, int32_t *ret,
                        struct caid_error *error)
{
    const struct drv *drv = NULL;

    int r = client_check_given(client, ret, "ret", error);
    if (r == 0)
        r = gpu_driver(client, &drv, error);
    return r < 0 ? r : ordinal_index(client, ordinal, ret, error);
}

/* Domain, bus and device: "0000:65:00.0", as nvidia-smi prints it ("00000000:65:00.0"), or as lspci
 * does ("65:00.0"). */
static bool
read_pci(const char *text, unsigned ret[3])
{
    int n = 0;

    if (sscanf(text, "%8x:%2x:%2x.0%n", &ret[0], &ret[1], &ret[2], &n) != 3 || !n) {
        ret[0] = 0;
        if (sscanf(text, "%2x:%2x.0%n", &ret[1], &ret[2], &n) != 2)
            return false;
    }
    return n > 0 && text[n] == '\0';
}

static bool
is_device(const char *text, const char *uuid, const char *pci)
{
    unsigned is[3], meant[3];

    if (strcmp(uuid, text) == 0)
        return true;
    return pci && read_pci(text, meant) && read_pci(pci, is) &&
           memcmp(is, meant, sizeof(is)) == 0;
}

/* "own", "cuda:1". */
static bool
is_of_process(const struct drv *drv, const char *text, CUdevice *ret)
{
    int n = 0;

    if (strcmp(text, "own") != 0)
        return sscanf(text, "cuda:%4d%n", ret, &n) == 1 && text[n] == '\0';
    if (drv->cu.cuCtxGetDevice(ret) != CUDA_SUCCESS)
        *ret = 0;
    return true;
}

int
caid_client_parse_device(struct caid_client *client, const char *text, int32_t *ret,
                         struct caid_error *error)
{
    const struct drv *drv = NULL;
    CUdevice ordinal;

    int r = client_check_given(client, text && ret, "text or ret", error);
    if (r < 0)
        return r;
    for (uint32_t i = 0; i < client->n_devices; i++)
        if (is_device(text, client->devices[i]->uuid, client->devices[i]->pci)) {
            *ret = (int32_t)i;
            return 0;
        }
    if (strcmp(text, "own") == 0 || strncmp(text, "cuda:", 5) == 0) {
        r = gpu_driver(client, &drv, error);
        if (r < 0)
            return r;
        if (is_of_process(drv, text, &ordinal))
            return ordinal_index(client, ordinal, ret, error);
    }
    return fail(error, CAID_ERR_DEVICE,
                "the daemon has no device \"%.80s\": the text is a UUID, a PCI address, "
                "\"cuda:0\" or \"own\"",
                text);
}

/* ---- places ---- */

static int
find_visible(const struct gpu *gpu, const char *text, uint32_t *ret, struct caid_error *error)
{
    CUdevice ordinal;
    bool is_own = is_of_process(gpu->drv, text, &ordinal);

    for (uint32_t i = 0; i < gpu->n_devices; i++)
        if (is_own ? gpu->devices[i].ordinal == ordinal
                   : is_device(text, gpu->devices[i].uuid, gpu->devices[i].pci)) {
            *ret = i;
            return 0;
        }
    return fail(error, CAID_ERR_DEVICE,
                "device %.80s is not visible in this process (driver %s; see "
                "CUDA_VISIBLE_DEVICES)",
                text, gpu->drv->path);
}

int
gpu_find_place(struct caid_client *client, int32_t index, const char *device_uuid,
               uint32_t *ret, struct caid_error *error)
{
    const struct gpu *gpu = &client->gpu;
    const struct drv *drv;
    const char *uuid;

    int r = client_device_uuid(client, index, &uuid, error);
    if (r == 0)
        r = gpu_driver(client, &drv, error);
    if (r < 0)
        return r;
    if (device_uuid)
        return find_visible(gpu, device_uuid, ret, error);
    const struct gpu_device *own = gpu_find_index(gpu, index);
    *ret = own ? (uint32_t)(own - gpu->devices) : 0; /* the first exists: see drv_open() */
    return 0;
}

int
gpu_context(struct caid_client *client, uint32_t place, CUcontext *ret,
            struct caid_error *error)
{
    CUresult result = CUDA_SUCCESS;
    const struct drv *drv = NULL;
    CUcontext context;

    int r = gpu_driver(client, &drv, error);
    if (r < 0)
        return r;
    struct gpu_device *device = &client->gpu.devices[place];
    pthread_mutex_lock(&client->gpu.lock);
    context = device->context;
    if (!context)
        result = drv->cu.cuDevicePrimaryCtxRetain(&context, device->ordinal);
    if (result == CUDA_SUCCESS)
        device->context = context;
    pthread_mutex_unlock(&client->gpu.lock);

    if (result == CUDA_SUCCESS)
        *ret = context;
    return gpu_result(drv, "cuDevicePrimaryCtxRetain", result,
                      "cannot use the device's primary context", error);
}

int
gpu_push_context(struct caid_client *client, CUcontext context, const char *doing,
                 const struct drv **ret_drv, struct caid_error *error)
{
    const struct drv *drv = client->gpu.drv;
    CUresult result = drv->cu.cuCtxPushCurrent(context);

    if (result == CUDA_SUCCESS)
        *ret_drv = drv;
    return gpu_result(drv, "cuCtxPushCurrent", result, doing, error);
}

int
gpu_push_place(struct caid_client *client, uint32_t place, const struct drv **ret_drv,
               struct caid_error *error)
{
    CUcontext context = NULL;

    int r = gpu_context(client, place, &context, error);
    return r < 0 ? r
                 : gpu_push_context(client, context, "cannot use the device's primary context",
                                    ret_drv, error);
}

int
gpu_push(struct caid_client *client, int32_t index, const struct drv **ret_drv,
         struct caid_error *error)
{
    uint32_t place;

    int r = gpu_find_place(client, index, NULL, &place, error);
    return r < 0 ? r : gpu_push_place(client, place, ret_drv, error);
}

void
gpu_pop(const struct drv *drv)
{
    CUcontext context;
    drv->cu.cuCtxPopCurrent(&context);
}

const struct gpu_device *
gpu_find_ordinal(const struct gpu *gpu, CUdevice ordinal)
{
    for (uint32_t i = 0; i < gpu->n_devices; i++)
        if (gpu->devices[i].ordinal == ordinal)
            return &gpu->devices[i];
    return NULL;
}

const struct gpu_device *
gpu_find_index(const struct gpu *gpu, int32_t index)
{
    for (uint32_t i = 0; i < gpu->n_devices; i++)
        if (gpu->devices[i].index == index)
            return &gpu->devices[i];
    return NULL;
}
