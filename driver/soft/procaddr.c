/* SPDX-License-Identifier: Apache-2.0 */
/*
 * cuGetProcAddress: a base name and a version give the newest entry point that is not newer than
 * the version. The table is exports.def.
 */
#include "soft.h"

#include <string.h>

#define ALL_FLAGS \
    (CU_GET_PROC_ADDRESS_LEGACY_STREAM | CU_GET_PROC_ADDRESS_PER_THREAD_DEFAULT_STREAM)

struct entry_point {
    const char *base;
    int version;
    void (*fn)(void);
    void (*per_thread_fn)(void); /* NULL: the same for all threads */
};

#define FN(symbol) ((void (*)(void))(symbol))

static const struct entry_point entry_points[] = {
#define EXPORT(symbol, base, version, ...) {base, version, FN(symbol), NULL},
#define ENTRY(symbol, base, version, ...)  {base, version, FN(symbol), NULL},
#define EXPORT_PT(symbol, base, version, suffix, ...) \
    {base, version, FN(symbol), FN(symbol##suffix)},
#define NVML(symbol, ...)
#include "exports.def"
};

static const struct entry_point *
entry_find(const char *base, int version, CUdriverProcAddressQueryResult *ret_status)
{
    const struct entry_point *best = NULL;
    *ret_status = CU_GET_PROC_ADDRESS_SYMBOL_NOT_FOUND;
    for (size_t i = 0; i < ARRAY_SIZE(entry_points); i++) {
        const struct entry_point *entry = &entry_points[i];
        if (strcmp(entry->base, base) != 0)
            continue;
        if (entry->version <= version && (!best || entry->version > best->version))
            best = entry;
        *ret_status = best ? CU_GET_PROC_ADDRESS_SUCCESS
                           : CU_GET_PROC_ADDRESS_VERSION_NOT_SUFFICIENT;
    }
    return best;
}

/* A name that is not there is an answer, not an error: a null pointer and a status. */
CUresult
soft_cuGetProcAddress_v2(const char *symbol, void **fn, int version, uint64_t flags,
                         CUdriverProcAddressQueryResult *status)
{
    CUdriverProcAddressQueryResult found;
    if (!symbol || !fn || version > SOFT_VERSION || flags & ~(uint64_t)ALL_FLAGS)
        return CUDA_ERROR_INVALID_VALUE;
    const struct entry_point *entry = entry_find(symbol, version, &found);
    bool per_thread = entry && entry->per_thread_fn &&
                      (flags & CU_GET_PROC_ADDRESS_PER_THREAD_DEFAULT_STREAM);
    *fn = entry ? (void *)(per_thread ? entry->per_thread_fn : entry->fn) : NULL;
    if (status)
        *status = found;
    return CUDA_SUCCESS;
}

CUresult
soft_cuGetProcAddress(const char *symbol, void **fn, int version, uint64_t flags)
{
    RETURN_IF(soft_cuGetProcAddress_v2(symbol, fn, version, flags, NULL));
    return *fn ? CUDA_SUCCESS : CUDA_ERROR_NOT_FOUND;
}
