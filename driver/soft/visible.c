/* SPDX-License-Identifier: Apache-2.0 */
/*
 * CUDA_VISIBLE_DEVICES, read as an H200's driver was seen to read it: indices or, if the first
 * entry is one, UUIDs and starts of them, separated by commas, up to the first entry that names no
 * device. Of an index what follows its digits is ignored, and of a UUID what follows that. A device
 * that is named twice makes the list an error.
 */
#include "visible.h"

#include <string.h>
#include <strings.h>

#include "soft.h"

#define PREFIX   "GPU-"
#define N_PREFIX (sizeof(PREFIX) - 1)

/* The device by its place among all of them. */
static struct device *
find_index(const char *text)
{
    char *end;
    errno = 0;
    long index = strtol(text, &end, 10);
    if (end == text || errno != 0 || index < 0 || index >= soft->settings.n_devices)
        return NULL;
    return &soft->devices[index];
}

/* The only device whose UUID starts like this. */
static struct device *
find_uuid(const char *text, size_t n)
{
    struct device *found = NULL;
    if (n <= N_PREFIX || strncmp(text, PREFIX, N_PREFIX) != 0)
        return NULL;
    if (n > SOFT_UUID_SIZE - 1)
        n = SOFT_UUID_SIZE - 1;
    for (int i = 0; i < soft->settings.n_devices; i++) {
        struct device *device = &soft->devices[i];
        if (strncasecmp(device->uuid_text, text, n) != 0)
            continue;
        if (found)
            return NULL;
        found = device;
    }
    return found;
}

static void
show(struct device *device)
{
    device->ordinal = soft->n_visible;
    soft->visible[soft->n_visible++] = device;
}

static void
hide_all(void)
{
    while (soft->n_visible > 0)
        soft->visible[--soft->n_visible]->ordinal = CU_DEVICE_INVALID;
}

static CUresult
read_list(const char *list)
{
    bool by_uuid = strncmp(list, PREFIX, N_PREFIX) == 0;
    while (list) {
        size_t n = strcspn(list, ",");
        struct device *device = by_uuid ? find_uuid(list, n) : find_index(list);
        if (!device)
            break;
        if (device->ordinal != CU_DEVICE_INVALID) {
            hide_all();
            return CUDA_ERROR_INVALID_DEVICE;
        }
        show(device);
        list = list[n] ? list + n + 1 : NULL;
    }
    return soft->n_visible ? CUDA_SUCCESS : CUDA_ERROR_NO_DEVICE;
}

CUresult
visible_read(void)
{
    const char *list = getenv("CUDA_VISIBLE_DEVICES");
    if (list)
        return read_list(list);
    for (int i = 0; i < soft->settings.n_devices; i++)
        show(&soft->devices[i]);
    return soft->n_visible ? CUDA_SUCCESS : CUDA_ERROR_NO_DEVICE;
}
