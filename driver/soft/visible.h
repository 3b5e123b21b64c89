/* SPDX-License-Identifier: Apache-2.0 */
/*
 * Which devices a process has, and in which order: CUDA_VISIBLE_DEVICES, as a real driver reads it.
 * An ordinal counts these. NVML lists all devices, whatever a process sees, and memory of a device
 * that it does not see can still be imported and mapped.
 */
#pragma once

#include "cuda_abi.h"

/* Gives the devices, which are made, their ordinals. What cuInit has to answer: NO_DEVICE when
 * there are none, INVALID_DEVICE when one is named twice. */
CUresult visible_read(void);
