/* SPDX-License-Identifier: Apache-2.0 */
/* Pools of another process: the fd of the pool, the places of its allocations. */
#include "caid_test.h"

#include <fcntl.h>
#include <pthread.h>
#include <string.h>
#include <sys/mman.h>
#include <unistd.h>

#include "soft_peer.h"
#include "soft_test.h"

#define FD CU_MEM_HANDLE_TYPE_POSIX_FILE_DESCRIPTOR

static CUmemoryPool
shared_pool(CUmemLocationType where, size_t max)
{
    return soft_pool(FD, where, max);
}

static CUdeviceptr
filled(CUmemoryPool pool, size_t size, unsigned char value)
{
    CUdeviceptr at;
    MUST(cuMemAllocFromPoolAsync(&at, size, pool, NULL));
    soft_fill(at, value, size);
    return at;
}

/* An exporter: two allocations of 1 MiB, and then what it is told. */

static CUmemLocationType location =
    CU_MEM_LOCATION_TYPE_DEVICE; /* of the next exporter's pool */

static void
exporter(int socket)
{
    CUmemPoolPtrExportData data[2];
    CUmemoryPool pool;
    CUdeviceptr at[2];
    char order;
    int fd;
    soft_start_context();
    pool = shared_pool(location, 0);
    for (int i = 0; i < 2; i++) {
        at[i] = filled(pool, MIB, (unsigned char)(0xa0 + i));
        MUST(cuMemPoolExportPointer(&data[i], at[i]));
    }
    MUST(cuMemPoolExportToShareableHandle(&fd, pool, FD, 0));
    peer_say_fd(socket, fd);
    close(fd);
    peer_say(socket, data, sizeof(data));
    while (peer_hear_if_any(socket, &order, 1)) {
        if (order == 'f') /* frees the first, and waits */
            MUST(cuMemFree_v2(at[0]));
        else if (order == 'd')
            MUST(cuMemPoolDestroy(pool));
        else
            order = *(char *)(uintptr_t)at[1];
        MUST(cuCtxSynchronize());
        peer_say(socket, &order, 1);
    }
}

static struct peer peer;

static struct {
    int fd;
    CUmemoryPool pool; /* NULL: ended */
    CUmemPoolPtrExportData data[2];
} offer;

static char
tell(char order)
{
    peer_say(peer.socket, &order, 1);
    peer_hear(peer.socket, &order, 1);
    return order;
}

static void
import_pool(void)
{
    offer.fd = peer_hear_fd(peer.socket);
    peer_hear(peer.socket, offer.data, sizeof(offer.data));
    MUST(cuMemPoolImportFromShareableHandle(&offer.pool, (void *)(intptr_t)offer.fd, FD, 0));
}

static CUdeviceptr
import_one(int i)
{
    CUdeviceptr at;
    MUST(cuMemPoolImportPointer(&at, offer.pool, &offer.data[i]));
    return at;
}

static void
start_both(void)
{
    peer = peer_start(exporter);
    soft_start_context();
    import_pool();
}

static void
end_offer(void)
{
    if (!offer.pool)
        return;
    MUST(cuMemPoolDestroy(offer.pool));
    close(offer.fd);
    offer.pool = NULL;
}

static void
end_both(void)
{
    end_offer();
    soft_end();
}

#define OFFER_TEST(name) \
    CAID_TEST_BETWEEN(soft_pool_ipc, name, start_both(), end_both(), .timeout = 60)

/* The same handle, the same address; and one free ends what was imported twice. */
OFFER_TEST(importing_again_gives_the_same)
{
    CUmemoryPool again;
    MUST(cuMemPoolImportFromShareableHandle(&again, (void *)(intptr_t)offer.fd, FD, 0));
    cr_assert_eq(again, offer.pool);
    CUdeviceptr at = import_one(0);
    cr_assert_eq(import_one(0), at);
    MUST(cuMemFreeAsync(at, NULL));
    REFUSED(INVALID_VALUE, cuMemFreeAsync(at, NULL));
    at = import_one(0);
    cr_assert(soft_holds(at, 0xa0, MIB));
    MUST(cuMemFree_v2(at));
}

OFFER_TEST(memory_outlives_the_pool_that_it_is_from)
{
    CUdeviceptr first = import_one(0);
    USED_IS(2 * MIB, "an import is no second allocation");
    cr_assert(soft_holds(first, 0xa0, MIB));
    MUST(cuMemFree_v2(first));
    tell('f');
    USED_IS(MIB);
    tell('d');
    CUdeviceptr second = import_one(1);
    peer_end(&peer);
    cr_assert(soft_holds(second, 0xa1, MIB));
    MUST(cuMemFreeAsync(second, NULL));
    MUST(cuCtxSynchronize());
    USED_IS(MIB, "the pool is still imported");
    end_offer();
    USED_IS(0);
}

