/* SPDX-License-Identifier: Apache-2.0 */
/*
 * cuGetProcAddress: a base name and a version give the newest entry point that is not newer than
 * the version. The table is exports.def.
 */
#include "soft.h"

#include <string.h>

#define ALL_FLAGS \
    (CU_GET_PROC_ADDRESS_LEGACY_STREAM | CU_GET_PROC_ADDRESS_PER_THREAD_DEFAULT_STREAM)

/* own_stream: the form for the thread's own stream is preferred, where there is one. It follows the
 * other form in the table. */
static const struct entry_point *
entry_find(const char *base, int version, bool own_stream,
           CUdriverProcAddressQueryResult *ret_status)
{
    const struct entry_point *best = NULL;
    *ret_status = CU_GET_PROC_ADDRESS_SYMBOL_NOT_FOUND;
    for (int i = 0; i < N_ENTRIES; i++) {
        const struct entry_point *entry = &entry_points[i];
        if (!*base || strcmp(entry->base, base) != 0 || (entry->own_stream && !own_stream))
            continue;
        if (entry->version <= version && (!best || entry->version >= best->version))
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
    bool own_stream = flags & CU_GET_PROC_ADDRESS_PER_THREAD_DEFAULT_STREAM;
    const struct entry_point *entry = entry_find(symbol, version, own_stream, &found);
    *fn = entry ? (void *)entry->fn : NULL;
    if (status)
        *status = found;
    return CUDA_SUCCESS;
}
