/* SPDX-License-Identifier: Apache-2.0 */
/* Managed memory: allocating it, and what programs say about where it should be. */
#include "managed.h"

#include "alloc.h"
#include "context.h"
#include "stream.h"

#define HOST_BIT      (UINT32_C(1) << SOFT_MAX_DEVICES)
#define NOWHERE       ((CUmemLocation){CU_MEM_LOCATION_TYPE_INVALID, CU_DEVICE_INVALID})
#define HOST_LOCATION ((CUmemLocation){CU_MEM_LOCATION_TYPE_HOST, CU_DEVICE_CPU})

/* What was said about neighbouring pages. An allocation has a list of it, in order and without
 * gaps, whose first never changes. Under the map's lock. */
struct advice {
    struct advice *next;
    uintptr_t start, end;
    bool read_mostly;
    CUmemLocation preferred, prefetched;
    uint32_t accessed_by; /* bit n: device n; HOST_BIT */
};

void
advice_free(struct advice *advice)
{
    while (advice) {
        struct advice *next = advice->next;
        free(advice);
        advice = next;
    }
}

struct advice *
advice_new(uintptr_t start, size_t size)
{
    struct advice *advice = malloc(sizeof(*advice));
    if (advice)
        *advice = (struct advice){.start = start,
                                  .end = start + ALIGN_UP(size, SOFT_PAGE_SIZE),
                                  .preferred = NOWHERE,
                                  .prefetched = NOWHERE};
    return advice;
}

/* Cuts what was said in two at the address, which is inside the allocation. */
static int
advice_split(struct advice *advice, uintptr_t at)
{
    while (advice && advice->end <= at)
        advice = advice->next;
    if (!advice || advice->start >= at) /* none: the allocation's end */
        return 0;
    struct advice *rest = malloc(sizeof(*rest));
    if (!rest)
        return -ENOMEM;
    *rest = *advice;
    advice->end = rest->start = at;
    advice->next = rest;
    return 0;
}

/* Whole pages of one managed allocation. Needs the map's lock, for as long as ret is used. */
struct pages {
    uintptr_t start, end;
    struct advice *advice;
};

static CUresult
pages_find(CUdeviceptr address, size_t size, struct pages *ret)
{
    uintptr_t start = (uintptr_t)address, end;
    struct range *range = range_find(&soft->ranges.usable, start);
    if (size == 0 || __builtin_add_overflow(start, size, &end) || !range ||
        range->kind != RANGE_MANAGED || end > range->start + range->size)
        return CUDA_ERROR_INVALID_VALUE;
    *ret = (struct pages){start - start % SOFT_PAGE_SIZE, end + -end % SOFT_PAGE_SIZE,
                          range->advice};
    return CUDA_SUCCESS;
}

/* The first that was said about any of the pages, or the next behind another one. */
static struct advice *
pages_next(const struct pages *pages, struct advice *advice)
{
    advice = advice ? advice->next : pages->advice;
    while (advice && advice->end <= pages->start)
        advice = advice->next;
    return advice && advice->start < pages->end ? advice : NULL;
}

/* From now on nothing is said about these pages and others together. */
static CUresult
pages_cut_out(const struct pages *pages)
{
    if (advice_split(pages->advice, pages->start) < 0 ||
        advice_split(pages->advice, pages->end) < 0)
        return CUDA_ERROR_OUT_OF_MEMORY;
    return CUDA_SUCCESS;
}

/* Locations. */

/* Checks a location, and gives it as it is told later: the host has no number. */
static CUresult
location_resolve(const CUmemLocation *location, CUmemLocation *ret)
{
    *ret = *location;
    switch (location->type) {
    case CU_MEM_LOCATION_TYPE_DEVICE:
        return device_find(location->id) ? CUDA_SUCCESS : CUDA_ERROR_INVALID_DEVICE;
    case CU_MEM_LOCATION_TYPE_HOST: *ret = HOST_LOCATION; return CUDA_SUCCESS;
    case CU_MEM_LOCATION_TYPE_HOST_NUMA:
        return host_node_exists(location->id) ? CUDA_SUCCESS : CUDA_ERROR_INVALID_VALUE;
    case CU_MEM_LOCATION_TYPE_HOST_NUMA_CURRENT: return CUDA_SUCCESS;
    default: return CUDA_ERROR_INVALID_VALUE;
    }
}

/* What the first versions of the calls name by a device number. */
static CUmemLocation
location_of(CUdevice device)
{
    return device == CU_DEVICE_CPU ? HOST_LOCATION
                                   : (CUmemLocation){CU_MEM_LOCATION_TYPE_DEVICE, device};
}