SOFT_TEST_LATE(soft_pool_ipc, pinned_memory_of_the_host_is_shared_too)
{
    location = CU_MEM_LOCATION_TYPE_HOST_NUMA;
    peer = peer_start(exporter);
    soft_start_context();
    import_pool();
    CUdeviceptr at = import_one(1);
    ATTRIBUTE_IS(MEMORY_TYPE, at, CU_MEMORYTYPE_HOST);
    cr_assert_eq(((unsigned char *)(uintptr_t)at)[MIB - 1], 0xa1);
    MUST(cuMemFree_v2(at));
    end_offer();
    peer_end(&peer);
    USED_IS(0);
}

/* What an imported pool is not for. */
OFFER_TEST(an_imported_pool_only_imports)
{
    CUmemPoolPtrExportData data;
    CUmemLocation own = {CU_MEM_LOCATION_TYPE_DEVICE, 0};
    CUmemAccess_flags access;
    uint64_t value = 0;
    CUdeviceptr at;
    int fd;
    CUdeviceptr imported = import_one(0);
    REFUSED(INVALID_VALUE, cuMemAllocFromPoolAsync(&at, 512, offer.pool, NULL));
    for (int i = 1; i <= 8; i++) {
        CUmemPool_attribute attribute = (CUmemPool_attribute)i;
        REFUSED(INVALID_VALUE, cuMemPoolGetAttribute(offer.pool, attribute, &value));
        REFUSED(INVALID_VALUE, cuMemPoolSetAttribute(offer.pool, attribute, &value));
    }
    REFUSED(INVALID_VALUE, cuMemPoolExportToShareableHandle(&fd, offer.pool, FD, 0));
    REFUSED(INVALID_VALUE, cuMemPoolExportPointer(&data, imported));
    MUST(cuMemPoolGetAccess(&access, offer.pool, &own));
    cr_assert_eq(access, CU_MEM_ACCESS_FLAGS_PROT_READWRITE);
    ATTRIBUTE_IS(MEMPOOL_HANDLE, imported, offer.pool);
    cr_assert_eq(cu.cuMemPoolDestroy(offer.pool), CUDA_ERROR_INVALID_VALUE, "in use");
    MUST(cuMemFree_v2(imported));
}

static CUresult
import_fd(int fd)
{
    CUmemoryPool pool;
    return cu.cuMemPoolImportFromShareableHandle(&pool, (void *)(intptr_t)fd, FD, 0);
}

SOFT_TEST(soft_pool_ipc, only_pools_are_imported)
{
    CUmemPoolPtrExportData data;
    CUdeviceptr at;
    int fd;
    _cleanup_fd_ int null = open("/dev/null", O_RDWR | O_CLOEXEC);
    cr_assert_eq(import_fd(null), CUDA_ERROR_UNKNOWN);
    cr_assert_eq(import_fd(-1), CUDA_ERROR_UNKNOWN);
    cr_assert_eq(import_fd(999), CUDA_ERROR_UNKNOWN);
    /* The right name is not enough: this one could shrink under a reader. */
    _cleanup_fd_ int forged = memfd_create("caid-softcuda-pool:host", MFD_CLOEXEC);
    cr_assert_eq(ftruncate(forged, MIB), 0);
    cr_assert_eq(import_fd(forged), CUDA_ERROR_UNKNOWN);
    struct soft_mapping mapping = soft_map(GRAN, 3);
    MUST(cuMemExportToShareableHandle(&fd, mapping.handle, FD, 0));
    cr_assert_eq(import_fd(fd), CUDA_ERROR_UNKNOWN);
    close(fd);
    REFUSED(INVALID_VALUE, cuMemPoolExportPointer(&data, mapping.at));
    soft_unmap(&mapping);

    CUmemoryPool pool = shared_pool(CU_MEM_LOCATION_TYPE_DEVICE, 0);
    CUmemGenericAllocationHandle handle;
    MUST(cuMemPoolExportToShareableHandle(&fd, pool, FD, 0));
    cr_assert_eq(fcntl(fd, F_GETFD) & FD_CLOEXEC, 0);
    REFUSED(UNKNOWN, cuMemImportFromShareableHandle(&handle, (void *)(intptr_t)fd, FD));
    REFUSED(INVALID_VALUE,
            cuMemPoolImportFromShareableHandle(&pool, (void *)(intptr_t)fd, FD, 1));
    REFUSED(NOT_SUPPORTED, cuMemPoolImportFromShareableHandle(&pool, (void *)(intptr_t)fd,
                                                              CU_MEM_HANDLE_TYPE_WIN32, 0));
    close(fd);
    REFUSED(INVALID_VALUE, cuMemPoolExportToShareableHandle(&fd, pool, FD, 1));
    REFUSED(INVALID_VALUE,
            cuMemPoolExportToShareableHandle(&fd, pool, CU_MEM_HANDLE_TYPE_NONE, 0));
    MUST(cuMemAllocAsync(&at, 512, NULL));
    REFUSED(INVALID_VALUE, cuMemPoolExportPointer(&data, at));
    MUST(cuMemFreeAsync(at, NULL));
}

