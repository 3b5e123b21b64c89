/* SPDX-License-Identifier: Apache-2.0 */
/* Device memory and its accounting; memory.h says how. */
#include "memory.h"

#include <fcntl.h>
#include <stdio.h>
#include <string.h>
#include <sys/mman.h>
#include <sys/resource.h>
#include <sys/stat.h>

#include "base/clock.h"

#define NAME_PREFIX "caid-softcuda:"
#define POOL_PREFIX "caid-softcuda-pool:"
#define POOL_HOST   "host"

#define SURE_BYTES   3072 /* of text: so much surely comes by one read, if it is all there is */
#define MAX_LOOKS    15   /* at /proc/locks, where it keeps changing */
#define CREDIT_SHARE 16
#define CREDIT_NS    (10 * NSEC_PER_MSEC)

/* What one look at /proc/locks saw of a device. */
struct census {
    uint64_t bytes; /* of the device */
    uint64_t hash;  /* of the text: all locks of the machine */
    bool sure;      /* it came by one read, which is a consistent picture */
};

static int
census_compare(const void *a, const void *b)
{
    return CMP(((const struct census *)a)->bytes, ((const struct census *)b)->bytes);
}

/* Counts one line of /proc/locks,
 *     "12: OFDLCK ADVISORY  WRITE -1 00:01:1029 START END",
 * when it is a lock of the device with this key. */
static void
census_count(struct census *census, const char *line, uint64_t key)
{
    unsigned long long start, end;
    const char *kind = strchr(line, ' ');
    if (!kind || strncmp(kind, " OFDLCK", 7) != 0)
        return;
    if (sscanf(kind, " OFDLCK %*s %*s %*s %*x:%*x:%*u %llu %llu", &start, &end) != 2)
        return;
    if (start != key || end < start)
        return;
    census->bytes += end - start + 1;
}

/* One look. Each read(2) gives whole lines, about 40, and is a consistent picture of them. */
static int
census_take(uint64_t key, struct census *ret)
{
    _cleanup_fd_ int fd = open("/proc/locks", O_RDONLY | O_CLOEXEC);
    struct census census = {.hash = HASH_START};
    char text[8192], *line, *rest;
    size_t n_reads = 0, n_bytes = 0;
    ssize_t n;
    if (fd < 0)
        return -errno;
    while ((n = read(fd, text, sizeof(text) - 1)) > 0) {
        text[n] = '\0';
        n_reads++;
        n_bytes += (size_t)n;
        census.hash = hash_bytes(census.hash, text, (size_t)n);
        rest = text;
        while ((line = strsep(&rest, "\n")) && *line)
            census_count(&census, line, key);
    }
    if (n < 0)
        return -errno;
    census.sure = n_reads <= 1 && n_bytes <= SURE_BYTES;
    *ret = census;
    return 0;
}

/* The file is addressed by line number: where locks come and go between two reads, a line is seen
 * twice or not at all. So a figure from more than one read counts when nothing at all has changed
 * between two looks. Where locks come and go all the time, most looks are right: the one in the
 * middle is taken. */
static int
census_settle(uint64_t key, uint64_t *ret_bytes)
{
    struct census looks[MAX_LOOKS];
    for (size_t n = 0; n < MAX_LOOKS; n++) {
        int r = census_take(key, &looks[n]);
        if (r < 0)
            return r;
        if (!looks[n].sure && (n == 0 || looks[n].hash != looks[n - 1].hash))
            continue;
        *ret_bytes = looks[n].bytes;
        return 0;
    }
    qsort(looks, MAX_LOOKS, sizeof(looks[0]), census_compare);
    *ret_bytes = looks[MAX_LOOKS / 2].bytes;
    return 0;
}

uint64_t
memory_used(const struct device *device)
{
    uint64_t bytes;
    return census_settle(device->lock_key, &bytes) < 0 ? device->own_bytes : bytes;
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
    if (memory->fd >= 0) {
        LOCKED(&soft->memories.lock);
        LIST_REMOVE(memory, link);
        fd_close(memory->fd);
    }
    if (memory->device && !memory->imported)
        memory->device->own_bytes -= memory->size;
    free(memory);
}

