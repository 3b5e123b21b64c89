/* SPDX-License-Identifier: Apache-2.0 */
#pragma once

#define RESULT_MAX 999 /* CUDA_ERROR_UNKNOWN, NVML_ERROR_UNKNOWN */

/* "CUDA_ERROR_...", or NULL for a number that is not a CUresult. */
const char *result_name(int result);
/* An error by its name, with or without "CUDA_ERROR_", or any number from 1 to RESULT_MAX (NVML
 * has its own). 0 or -EINVAL. */
int result_parse(const char *text, int *ret);