/* A process can import its own pool; then there are two of it. */
SOFT_TEST(soft_pool_ipc, places_are_checked)
{
    CUmemPoolPtrExportData good, data;
    CUmemoryPool imported, other;
    CUdeviceptr at;
    int fd, other_fd;
    CUmemoryPool pool = shared_pool(CU_MEM_LOCATION_TYPE_DEVICE, 32 * MIB);
    CUdeviceptr own = filled(pool, MIB, 0x77);
    MUST(cuMemPoolExportToShareableHandle(&fd, pool, FD, 0));
    MUST(cuMemPoolExportPointer(&good, own));
    REFUSED(INVALID_VALUE, cuMemPoolExportPointer(&data, own + 512));
    REFUSED(INVALID_VALUE, cuMemPoolImportPointer(&at, pool, &good));
    MUST(cuMemPoolImportFromShareableHandle(&imported, (void *)(intptr_t)fd, FD, 0));
    cr_assert_neq(imported, pool);
    MUST(cuMemPoolImportPointer(&at, imported, &good));
    cr_assert_neq(at, own);
    cr_assert(soft_holds(at, 0x77, MIB));
    MUST(cuMemFree_v2(at));

    memset(&data, 0, sizeof(data));
    REFUSED(INVALID_VALUE, cuMemPoolImportPointer(&at, imported, &data));
    for (size_t i = 0; i < sizeof(data); i++) { /* no byte of it can be changed at will */
        data = good;
        data.reserved[i] ^= 0x80;
        CUresult result = cu.cuMemPoolImportPointer(&at, imported, &data);
        cr_assert(result == CUDA_SUCCESS || result == CUDA_ERROR_INVALID_VALUE);
        if (result == CUDA_SUCCESS)
            MUST(cuMemFree_v2(at));
    }
    CUmemoryPool second = shared_pool(CU_MEM_LOCATION_TYPE_DEVICE, 32 * MIB);
    MUST(cuMemPoolExportToShareableHandle(&other_fd, second, FD, 0));
    MUST(cuMemPoolImportFromShareableHandle(&other, (void *)(intptr_t)other_fd, FD, 0));
    REFUSED(INVALID_VALUE, cuMemPoolImportPointer(&at, other, &good));
    MUST(cuMemPoolDestroy(other));
    MUST(cuMemPoolDestroy(second));
    MUST(cuMemPoolDestroy(imported));
    MUST(cuMemFree_v2(own));
    MUST(cuMemPoolDestroy(pool));
    close(fd);
    close(other_fd);
    USED_IS(0);
}

/* Of a pool on a device that the process does not see. */
SOFT_TEST_LATE(soft_pool_ipc, memory_of_a_hidden_device_needs_access)
{
    setenv("CAID_SOFTCUDA_DEVICES", "2", 1);
    peer = peer_start(exporter);
    CUmemAccessDesc desc = {{CU_MEM_LOCATION_TYPE_DEVICE, 0}, 3};
    setenv("CUDA_VISIBLE_DEVICES", "1", 1);
    soft_start_context();
    import_pool();
    CUdeviceptr at = import_one(0);
    cr_assert(soft_holds(at, 0xa0, MIB), "copies reach everything");
    REFUSED(INVALID_VALUE, cuMemsetD8_v2(at, 1, 16));
    MUST(cuMemPoolSetAccess(offer.pool, &desc, 1));
    MUST(cuMemsetD8_v2(at, 1, 16));
    MUST(cuCtxSynchronize());
    MUST(cuMemFree_v2(at));
    end_offer();
}