/* Without a file yet. */
static struct memory *
memory_alloc(struct device *device, bool imported)
{
    struct memory *memory = calloc(1, sizeof(*memory));
    if (!memory)
        return NULL;
    object_init(&memory->object, OBJECT_MEMORY, memory_free);
    memory->device = device;
    memory->fd = -1;
    memory->imported = imported;
    return memory;
}

/* Gives it a descriptor of its own for a file or, for an fd of -1, of a new one with that name. A
 * fork finds all there are: there is one only with the list's lock. */
static int
memory_open(struct memory *memory, int fd, const char *name)
{
    LOCKED(&soft->memories.lock);
    memory->fd = fd >= 0 ? fcntl(fd, F_DUPFD_CLOEXEC, 0)
                         : memfd_create(name, MFD_CLOEXEC | MFD_ALLOW_SEALING);
    if (memory->fd < 0)
        return -errno;
    LIST_INSERT_HEAD(&soft->memories.all, memory, link);
    return 0;
}

/* The file's final length. Beyond RLIMIT_FSIZE, ftruncate(2) would end a process that does not
 * ignore SIGXFSZ. */
static int
memory_set_length(struct memory *memory, size_t length)
{
    struct rlimit limit;
    if (getrlimit(RLIMIT_FSIZE, &limit) == 0 && length > limit.rlim_cur)
        return -EFBIG;
    if (ftruncate(memory->fd, (off_t)length) < 0 ||
        fcntl(memory->fd, F_ADD_SEALS, MEMFD_SEALS | F_SEAL_SEAL) < 0)
        return -errno;
    return 0;
}

/* Sets (F_WRLCK) or ends (F_UNLCK) the part of a file's lock that stands for some of its bytes. */
static int
count_bytes(int fd, const struct device *device, int type, size_t from, size_t to)
{
    struct flock lock = {
        .l_type = (short)type,
        .l_whence = SEEK_SET,
        .l_start = (off_t)(device->lock_key + from),
        .l_len = (off_t)(to - from),
    };
    return fcntl(fd, F_OFD_SETLK, &lock);
}

bool
memfd_is_sealed(int fd)
{
    int seals = fcntl(fd, F_GET_SEALS);
    return seals >= 0 && (seals & MEMFD_SEALS) == MEMFD_SEALS;
}

