/* SPDX-License-Identifier: Apache-2.0 */
/*
 * Device memory: one memfd per allocation, named after its device and sealed in size. The kernel
 * counts it, and frees it when the last descriptor and the last mapping in any process are gone,
 * after a SIGKILL just the same.
 *
 * How much of a device is in use is asked of the kernel, too. The creator takes an open file
 * description lock on the memfd, from the device's key on and as long as the allocation. Such a
 * lock belongs to the open file description: exporting, passing and importing duplicate the
 * descriptor, not the description, and a mapping holds it as well, so the lock lives exactly as
 * long as the memory has users. /proc/locks shows every lock of this kind to everybody. The sum
 * over those that start at the device's key is the figure, with no registry that could be left
 * behind by a crash, and the same for every process and user. For one process at a time the
 * limit is exact. Two that ask for the last piece at the same moment may both be refused; and
 * since a look at /proc/locks is good for a sixteenth of what it saw free, for 10 ms, several
 * that allocate at once can together end up that much above the limit.
 *
 * Where /proc/locks cannot be read, a process counts what it made itself.
 *
 * A struct memory is what one process holds: made by memory_new() or memory_import(), counted by
 * its handle and by each of its mappings.
 */
#pragma once

#include "object.h"
#include "soft.h"

struct memory {
    struct object object;
    LIST_ENTRY(memory) link; /* in soft->memories.all, as long as there is a descriptor */
    struct device *device;   /* NULL: imported, of a device that this process does not have */
    int fd;
    size_t size;
    CUmemAllocationHandleType handle_types; /* none once imported: cannot be exported again */
    bool imported;
    bool rdma;              /* made as gpuDirectRDMACapable, which an import does not tell */
    bool host;              /* of a pool of host memory: no device, none hidden */
    unsigned int n_handles; /* cuMemRelease calls that are owed; under soft->memory_lock */
};

OBJECT_REFS(memory, OBJECT_MEMORY)

/* size is a multiple of the page size. OUT_OF_MEMORY when the device has no room for it. */
CUresult memory_new(struct device *device, size_t size, CUmemAllocationHandleType handle_types,
                    struct memory **ret);
/* Borrows fd. UNKNOWN, as the real driver answers, when it is no memory of a software driver. */
CUresult memory_import(int fd, struct memory **ret);
/* -2 for a device that this process does not have, as the real driver answers. */
CUdevice memory_ordinal(const struct memory *memory);

/* The file of a pool, of that length; none of its bytes count yet. device: NULL for memory of the
 * host, which never counts. */
CUresult memory_new_pool(struct device *device, size_t length, struct memory **ret);
/* Has so many of its bytes count for the device from now on. */
CUresult memory_resize(struct memory *memory, size_t size);
/* Borrows fd, as memory_import(). */
CUresult memory_import_pool(int fd, struct memory **ret);

/* Bytes in use on the device, by all processes. */
uint64_t memory_used(const struct device *device);
void memory_figures(const struct device *device, uint64_t *ret_free, uint64_t *ret_total);

/* Whether handles of this type are exported and imported: fds are. */
CUresult check_handle_type(CUmemAllocationHandleType type);

/* A memfd of other origin: its name or its contents can be forged, but without these seals it could
 * shrink under our feet. */
#define MEMFD_SEALS (F_SEAL_SHRINK | F_SEAL_GROW)
bool memfd_is_sealed(int fd);
/* The CUDA error for a memfd that could not be made or sized: r is -errno. */
CUresult memfd_error(int r);

/* After fork(2), with the list's lock: the child has no descriptor of any. */
void memory_in_child(void);
