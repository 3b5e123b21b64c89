/* SPDX-License-Identifier: Apache-2.0 */
/* Names and texts of results. */
#include "soft.h"

struct result {
    int number;
    const char *name;
    const char *text;
};

static const struct result results[] = {
#define RESULT(name, number, text) {number, #name, text},
#include "results.def"
#undef RESULT
};

static const struct result *
result_find(CUresult result)
{
    for (size_t i = 0; i < ARRAY_SIZE(results); i++)
        if (results[i].number == (int)result)
            return &results[i];
    return NULL;
}

CUresult
cuGetErrorName(CUresult result, const char **text)
{
    const struct result *found = result_find(result);
    if (!text)
        return CUDA_ERROR_INVALID_VALUE;
    *text = found ? found->name : NULL;
    return found ? CUDA_SUCCESS : CUDA_ERROR_INVALID_VALUE;
}

CUresult
cuGetErrorString(CUresult result, const char **text)
{
    const struct result *found = result_find(result);
    if (!text)
        return CUDA_ERROR_INVALID_VALUE;
    *text = found ? found->text : NULL;
    return found ? CUDA_SUCCESS : CUDA_ERROR_INVALID_VALUE;
}
