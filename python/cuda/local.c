/* SPDX-License-Identifier: Apache-2.0 */
/* A client without a daemon: its devices are all those of the driver. */
#include "cuda/local.h"

#include <errno.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include "session/client.h"

DEFINE_CLEANUP(struct caid_client *, caid_client_close)
DEFINE_CLEANUP(struct drv *, drv_free)

static void
device_fill(struct caid_device *ret, const struct drv_device *found)
{
    snprintf(ret->uuid, sizeof(ret->uuid), "%s", found->uuid);
    snprintf(ret->name, sizeof(ret->name), "%s", found->name);
    ret->total = found->total;
    ret->granularity = found->granularity;
    ret->memops = found->memops;
    ret->readonly_host = found->readonly_host;
    ret->mps = found->mps;
    snprintf(ret->compute_mode, sizeof(ret->compute_mode), "%s",
             found->compute_mode ? found->compute_mode : "");
}

/* Lists the driver's devices in the order of their ordinals. */
static int
devices_fill(struct caid_client *client, const struct drv *drv, struct drv_error *cause)
{
    struct drv_device found;
    int n;

    int r = drv_device_count(drv, &n, cause);
    if (r < 0)
        return r;
    if (client_make_devices(client, (uint32_t)n) < 0)
        return -ENOMEM;
    for (int i = 0; i < n; i++) {
        r = drv_device_get(drv, i, &found, cause);
        if (r < 0)
            return r;
        device_fill(client->devices[i], &found);
    }
    return 0;
}

static int
open_driver(struct caid_client *client, const char *driver, struct caid_error *error)
{
    const char *choice = driver && driver[0] ? driver : secure_getenv("CAID_CUDA_DRIVER");
    _cleanup_(drv_freep) struct drv *drv = NULL;
    struct drv_error cause = {0};

    if (!choice || !choice[0])
        choice = "auto";
    strcpy(client->socket, "(no daemon)");
    client->lost.code = CAID_ERR_NO_DAEMON;
    strcpy(client->lost.message, "this client is of the CUDA driver alone: it has no daemon");

    int r = gpu_load(&drv, choice, error);
    if (r < 0)
        return r;
    r = devices_fill(client, drv, &cause);
    if (r < 0)
        return fail_driver(error, r, &cause, "cannot find this process's CUDA devices");
    r = gpu_init(&client->gpu, choice);
    return r < 0 ? fail_errno(error, ENOMEM, "no memory for %u devices", client->n_devices) : 0;
}

int
cuda_driver_open(struct caid_client **ret, const char *driver, struct caid_error *error)
{
    if (!ret)
        return fail(error, CAID_ERR_INVALID, "the place for the client is NULL");
    _cleanup_(caid_client_closep) struct caid_client *client = client_new();
    if (!client)
        return fail_errno(error, ENOMEM, "no memory for a client");
    int r = open_driver(client, driver, error);
    if (r == 0)
        *ret = TAKE_PTR(client);
    return r;
}

int
cuda_client_check(const struct caid_client *client, struct caid_error *error)
{
    return client_check(client, error);
}
