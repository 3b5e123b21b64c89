/* SPDX-License-Identifier: Apache-2.0 */
/*
 * Reads files into a device's memory. Each thread reads into one half of its page-locked memory
 * while the device copies the other half. Reading costs the CPU a copy, so several threads read,
 * and take reads from one list.
 */
#include <errno.h>
#include <string.h>
#include <sys/mman.h>
#include <unistd.h>

#include "cuda/local.h"
#include "session/client.h"

struct reader {
    const struct drv *drv;
    const struct cuda_reading *reading;
    uint8_t *memory; /* two halves */
    CUstream stream;
    CUevent copied[2]; /* of each half */
    const char *call;  /* the driver call that failed */
};

static CUresult
failed(struct reader *r, const char *call, CUresult result)
{
    if (result != CUDA_SUCCESS)
        r->call = call;
    return result;
}

#define CALL(r, name, ...) failed(r, #name, (r)->drv->cu.name(__VA_ARGS__))

#define ROOM (2 * (size_t)CUDA_READ_SIZE)

/* Maps huge pages, where there are some, and touches them. Page-locking these takes a fraction
 * of the time in which the driver allocates as much, and threads wait for each other only while
 * they page-lock. */
static CUresult
make_room(struct reader *r)
{
    void *memory = mmap(NULL, ROOM, PROT_READ | PROT_WRITE, MAP_PRIVATE | MAP_ANONYMOUS, -1, 0);

    if (memory == MAP_FAILED)
        return failed(r, "mmap", CUDA_ERROR_OUT_OF_MEMORY);
    madvise(memory, ROOM, MADV_HUGEPAGE);
    memset(memory, 0, ROOM);
    CUresult result = CALL(r, cuMemHostRegister, memory, ROOM, CU_MEMHOSTREGISTER_PORTABLE);
    if (result != CUDA_SUCCESS)
        munmap(memory, ROOM);
    else
        r->memory = memory;
    return result;
}

static CUresult
reader_init(struct reader *r)
{
    CUresult result = make_room(r);

    for (int i = 0; i < 2 && result == CUDA_SUCCESS; i++)
        result = CALL(r, cuEventCreate, &r->copied[i], CU_EVENT_DISABLE_TIMING);
    return result;
}

/* Waits for the copies under way. Memory that cannot be unlocked is not freed. */
static CUresult
reader_deinit(struct reader *r, CUresult result)
{
    for (int i = 0; i < 2; i++) {
        CUresult last = r->copied[i] ? CALL(r, cuEventSynchronize, r->copied[i]) : CUDA_SUCCESS;
        result = result != CUDA_SUCCESS ? result : last;
        if (r->copied[i])
            r->drv->cu.cuEventDestroy(r->copied[i]);
    }
    if (r->memory && r->drv->cu.cuMemHostUnregister(r->memory) == CUDA_SUCCESS)
        munmap(r->memory, ROOM);
    return result;
}

/* Reads the whole range. -errno; -ENODATA where the file ends before. */
static int
read_all(int fd, uint8_t *to, size_t n, uint64_t offset)
{
    while (n > 0) {
        ssize_t got = pread(fd, to, n, (off_t)offset);
        if (got < 0 && errno == EINTR)
            continue;
        if (got <= 0)
            return got < 0 ? -errno : -ENODATA;
        to += got;
        n -= (size_t)got;
        offset += (uint64_t)got;
    }
    return 0;
}

/* Takes the next read from the list: gives its stretch, and its offset in that. NULL where no
 * read is left, or the threads are to stop. */
static const struct cuda_stretch *
take(const struct cuda_reading *reading, uint64_t *ret_before)
{
    uint64_t read = *reading->stop ? reading->n_reads : (*reading->next)++;
    size_t low = 0, high = reading->n_stretches;

    if (read >= reading->n_reads)
        return NULL;
    while (high - low > 1) {
        size_t middle = low + (high - low) / 2;
        if (reading->stretches[middle].first <= read)
            low = middle;
        else
            high = middle;
    }
    *ret_before = (read - reading->stretches[low].first) * CUDA_READ_SIZE;
    return &reading->stretches[low];
}

/* Returns -errno of the read that failed. */
static int
read_one(struct reader *r, const struct cuda_stretch *stretch, uint64_t before, int half,
         CUresult *result)
{
    uint8_t *memory = r->memory + (size_t)half * CUDA_READ_SIZE;
    uint64_t left = stretch->nbytes - before;
    size_t n = left < CUDA_READ_SIZE ? left : CUDA_READ_SIZE;

    *result = CALL(r, cuEventSynchronize, r->copied[half]);
    if (*result != CUDA_SUCCESS)
        return 0;
    int e = read_all(r->reading->fds[stretch->file], memory, n, stretch->offset + before);
    if (e < 0)
        return e;
    *result = CALL(r, cuMemcpyHtoDAsync, stretch->dst + before, memory, n, r->stream);
    if (*result == CUDA_SUCCESS)
        *result = CALL(r, cuEventRecord, r->copied[half], r->stream);
    *r->reading->done += n;
    return 0;
}

static int
read_some(struct reader *r, CUresult *result, int64_t *ret_file)
{
    const struct cuda_stretch *stretch;
    uint64_t before;

    for (int half = 0; *result == CUDA_SUCCESS; half = !half) {
        stretch = take(r->reading, &before);
        if (!stretch)
            break;
        int e = read_one(r, stretch, before, half, result);
        if (e < 0) {
            *ret_file = (int64_t)stretch->file;
            return e;
        }
    }
    return 0;
}

int
cuda_read(struct caid_client *client, int32_t device, uint64_t stream,
          const struct cuda_reading *reading, int64_t *ret_file, struct caid_error *error)
{
    struct reader r = {.reading = reading, .stream = (CUstream)(uintptr_t)stream};

    *ret_file = -1;
    if (*reading->stop || *reading->next >= reading->n_reads)
        return 0; /* there were few reads, and other threads have had them all */
    int e = gpu_push(client, device, &r.drv, error);
    if (e < 0)
        return e;
    CUresult result = reader_init(&r);
    if (result == CUDA_SUCCESS)
        e = read_some(&r, &result, ret_file);
    result = reader_deinit(&r, result);
    gpu_pop(r.drv);
    if (e < 0 || result != CUDA_SUCCESS)
        *reading->stop = 1;
    if (e < 0)
        return fail_errno(error, -e, "%s",
                          e == -ENODATA ? "the file has become shorter" : strerror(-e));
    return gpu_result(r.drv, r.call, result, "cannot copy to the device", error);
}