static CUdevice
location_device(const CUmemLocation *location)
{
    if (location->type == CU_MEM_LOCATION_TYPE_DEVICE)
        return location->id;
    return location->type == CU_MEM_LOCATION_TYPE_INVALID ? CU_DEVICE_INVALID : CU_DEVICE_CPU;
}

/* Entry points. */

CUresult
soft_cuMemAllocManaged(CUdeviceptr *address, size_t size, unsigned int flags)
{
    struct range *range;
    CURRENT(context);
    if (!address || size == 0 || (flags != CU_MEM_ATTACH_GLOBAL && flags != CU_MEM_ATTACH_HOST))
        return CUDA_ERROR_INVALID_VALUE;
    LOCKED(&soft->ranges.lock);
    RETURN_IF(alloc_map(context, RANGE_MANAGED, size, NULL, &range));
    *address = range->start;
    return CUDA_SUCCESS;
}

static void
advice_set(struct advice *advice, CUmem_advise what, const CUmemLocation *location)
{
    uint32_t bit = location->type == CU_MEM_LOCATION_TYPE_DEVICE ? UINT32_C(1) << location->id
                                                                 : HOST_BIT;
    switch (what) {
    case CU_MEM_ADVISE_SET_READ_MOSTLY: advice->read_mostly = true; break;
    case CU_MEM_ADVISE_UNSET_READ_MOSTLY: advice->read_mostly = false; break;
    case CU_MEM_ADVISE_SET_PREFERRED_LOCATION: advice->preferred = *location; break;
    case CU_MEM_ADVISE_UNSET_PREFERRED_LOCATION: advice->preferred = NOWHERE; break;
    case CU_MEM_ADVISE_SET_ACCESSED_BY: advice->accessed_by |= bit; break;
    case CU_MEM_ADVISE_UNSET_ACCESSED_BY: advice->accessed_by &= ~bit; break;
    }
}

/* The location only counts for advice that has one. */
static CUresult
check_advice(CUmem_advise advice, const CUmemLocation *location, CUmemLocation *ret)
{
    *ret = NOWHERE;
    switch (advice) {
    case CU_MEM_ADVISE_SET_READ_MOSTLY:
    case CU_MEM_ADVISE_UNSET_READ_MOSTLY:
    case CU_MEM_ADVISE_UNSET_PREFERRED_LOCATION: return CUDA_SUCCESS;
    case CU_MEM_ADVISE_SET_PREFERRED_LOCATION: return location_resolve(location, ret);
    case CU_MEM_ADVISE_SET_ACCESSED_BY:
    case CU_MEM_ADVISE_UNSET_ACCESSED_BY: /* by a device or the host, not by a part of it */
        if (location->type == CU_MEM_LOCATION_TYPE_HOST_NUMA ||
            location->type == CU_MEM_LOCATION_TYPE_HOST_NUMA_CURRENT)
            return CUDA_ERROR_INVALID_VALUE;
        return location_resolve(location, ret);
    default: return CUDA_ERROR_INVALID_VALUE;
    }
}

CUresult
soft_cuMemAdvise_v2(CUdeviceptr address, size_t size, CUmem_advise advice,
                    CUmemLocation location)
{
    struct pages pages;
    CUmemLocation where;
    CURRENT(context);
    RETURN_IF(check_advice(advice, &location, &where));
    LOCKED(&soft->ranges.lock);
    RETURN_IF(pages_find(address, size, &pages));
    RETURN_IF(pages_cut_out(&pages));
    for (struct advice *at = NULL; (at = pages_next(&pages, at));)
        advice_set(at, advice, &where);
    return CUDA_SUCCESS;
}

CUresult
soft_cuMemAdvise(CUdeviceptr address, size_t size, CUmem_advise advice, CUdevice device)
{
    return soft_cuMemAdvise_v2(address, size, advice, location_of(device));
}

/* The last prefetch is the last one asked for, done or not. */
static CUresult
note_prefetch(CUdeviceptr address, size_t size, const CUmemLocation *location)
{
    struct pages pages;
    LOCKED(&soft->ranges.lock);
    RETURN_IF(pages_find(address, size, &pages));
    RETURN_IF(pages_cut_out(&pages));
    for (struct advice *at = NULL; (at = pages_next(&pages, at));)
        at->prefetched = *location;
    return CUDA_SUCCESS;
}

