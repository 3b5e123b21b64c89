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

static const struct result *
result_find(int number)
{
    for (size_t i = 0; i < ARRAY_SIZE(results); i++)
        if (results[i].number == number)
            return &results[i];
    return NULL;
}

const char *
result_name(int number)
{
    const struct result *found = result_find(number);
    return found ? found->name : NULL;
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

static CUresult
result_tell(const char *what, const char **ret)
{
    if (!ret)
        return CUDA_ERROR_INVALID_VALUE;
    *ret = what;
    return what ? CUDA_SUCCESS : CUDA_ERROR_INVALID_VALUE;
}

CUresult
soft_cuGetErrorName(CUresult result, const char **text)
{
    return result_tell(result_name((int)result), text);
}

CUresult
soft_cuGetErrorString(CUresult result, const char **text)
{
    const struct result *found = result_find((int)result);
    return result_tell(found ? found->text : NULL, text);
}
