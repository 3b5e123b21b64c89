/* SPDX-License-Identifier: Apache-2.0 */
/* Device memory and its accounting; memory.h says how. */
#include "memory.h"

#include <fcntl.h>
#include <stdio.h>
#include <string.h>
#include <sys/mman.h>
#include <sys/stat.h>

#include "base/clock.h"

#define NAME_PREFIX "caid-softcuda:"
#define SIZE_SEALS  (F_SEAL_SHRINK | F_SEAL_GROW)

#define SURE_BYTES   3072 /* of text: so much surely comes by one read, if it is all there is */
#define MAX_LOOKS    16   /* at /proc/locks, where it keeps changing */
#define CREDIT_SHARE 16
#define CREDIT_NS    (10 * NSEC_PER_MSEC)

/* What one look at /proc/locks saw of a device. */
struct census {
    uint64_t bytes, inodes;  /* sums */
    size_t n_reads, n_bytes; /* of text */
};

/* Counts one line of /proc/locks,
 *     "12: OFDLCK ADVISORY  WRITE -1 00:01:1029 START END",
 * when it is a lock of the device with this key. */
static void
census_count(struct census *census, const char *line, uint64_t key)
{
    unsigned long long inode, start, end;
    const char *kind = strchr(line, ' ');
    if (!kind || strncmp(kind, " OFDLCK", 7) != 0)
        return;
    if (sscanf(kind, " OFDLCK %*s %*s %*s %*x:%*x:%llu %llu %llu", &inode, &start, &end) != 3)
        return;
    if (start != key || end < start)
        return;
    census->bytes += end - start + 1;
    census->inodes += inode;
}

/* One look. Each read(2) gives whole lines, about 40, and is a consistent picture of them. */
static int
census_take(uint64_t key, struct census *ret)
{
    _cleanup_fd_ int fd = open("/proc/locks", O_RDONLY | O_CLOEXEC);
    struct census census = {0};
    char text[8192], *line, *rest;
    ssize_t n;
    if (fd < 0)
        return -errno;
    while ((n = read(fd, text, sizeof(text) - 1)) > 0) {
        text[n] = '\0';
        rest = text;
        while ((line = strsep(&rest, "\n")) && *line)
            census_count(&census, line, key);
        census.n_reads++;
        census.n_bytes += (size_t)n;
    }
    if (n < 0)
        return -errno;
    *ret = census;
    return 0;
}

/* The file is addressed by line number: where locks come and go between two reads, a line is seen
 * twice or not at all. So a figure from more than one read has to be seen twice in a row. */
static int
census_settle(uint64_t key, struct census *ret)
{
    struct census last = {0}, census;
    for (int i = 0; i < MAX_LOOKS; i++) {
        int r = census_take(key, &census);
        if (r < 0)
            return r;
        bool settled = i > 0 && census.bytes == last.bytes && census.inodes == last.inodes;
        last = census;
        if (settled || (census.n_reads <= 1 && census.n_bytes <= SURE_BYTES))
            break;
    }
    *ret = last;
    return 0;
}

uint64_t
memory_used(const struct device *device)
{
    struct census census;
    return census_settle(device->lock_key, &census) < 0 ? device->own_bytes : census.bytes;
}

void
memory_figures(const struct device *device, uint64_t *ret_free, uint64_t *ret_total)
{
    uint64_t used = memory_used(device);
    *ret_free = used < device->total ? device->total - used : 0;
    *ret_total = device->total;
}

static void
memory_free(struct object *object)
{
    struct memory *memory = container_of(object, struct memory, object);
    fd_close(memory->fd);
    if (memory->device && !memory->imported)
        memory->device->own_bytes -= memory->size;
    free(memory);
}

struct memory *
memory_unref(struct memory *memory)
{
    if (memory)
        object_unref(&memory->object);
    return NULL;
}

static struct memory *
memory_alloc(struct device *device, int fd_consume, size_t size, bool imported)
{
    struct memory *memory = calloc(1, sizeof(*memory));
    if (!memory) {
        fd_close(fd_consume);
        return NULL;
    }
    object_init(&memory->object, OBJECT_MEMORY, memory_free);
    memory->device = device;
    memory->fd = fd_consume;
    memory->size = size;
    memory->imported = imported;
    return memory;
}