CUresult
soft_cuMemPrefetchAsync_v2(CUdeviceptr address, size_t size, CUmemLocation location,
                           unsigned int flags, CUstream handle)
{
    CUmemLocation where;
    HOLD(stream, stream, handle);
    if (flags != 0)
        return CUDA_ERROR_INVALID_VALUE;
    RETURN_IF(location_resolve(&location, &where));
    RETURN_IF(note_prefetch(address, size, &where));
    /* Moves nothing, but has its place in the stream. */
    return stream_submit_after(stream, &(struct point){0}, NULL);
}

CUresult
soft_cuMemPrefetchAsync(CUdeviceptr address, size_t size, CUdevice device, CUstream stream)
{
    return soft_cuMemPrefetchAsync_v2(address, size, location_of(device), 0, stream);
}

/* Attributes of pages. */

/* NOWHERE where they differ. */
static void
location_narrow(CUmemLocation *common, const CUmemLocation *other)
{
    if (common->type != other->type || common->id != other->id)
        *common = NOWHERE;
}

/* What was said about all of the pages. */
static struct advice
pages_common(const struct pages *pages)
{
    struct advice common = *pages_next(pages, NULL);
    for (struct advice *at = NULL; (at = pages_next(pages, at));) {
        common.read_mostly &= at->read_mostly;
        common.accessed_by &= at->accessed_by;
        location_narrow(&common.preferred, &at->preferred);
        location_narrow(&common.prefetched, &at->prefetched);
    }
    return common;
}

/* As many as there is room for; CU_DEVICE_INVALID in what is left. */
static void
store_devices(CUdevice *devices, size_t room, uint32_t accessed_by)
{
    size_t n = 0;
    for (int i = 0; i <= SOFT_MAX_DEVICES && n < room; i++)
        if (accessed_by & UINT32_C(1) << i)
            devices[n++] = i == SOFT_MAX_DEVICES ? CU_DEVICE_CPU : i;
    while (n < room)
        devices[n++] = CU_DEVICE_INVALID;
}

/* Attributes are ints, and ACCESSED_BY an array of them. */
static CUresult
check_attribute(const void *data, size_t size, CUmem_range_attribute attribute)
{
    if (!data || size == 0 || attribute < CU_MEM_RANGE_ATTRIBUTE_READ_MOSTLY ||
        attribute > CU_MEM_RANGE_ATTRIBUTE_LAST_PREFETCH_LOCATION_ID)
        return CUDA_ERROR_INVALID_VALUE;
    if (attribute == CU_MEM_RANGE_ATTRIBUTE_ACCESSED_BY)
        return size % sizeof(int) == 0 ? CUDA_SUCCESS : CUDA_ERROR_INVALID_VALUE;
    return size == sizeof(int) ? CUDA_SUCCESS : CUDA_ERROR_INVALID_VALUE;
}

static void
store_attribute(int *data, size_t size, CUmem_range_attribute attribute,
                const struct advice *common)
{
    switch (attribute) {
    case CU_MEM_RANGE_ATTRIBUTE_READ_MOSTLY: *data = common->read_mostly; break;
    case CU_MEM_RANGE_ATTRIBUTE_PREFERRED_LOCATION:
        *data = location_device(&common->preferred);
        break;
    case CU_MEM_RANGE_ATTRIBUTE_ACCESSED_BY:
        store_devices(data, size / sizeof(*data), common->accessed_by);
        break;
    case CU_MEM_RANGE_ATTRIBUTE_LAST_PREFETCH_LOCATION:
        *data = location_device(&common->prefetched);
        break;
    case CU_MEM_RANGE_ATTRIBUTE_PREFERRED_LOCATION_TYPE:
        *data = (int)common->preferred.type;
        break;
    case CU_MEM_RANGE_ATTRIBUTE_PREFERRED_LOCATION_ID: *data = common->preferred.id; break;
    case CU_MEM_RANGE_ATTRIBUTE_LAST_PREFETCH_LOCATION_TYPE:
        *data = (int)common->prefetched.type;
        break;
    case CU_MEM_RANGE_ATTRIBUTE_LAST_PREFETCH_LOCATION_ID: *data = common->prefetched.id; break;
    }
}

CUresult
soft_cuMemRangeGetAttribute(void *data, size_t data_size, CUmem_range_attribute attribute,
                            CUdeviceptr address, size_t size)
{
    struct pages pages;
    CURRENT(context);
    RETURN_IF(check_attribute(data, data_size, attribute));
    LOCKED(&soft->ranges.lock);
    RETURN_IF(pages_find(address, size, &pages));
    struct advice common = pages_common(&pages);
    store_attribute(data, data_size, attribute, &common);
    return CUDA_SUCCESS;
}
