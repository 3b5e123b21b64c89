/* SPDX-License-Identifier: Apache-2.0 */
/*
 * What can be known of a device with no CUDA context: the few functions of NVML that this needs,
 * from libnvidia-ml.so.1 or from the software driver's own library, which answers by the same
 * names. A struct nvml belongs to one struct drv. It may be used from any thread; NVML is
 * initialised by the first question, since that opens every device of the machine.
 */
#pragma once

#include <stdbool.h>
#include <stdint.h>

struct drv_error;
struct nvml;

/* library: a soname or path. -ENOSYS where it is missing or lacks a function. */
int nvml_open(struct nvml **ret, const char *library);
struct nvml *nvml_free(struct nvml *nvml);

/* uuid: "GPU-..." or "MIG-...", as NVML writes it. -ENODEV: no such device. err may be NULL. */
int nvml_memory_info(struct nvml *nvml, const char *uuid, uint64_t *ret_free,
                     uint64_t *ret_total, struct drv_error *err);
/* -ENOSYS: this NVML, or this device, does not tell. */
int nvml_persistence(struct nvml *nvml, const char *uuid, bool *ret_on);
