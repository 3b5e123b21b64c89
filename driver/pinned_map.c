/* SPDX-License-Identifier: Apache-2.0 */
#include "pinned_map.h"

#include <errno.h>
#include <fcntl.h>
#include <stdio.h>
#include <sys/mman.h>
#include <sys/stat.h>
#include <unistd.h>

#include "base/macros.h"

#ifndef MADV_POPULATE_READ
#    define MADV_POPULATE_READ 22 /* Linux 5.14 */
#endif
#ifndef MADV_COLLAPSE
#    define MADV_COLLAPSE 25 /* Linux 6.1 */
#endif

#define MAP_ALIGNMENT ((size_t)2 << 20)
/* A process that is killed goes on until such a call ends: 1 GiB at once takes up to seconds. */
#define COLLAPSE_BYTES ((size_t)64 << 20)

static int
fail_file(struct drv_error *err, int r, const char *call, const char *what)
{
    if (err) {
        *err = (struct drv_error){.call = call};
        errno = -r;
        snprintf(err->message, sizeof(err->message), "%s: %s%s%m", call, what,
                 what[0] ? ": " : "");
    }
    return r;
}

/* Whether the memory can be counted on to stay as large as it has to be. */
static int
check_file(int fd, size_t size, struct drv_error *err)
{
    struct stat st;

    int seals = fcntl(fd, F_GET_SEALS);
    if (seals < 0)
        return fail_file(err, -errno, "fcntl", "not a memfd");
    if (!(seals & F_SEAL_SHRINK))
        return fail_file(err, -EINVAL, "fcntl", "not sealed against shrinking");
    if (fstat(fd, &st) < 0)
        return fail_file(err, -errno, "fstat", "");
    if (st.st_size < 0 || (uint64_t)st.st_size < size)
        return fail_file(err, -EINVAL, "fstat", "smaller than it was said to be");
    return 0;
}

/* At an address that is aligned as mappings of the device are: arrays may ask for as much. */
static void *
map_aligned(int fd, size_t size, int protection)
{
    char *room =
        mmap(NULL, size + MAP_ALIGNMENT, PROT_NONE, MAP_PRIVATE | MAP_ANONYMOUS, -1, 0);
    if (room == MAP_FAILED)
        return MAP_FAILED;
    size_t before = -(uintptr_t)room % MAP_ALIGNMENT, after = MAP_ALIGNMENT - before;
    if (before > 0)
        munmap(room, before);
    room += before;
    void *ptr = mmap(room, size, protection, MAP_SHARED | MAP_FIXED, fd, 0);
    int error = errno;
    size_t end = ALIGN_UP(size, (size_t)sysconf(_SC_PAGESIZE));
    if (ptr == MAP_FAILED)
        munmap(room, size + after);
    else if (after > end - size)
        munmap(room + end, size + after - end);
    errno = error;
    return ptr;
}

/* Of 2 MiB without any page the kernel makes no huge one. Another process may be at it: EAGAIN. */
static bool
collapse(char *first, size_t size)
{
    size_t page = (size_t)sysconf(_SC_PAGESIZE);

    for (size_t at = 0; at < size; at += MAP_ALIGNMENT)
        if (madvise(first + at, page, MADV_POPULATE_READ) < 0)
            return false;
    return madvise(first, size, MADV_COLLAPSE) == 0 || errno == EAGAIN;
}

/* As many of its pages become huge ones as the kernel has: they are there sooner, fewer are to be
 * pinned, and to be found when a CPU fills them. Registered pages stay as they are. */
static void
take_huge_pages(const struct pinned_map *map)
{
    size_t size = map->size / MAP_ALIGNMENT * MAP_ALIGNMENT;
    char *first = map->host;

    for (size_t at = 0; at < size; at += COLLAPSE_BYTES)
        if (!collapse(first + at, size - at < COLLAPSE_BYTES ? size - at : COLLAPSE_BYTES))
            return;
}

int
pinned_map_register(const struct drv *drv, struct pinned_map *map, enum vmm_mode mode,
                    struct drv_error *err)
{
    unsigned int flags = CU_MEMHOSTREGISTER_PORTABLE | CU_MEMHOSTREGISTER_DEVICEMAP |
                         (mode == VMM_READ ? CU_MEMHOSTREGISTER_READ_ONLY : 0);

    if (!map->registered) {
        int r = DRV_CALL(drv, err, cuMemHostRegister, map->host, map->size, flags);
        if (r < 0)
            return r;
        map->registered = true;
    }
    int r = DRV_CALL(drv, err, cuMemHostGetDevicePointer, &map->ptr, map->host, 0);
    if (r < 0 && drv->cu.cuMemHostUnregister(map->host) == CUDA_SUCCESS)
        map->registered = false;
    return r;
}

int
pinned_map_unregister(const struct drv *drv, struct pinned_map *map, struct drv_error *err)
{
    int r = DRV_CALL(drv, err, cuMemHostUnregister, map->host);

    map->registered = r < 0;
    return r;
}

void
pinned_map_drop(struct pinned_map *map)
{
    munmap(map->host, map->size);
    *map = (struct pinned_map){0};
}

int
pinned_map_new(int fd, size_t size, enum vmm_mode mode, struct pinned_map *ret,
               struct drv_error *err)
{
    int protection = mode == VMM_READ ? PROT_READ : PROT_READ | PROT_WRITE;

    int r = check_file(fd, size, err);
    if (r < 0)
        return r;
    struct pinned_map map = {.size = size};
    map.host = map_aligned(fd, size, protection);
    if (map.host == MAP_FAILED)
        return fail_file(err, -errno, "mmap", "");
    /* A child of fork(2) would reach the memory for longer than this process, and so than the
     * lease (I2). */
    if (madvise(map.host, map.size, MADV_DONTFORK) < 0) {
        r = fail_file(err, -errno, "madvise", "");
        pinned_map_drop(&map);
        return r;
    }
    if (mode == VMM_READ_WRITE)
        take_huge_pages(&map);
    *ret = map;
    return 0;
}

CUresult
pinned_map_free(const struct drv *drv, struct pinned_map *map)
{
    CUresult result = map->registered ? drv->cu.cuMemHostUnregister(map->host) : CUDA_SUCCESS;

    if (result == CUDA_SUCCESS)
        pinned_map_drop(map);
    return result;
}