/* A sealed memfd with the lock that counts it; -1 and errno. */
static int
make_memfd(const struct device *device, size_t size)
{
    char name[sizeof(NAME_PREFIX) + SOFT_UUID_SIZE];
    snprintf(name, sizeof(name), NAME_PREFIX "%s", device->uuid_text);
    struct flock lock = {
        .l_type = F_WRLCK,
        .l_whence = SEEK_SET,
        .l_start = (off_t)device->lock_key,
        .l_len = (off_t)size,
    };
    _cleanup_fd_ int fd = memfd_create(name, MFD_CLOEXEC | MFD_ALLOW_SEALING);
    if (fd < 0 || ftruncate(fd, (off_t)size) < 0 ||
        fcntl(fd, F_ADD_SEALS, SIZE_SEALS | F_SEAL_SEAL) < 0 ||
        fcntl(fd, F_OFD_SETLK, &lock) < 0)
        return -1;
    return TAKE_FD(fd);
}

/* Whether what is counted, the newest allocation included, fits. Reading /proc/locks takes the
 * kernel a microsecond per lock, so one look is good for a while: for a small share of what it
 * saw free. Near the limit that share is nothing, and every allocation looks. */
static bool
device_has_room(struct device *device, size_t size)
{
    uint64_t now = clock_now_ns();
    if (now < device->credit_until_ns && size <= device->credit) {
        device->credit -= size;
        return true;
    }
    uint64_t used = memory_used(device);
    if (used > device->total)
        return false;
    device->credit = (device->total - used) / CREDIT_SHARE;
    device->credit_until_ns = now + CREDIT_NS;
    return true;
}

CUresult
memory_new(struct device *device, size_t size, CUmemAllocationHandleType handle_types,
           struct memory **ret)
{
    RETURN_IF(device_check(device));
    if (size > device->total)
        return CUDA_ERROR_OUT_OF_MEMORY;
    /* Counted first and asked afterwards, so that two creators cannot both fit into the same
     * space. In this process they take turns and are not refused in vain. */
    LOCKED(&soft->memory_lock);
    int fd = make_memfd(device, size);
    if (fd < 0)
        return errno == EMFILE || errno == ENFILE ? CUDA_ERROR_OPERATING_SYSTEM
                                                  : CUDA_ERROR_OUT_OF_MEMORY;
    struct memory *memory = memory_alloc(device, fd, size, false);
    if (!memory)
        return CUDA_ERROR_OUT_OF_MEMORY;
    memory->handle_types = handle_types;
    device->own_bytes += size;
    if (!device_has_room(device, size)) {
        memory_unref(memory);
        return CUDA_ERROR_OUT_OF_MEMORY;
    }
    *ret = memory;
    return CUDA_SUCCESS;
}

/* The UUID in the name of a memfd of ours. */
static bool
memfd_uuid(int fd, char *ret_uuid)
{
    static const char prefix[] = "/memfd:" NAME_PREFIX, suffix[] = " (deleted)";
    char path[64], link[128];
    snprintf(path, sizeof(path), "/proc/self/fd/%d", fd);
    ssize_t n = readlink(path, link, sizeof(link) - 1);
    size_t want = sizeof(prefix) - 1 + SOFT_UUID_SIZE - 1 + sizeof(suffix) - 1;
    if (n < 0 || (size_t)n != want)
        return false;
    link[n] = '\0';
    if (strncmp(link, prefix, sizeof(prefix) - 1) != 0 ||
        strcmp(link + want - (sizeof(suffix) - 1), suffix) != 0)
        return false;
    memcpy(ret_uuid, link + sizeof(prefix) - 1, SOFT_UUID_SIZE - 1);
    ret_uuid[SOFT_UUID_SIZE - 1] = '\0';
    return true;
}

CUresult
memory_import(int fd, struct memory **ret)
{
    char uuid[SOFT_UUID_SIZE];
    struct stat st;
    if (fd < 0 || !memfd_uuid(fd, uuid) || fstat(fd, &st) < 0)
        return CUDA_ERROR_UNKNOWN;
    /* A name can be forged: without the seals the file could shrink under our feet. */
    int seals = fcntl(fd, F_GET_SEALS);
    if (seals < 0 || (seals & SIZE_SEALS) != SIZE_SEALS || st.st_size <= 0 ||
        (size_t)st.st_size % SOFT_GRANULARITY != 0)
        return CUDA_ERROR_UNKNOWN;
    struct device *device = device_find_uuid(uuid);
    RETURN_IF(device_check(device));
    int dup = fcntl(fd, F_DUPFD_CLOEXEC, 0);
    if (dup < 0)
        return CUDA_ERROR_OPERATING_SYSTEM;
    *ret = memory_alloc(device, dup, (size_t)st.st_size, true);
    return *ret ? CUDA_SUCCESS : CUDA_ERROR_OUT_OF_MEMORY;
}

CUdevice
memory_ordinal(const struct memory *memory)
{
    return memory->device ? memory->device->ordinal : CU_DEVICE_INVALID;
}