CUresult
memfd_error(int r)
{
    return r == -EMFILE || r == -ENFILE || r == -EFBIG ? CUDA_ERROR_OPERATING_SYSTEM
                                                       : CUDA_ERROR_OUT_OF_MEMORY;
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

/* A sealed file of that length, of which nothing counts yet. */
static CUresult
memory_new_file(struct device *device, const char *prefix, size_t length,
                CUmemAllocationHandleType handle_types, struct memory **ret)
{
    char name[64 + SOFT_UUID_SIZE]; /* says whose memory it is */
    RETURN_IF(device_check(device));
    _cleanup_(memory_unrefp) struct memory *memory = memory_alloc(device, false);
    if (!memory)
        return CUDA_ERROR_OUT_OF_MEMORY;
    snprintf(name, sizeof(name), "%s%s", prefix, device ? device->uuid_text : POOL_HOST);
    int r = memory_open(memory, -1, name);
    if (r < 0 || (r = memory_set_length(memory, length)) < 0)
        return memfd_error(r);
    memory->handle_types = handle_types;
    *ret = TAKE_PTR(memory);
    return CUDA_SUCCESS;
}

CUresult
memory_new(struct device *device, size_t size, CUmemAllocationHandleType handle_types,
           struct memory **ret)
{
    _cleanup_(memory_unrefp) struct memory *memory = NULL;
    RETURN_IF(memory_new_file(device, NAME_PREFIX, size, handle_types, &memory));
    RETURN_IF(memory_resize(memory, size));
    *ret = TAKE_PTR(memory);
    return CUDA_SUCCESS;
}

CUresult
memory_new_pool(struct device *device, size_t length, struct memory **ret)
{
    return memory_new_file(device, POOL_PREFIX, length, CU_MEM_HANDLE_TYPE_NONE, ret);
}

/* Counted first and asked afterwards, so that two creators cannot both fit into the same space.
 * In this process they take turns, by memory_lock, and are not refused in vain. */
static CUresult
memory_grow(struct memory *memory, size_t size)
{
    struct device *device = memory->device;
    size_t before = memory->size;
    RETURN_IF(device_check(device));
    if (size > device->total || count_bytes(memory->fd, device, F_WRLCK, before, size) < 0)
        return CUDA_ERROR_OUT_OF_MEMORY;
    device->own_bytes += size - before;
    if (device_has_room(device, size - before))
        return CUDA_SUCCESS;
    count_bytes(memory->fd, device, F_UNLCK, before, size);
    device->own_bytes -= size - before;
    return CUDA_ERROR_OUT_OF_MEMORY;
}

CUresult
memory_resize(struct memory *memory, size_t size)
{
    struct device *device = memory->device;
    LOCKED(&soft->memory_lock);
    if (device && size > memory->size)
        RETURN_IF(memory_grow(memory, size));
    if (device && size < memory->size) {
        count_bytes(memory->fd, device, F_UNLCK, size, memory->size);
        device->own_bytes -= memory->size - size;
    }
    memory->size = size;
    return CUDA_SUCCESS;
}

/* What follows the prefix in the name of a memfd of ours: a device's UUID, or POOL_HOST. */
static bool
memfd_owner(int fd, const char *prefix, char *ret_owner)
{
    static const char suffix[] = " (deleted)";
    char path[64], link[160], start[64];
    snprintf(path, sizeof(path), "/proc/self/fd/%d", fd);
    size_t n_start = (size_t)snprintf(start, sizeof(start), "/memfd:%s", prefix);
    ssize_t n = readlink(path, link, sizeof(link) - 1);
    size_t n_suffix = sizeof(suffix) - 1;
    if (n < 0 || (size_t)n < n_start + n_suffix)
        return false;
    link[n] = '\0';
    char *owner = link + n_start, *end = link + (size_t)n - n_suffix;
    if (strncmp(link, start, n_start) != 0 || strcmp(end, suffix) != 0 ||
        end - owner >= SOFT_UUID_SIZE)
        return false;
    *end = '\0';
    strcpy(ret_owner, owner);
    return true;
}

/* A reference on a file of another process, whose name begins with the prefix. */
static CUresult
memory_import_file(int fd, const char *prefix, struct memory **ret)
{
    char owner[SOFT_UUID_SIZE];
    if (fd < 0 || !memfd_owner(fd, prefix, owner) || !memfd_is_sealed(fd))
        return CUDA_ERROR_UNKNOWN;
    struct device *device = device_find_uuid(owner);
    RETURN_IF(device_check(device));
    _cleanup_(memory_unrefp) struct memory *memory = memory_alloc(device, true);
    if (!memory)
        return CUDA_ERROR_OUT_OF_MEMORY;
    if (memory_open(memory, fd, NULL) < 0)
        return CUDA_ERROR_OPERATING_SYSTEM;
    memory->host = strcmp(owner, POOL_HOST) == 0;
    *ret = TAKE_PTR(memory);
    return CUDA_SUCCESS;
}

CUresult
memory_import(int fd, struct memory **ret)
{
    _cleanup_(memory_unrefp) struct memory *memory = NULL;
    struct stat st;
    RETURN_IF(memory_import_file(fd, NAME_PREFIX, &memory));
    if (fstat(fd, &st) < 0 || st.st_size <= 0 || (size_t)st.st_size % SOFT_PAGE_SIZE != 0)
        return CUDA_ERROR_UNKNOWN;
    memory->size = (size_t)st.st_size;
    *ret = TAKE_PTR(memory);
    return CUDA_SUCCESS;
}

CUresult
memory_import_pool(int fd, struct memory **ret)
{
    return memory_import_file(fd, POOL_PREFIX, ret);
}

CUdevice
memory_ordinal(const struct memory *memory)
{
    return memory->device ? memory->device->ordinal : CU_DEVICE_INVALID;
}

void
memory_in_child(void)
{
    struct memory *memory;
    LIST_FOREACH(memory, &soft->memories.all, link)
        memory->fd = fd_close(memory->fd);
    LIST_INIT(&soft->memories.all);
}