/* A pool of this process, and the same one as it is imported. */
struct twin {
    CUmemoryPool own, imported;
    int fd;
};

static void
twin_import(struct twin *twin)
{
    MUST(
        cuMemPoolImportFromShareableHandle(&twin->imported, (void *)(intptr_t)twin->fd, FD, 0));
}

static struct twin
twin_new(void)
{
    struct twin twin = {.own = shared_pool(CU_MEM_LOCATION_TYPE_DEVICE, 0)};
    MUST(cuMemPoolExportToShareableHandle(&twin.fd, twin.own, FD, 0));
    twin_import(&twin);
    return twin;
}

static void
twin_end(struct twin *twin)
{
    MUST(cuMemPoolDestroy(twin->imported));
    MUST(cuMemPoolDestroy(twin->own));
    close(twin->fd);
}

/* Races with the end of an imported pool, while another thread keeps pools busy. */

#define ROUNDS 300

struct race {
    struct twin twin;  /* whose imported pool ends */
    struct twin other; /* to be busy with */
    CUmemPoolPtrExportData data;
    CUdeviceptr at;
    CUmemoryPool again;
    CUresult result;
    pthread_barrier_t start;
    pthread_t busy;
    _Atomic bool over;
};

static void *
be_busy(void *arg)
{
    struct race *race = arg;
    while (!race->over)
        twin_import(&race->other);
    return NULL;
}

static void
race_start(struct race *race)
{
    soft_start_context();
    race->twin = twin_new();
    race->other = twin_new();
    pthread_barrier_init(&race->start, NULL, 2);
    pthread_create(&race->busy, NULL, be_busy, race);
}

static void
race_end(struct race *race)
{
    race->over = true;
    pthread_join(race->busy, NULL);
    pthread_barrier_destroy(&race->start);
    twin_end(&race->twin);
    twin_end(&race->other);
}

/* What is asked for here is refused before any lock is taken, and otherwise for an ended handle. */
static bool
has_ended(CUmemoryPool pool)
{
    CUmemAccessDesc desc = {{CU_MEM_LOCATION_TYPE_HOST, 0}, CU_MEM_ACCESS_FLAGS_PROT_READWRITE};
    return cu.cuMemPoolSetAccess(pool, &desc, 1) == CUDA_ERROR_INVALID_VALUE;
}

static void *
import_ended(void *arg)
{
    struct race *race = arg;
    void *fd = (void *)(intptr_t)race->twin.fd;
    pthread_barrier_wait(&race->start);
    while (!has_ended(race->twin.imported))
        continue;
    race->result = cu.cuMemPoolImportFromShareableHandle(&race->again, fd, FD, 0);
    return NULL;
}

CAID_TEST(soft_pool_ipc, a_handle_that_has_ended_is_not_given_out_again)
{
    static struct race race; /* its threads outlive a test that fails */
    pthread_t thread;
    race_start(&race);
    for (int i = 0; i < ROUNDS; i++) {
        pthread_create(&thread, NULL, import_ended, &race);
        pthread_barrier_wait(&race.start);
        MUST(cuMemPoolDestroy(race.twin.imported));
        pthread_join(thread, NULL);
        cr_assert_eq(race.result, CUDA_SUCCESS);
        cr_assert_neq(race.again, race.twin.imported);
        race.twin.imported = race.again;
    }
    race_end(&race);
}

static void *
import_place(void *arg)
{
    struct race *race = arg;
    pthread_barrier_wait(&race->start);
    race->result = cu.cuMemPoolImportPointer(&race->at, race->twin.imported, &race->data);
    return NULL;
}

/* Either the pool ends, or it has the allocation. */
CAID_TEST(soft_pool_ipc, an_imported_pool_ends_without_allocations)
{
    static struct race race; /* its threads outlive a test that fails */
    pthread_t thread;
    race_start(&race);
    CUdeviceptr own = filled(race.twin.own, MIB, 1);
    MUST(cuMemPoolExportPointer(&race.data, own));
    for (int i = 0; i < ROUNDS; i++) {
        pthread_create(&thread, NULL, import_place, &race);
        pthread_barrier_wait(&race.start);
        CUresult ended = cu.cuMemPoolDestroy(race.twin.imported);
        pthread_join(thread, NULL);
        cr_assert_neq(ended == CUDA_SUCCESS, race.result == CUDA_SUCCESS);
        if (ended == CUDA_SUCCESS)
            twin_import(&race.twin);
        else
            MUST(cuMemFree_v2(race.at));
    }
    MUST(cuMemFree_v2(own));
    race_end(&race);
}
