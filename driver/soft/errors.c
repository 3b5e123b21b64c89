/* SPDX-License-Identifier: Apache-2.0 */
/* Names and texts of results. */
#include "errors.h"

#include <string.h>

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

const char *
result_name(int result)
{
    for (size_t i = 0; i < ARRAY_SIZE(results); i++)
        if (results[i].number == result)
            return results[i].name;
    return NULL;
}

int
result_parse(const char *text, int *ret)
{
    static const char prefix[] = "CUDA_ERROR_";
    char *end;
    long number = strtol(text, &end, 10);
    if (end != text && !*end && number > 0 && number <= RESULT_MAX) {
        *ret = (int)number;
        return 0;
    }
    if (strncmp(text, prefix, strlen(prefix)) == 0)
        text += strlen(prefix);
    for (size_t i = 1; i < ARRAY_SIZE(results); i++) {
        if (strcmp(results[i].name + strlen(prefix), text) != 0)
            continue;
        *ret = results[i].number;
        return 0;
    }
    return -EINVAL;
}

static const struct result *
result_find(CUresult result)
{
    for (size_t i = 0; i < ARRAY_SIZE(results); i++)
        if (results[i].number == (int)result)
            return &results[i];
    return NULL;
}

CUresult
soft_cuGetErrorName(CUresult result, const char **text)
{
    const struct result *found = result_find(result);
    if (!text)
        return CUDA_ERROR_INVALID_VALUE;
    *text = found ? found->name : NULL;
    return found ? CUDA_SUCCESS : CUDA_ERROR_INVALID_VALUE;
}

CUresult
soft_cuGetErrorString(CUresult result, const char **text)
{
    const struct result *found = result_find(result);
    if (!text)
        return CUDA_ERROR_INVALID_VALUE;
    *text = found ? found->text : NULL;
    return found ? CUDA_SUCCESS : CUDA_ERROR_INVALID_VALUE;
}
