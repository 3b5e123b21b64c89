/* SPDX-License-Identifier: Apache-2.0 */
/* Mappings that a program keeps beyond its leases; dma-bufs, which are kept beyond all. */
#include <errno.h>
#include <fcntl.h>
#include <pthread.h>
#include <sched.h>
#include <semaphore.h>
#include <signal.h>
#include <string.h>
#include <sys/mman.h>
#include <unistd.h>

#include "client_fixture.h"
#include "process.h"

#define MAPPED_TEST(name)                                                            \
    CAID_TEST_BETWEEN(mapped, name, begin_with_gpu(), end(), .init = driver_warm_up, \
                      .timeout = 120)

/* The software driver tells what it is asked. */
#define SOFT_TEST(name)                                                              \
    CAID_TEST_BETWEEN(mapped, name, ONLY_IF(gpu_is_soft(), begin_with_gpu()), end(), \
                      .init = driver_warm_up, .timeout = 120)

#define MIB  (INT64_C(1) << 20)
#define SIZE (80 * MIB) /* larger than what stays mapped when it is idle */

static const char *const mapping_calls[] = {"cuMemImportFromShareableHandle",
                                            "cuMemAddressReserve", "cuMemMap", "cuMemSetAccess",
                                            "cuMemUnmap"};

static uint64_t
n_mapping_calls(void)
{
    uint64_t n = 0;

    for (size_t i = 0; i < ARRAY_SIZE(mapping_calls); i++)
        n += soft_calls(&f.gpu, mapping_calls[i]);
    return n;
}

static uint64_t
ptr_of(const struct caid_array *array)
{
    return caid_array_get_info(array)->ptr;
}

/* Waits for what is closed: then an idle block is unmapped, and forgotten. */
static void
flush(void)
{
    wait_for_leases(f.client, 0);
    assert_ok(caid_flush(f.client, -1, NULL, &error));
}

static struct caid_mapping *
keep(struct caid_array *array)
{
    struct caid_mapping *mapping = NULL;

    assert_ok(caid_array_keep_mapping(array, &mapping, &error));
    return mapping;
}

/* ---- without a lease ---- */

SOFT_TEST(what_is_kept_is_opened_without_a_driver_call)
{
    struct caid_array *array = make_bytes(f.client, "x", SIZE);
    struct caid_mapping *first = keep(array), *second = keep(array);
    uint64_t ptr = ptr_of(array), calls = n_mapping_calls();

    for (int i = 0; i < 3; i++) {
        caid_array_close(array);
        flush();
        array = must_open("x", "rw");
        cr_assert_eq(ptr_of(array), ptr);
        if (i == 1)
            caid_mapping_release(second); /* the other one is enough */
    }
    cr_assert_eq(n_mapping_calls(), calls);
    caid_mapping_release(first); /* its array is open */
    caid_array_close(array);
    flush();
    cr_assert_eq(soft_live(&f.gpu, "mappings"), 0);
    array = must_open("x", "rw"); /* the daemon was told that it was forgotten */
    caid_array_close(array);
}

SOFT_TEST(what_is_kept_goes_when_it_is_released)
{
    struct caid_array *array = make_bytes(f.client, NULL, SIZE);
    struct caid_mapping *mapping = keep(array);

    caid_array_close(array);
    flush(); /* the daemon frees the block, which is mapped here */
    cr_assert_eq(status_of(f.client).blocks, 0);
    cr_assert_eq(soft_live(&f.gpu, "mappings"), 1);
    caid_mapping_release(mapping);
    flush();
    cr_assert_eq(soft_live(&f.gpu, "mappings"), 0);
    cr_assert_eq(soft_live(&f.gpu, "reservations"), 0);
    caid_mapping_release(NULL);
}

static void *
release(void *mapping)
{
    caid_mapping_release(mapping);
    return NULL;
}

SOFT_TEST(another_thread_releases_after_the_client)
{
    struct caid_array *array = make_bytes(f.client, "x", SIZE);
    struct caid_mapping *mapping = keep(array);
    pthread_t thread;

    caid_array_close(array);
    caid_client_close(f.client);
    cr_assert_eq(soft_live(&f.gpu, "mappings"), 1);
    cr_assert_eq(pthread_create(&thread, NULL, release, mapping), 0);
    cr_assert_eq(pthread_join(thread, NULL), 0);
    cr_assert_eq(soft_live(&f.gpu, "mappings"), 0);
    f.client = daemon_connect(&f.daemon);
}

MAPPED_TEST(only_memory_of_a_device_is_kept)
{
    const int64_t none = 0, some = 100;
    struct caid_mapping *mapping = NULL;
    OWNED struct caid_array *empty = NULL, *pinned = NULL,
                            *array = make_bytes(f.client, NULL, 1);

    OPTIONS(caid_create_options, of_none, .typestr = "|u1", .shape = &none, .ndim = 1);
    assert_ok(caid_array_create(f.client, &empty, &of_none, &error));
    OPTIONS(caid_create_options, of_host, .typestr = "|u1", .shape = &some, .ndim = 1,
            .memory = "pinned");
    assert_ok(caid_array_create(f.client, &pinned, &of_host, &error));
    assert_failed(caid_array_keep_mapping(empty, &mapping, &error), CAID_ERR_UNSUPPORTED);
    assert_failed(caid_array_keep_mapping(pinned, &mapping, &error), CAID_ERR_UNSUPPORTED);
    assert_failed(caid_array_keep_mapping(NULL, &mapping, &error), CAID_ERR_INVALID);
    assert_failed(caid_array_keep_mapping(array, NULL, &error), CAID_ERR_INVALID);
    cr_assert_null(mapping);
}

MAPPED_TEST(a_child_leaves_the_parents_alone)
{
    struct caid_array *array = make_bytes(f.client, "x", SIZE);
    struct caid_mapping *mapping = keep(array), *made = NULL;
    uint64_t ptr = ptr_of(array);

    pid_t pid = fork();
    if (pid == 0) {
        int r = caid_array_keep_mapping(array, &made, &error);
        caid_mapping_release(mapping);
        _exit(r < 0 && error.code == CAID_ERR_FORKED ? 0 : 1);
    }
    cr_assert_eq(process_wait(pid), 0);
    caid_array_close(array);
    flush();
    array = must_open("x", "rw");
    cr_assert_eq(ptr_of(array), ptr);
    caid_mapping_release(mapping);
    caid_array_close(array);
}

/* ---- dma-bufs ---- */

static int
see_exported(const struct caid_details *details, void *ret)
{
    *(bool *)ret = details->exported;
    return 0;
}

static bool
is_exported(const char *name)
{
    bool exported = false;

    assert_ok(caid_show(f.client, name, NULL, see_exported, &exported, &error));
    return exported;
}

static void
assert_no_dmabuf(struct caid_array *array, int32_t code)
{
    uint64_t offset = 7;
    int fd = -7;

    assert_failed(caid_array_dmabuf(array, &fd, &offset, &error), code);
    cr_assert_eq(fd, -7);
    cr_assert_eq(offset, 7);
}

MAPPED_TEST(the_daemon_is_told_of_a_dmabuf_that_can_be_made)
{
    OWNED struct caid_array *array = make_bytes(f.client, "x", SIZE),
                            *small = make_bytes(f.client, "small", 1),
                            *reader = must_open("x", "r");
    uint64_t offset = 7;
    int fd = -1;

    assert_no_dmabuf(NULL, CAID_ERR_INVALID);
    assert_failed(caid_array_dmabuf(array, NULL, &offset, &error), CAID_ERR_INVALID);
    assert_failed(caid_array_dmabuf(array, &fd, NULL, &error), CAID_ERR_INVALID);
    assert_no_dmabuf(small, CAID_ERR_INVALID);
    assert_no_dmabuf(reader, CAID_ERR_READ_ONLY);
    caid_array_close(TAKE_PTR(reader));
    assert_ok(caid_unmap_many(&array, 1, &error));
    assert_no_dmabuf(array, CAID_ERR_INVALID);
    assert_ok(caid_map_many(&array, 1, &error));
    assert_ok(caid_client_suspend(f.client, 0, &error));
    assert_no_dmabuf(array, CAID_ERR_NOT_READY);
    assert_ok(caid_client_resume(f.client, NULL, NULL, &error));
    cr_assert(!is_exported("x") && !is_exported("small"));

    int r = caid_array_dmabuf(array, &fd, &offset, &error);
    cr_assert(is_exported("x"));
    if (r < 0) {
        cr_assert_eq(error.code, CAID_ERR_UNSUPPORTED, "%s", error.message);
        return;
    }
    cr_assert_eq(offset, 0);
    cr_assert_eq(lseek(fd, 0, SEEK_END), SIZE);
    cr_assert(fcntl(fd, F_GETFD) & FD_CLOEXEC);
    close(fd);
}

/* ---- a client that is suspended ---- */

SOFT_TEST(what_is_kept_is_given_back_by_who_is_suspended)
{
    struct caid_array *array = make_bytes(f.client, "x", SIZE);
    struct caid_array *gone = make_bytes(f.client, NULL, SIZE);
    struct caid_mapping *kept = keep(array), *freed = keep(gone);
    uint64_t ptr = ptr_of(array);

    caid_array_close(gone);
    wait_for_leases(f.client, 1);
    assert_ok(caid_flush(f.client, -1, NULL, &error));
    cr_assert_eq(status_of(f.client).blocks, 1);
    assert_ok(caid_client_suspend(f.client, CAID_FOREVER, &error));
    cr_assert_eq(soft_live(&f.gpu, "mappings"), 0);
    cr_assert_eq(soft_live(&f.gpu, "handles"), 0);
    caid_array_close(array);
    wait_for_leases(f.client, 0);
    assert_ok(caid_client_resume(f.client, NULL, NULL, &error));
    array = must_open("x", "rw");
    cr_assert_eq(ptr_of(array), ptr);
    assert_ok(caid_client_suspend(f.client, 0, &error));
    caid_mapping_release(freed);
    caid_mapping_release(kept);
    assert_failed(caid_client_suspend(f.client, 0, &error), CAID_ERR_NOT_READY);
    assert_ok(caid_client_resume(f.client, NULL, NULL, &error));
    assert_failed(caid_client_resume(f.client, NULL, NULL, &error), CAID_ERR_INVALID);
    cr_assert_eq(ptr_of(array), ptr);
    caid_array_close(array);
    flush();
    cr_assert_eq(soft_live(&f.gpu, "mappings"), 0);
}

static int
resume_here(void *client)
{
    return caid_client_resume(client, NULL, NULL, NULL) == -EPERM ? 0 : 1;
}

/* As one that was restored elsewhere: it has this process's memory, and another pid. */
MAPPED_TEST(another_process_cannot_resume_it)
{
    static _Alignas(16) char stack[256 << 10];

    assert_ok(caid_client_suspend(f.client, 0, &error));
    pid_t pid =
        clone(resume_here, stack + sizeof(stack), CLONE_VM | CLONE_VFORK | SIGCHLD, f.client);
    cr_assert_gt(pid, 0);
    cr_assert_eq(process_wait(pid), 0);
    assert_ok(caid_client_resume(f.client, NULL, NULL, &error));
}

/* ---- what other threads do meanwhile ---- */

/* A client that tells, when a thread has waited in it for a while. */
static struct {
    sem_t waits;
    bool looks, told;
    struct caid_array *array;
    struct caid_error error;
} w;

static int
tell_that_it_waits(void *userdata UNUSED)
{
    if (w.looks && !w.told)
        sem_post(&w.waits);
    w.told = w.looks;
    return 0;
}

static void
connect_waiting(void)
{
    OPTIONS(caid_connect_options, options, .socket = f.daemon.socket,
            .interrupted = tell_that_it_waits);

    memset(&w, 0, sizeof(w));
    sem_init(&w.waits, 0, 0);
    caid_client_close(f.client);
    assert_ok(caid_connect(&f.client, &options, &error));
}

static pthread_t
run_until_it_waits(void *(*run)(void *))
{
    pthread_t thread;

    w.looks = true;
    cr_assert_eq(pthread_create(&thread, NULL, run, NULL), 0);
    sem_wait(&w.waits);
    return thread;
}

static void *export(void *arg UNUSED)
{
    uint64_t offset;
    int fd;

    caid_array_dmabuf(w.array, &fd, &offset, &w.error);
    return NULL;
}

MAPPED_TEST(what_is_unmapped_before_the_daemon_answers_has_no_dmabuf)
{
    OWNED struct caid_array *array = NULL;

    connect_waiting();
    w.array = array = make_bytes(f.client, "x", SIZE);
    cr_assert_eq(kill(f.daemon.pid, SIGSTOP), 0);
    pthread_t thread = run_until_it_waits(export);
    assert_ok(caid_unmap_many(&array, 1, &error));
    cr_assert_eq(kill(f.daemon.pid, SIGCONT), 0);
    pthread_join(thread, NULL);
    cr_assert_eq(w.error.code, CAID_ERR_INVALID, "%s", w.error.message);
    cr_assert(strstr(w.error.message, "unmapped"), "%s", w.error.message);
}

static void *
suspend(void *arg UNUSED)
{
    caid_client_suspend(f.client, CAID_FOREVER, &w.error);
    return NULL;
}

static void
bracket_on(struct caid_client *client, struct caid_array *array, CUstream stream, bool writes)
{
    OPTIONS(caid_bracket_options, options, .stream = (uintptr_t)stream);
    struct caid_bracket *bracket;

    options.reads = options.writes = &array;
    options.n_writes = writes;
    options.n_reads = !writes;
    assert_ok(caid_bracket_begin(client, &bracket, &options, &error));
    assert_ok(caid_bracket_end(bracket, &error));
    caid_bracket_free(bracket);
}

/* Its stream waits for another client's. */
SOFT_TEST(a_client_that_is_closed_is_not_suspended_any_more)
{
    _Atomic uint64_t *gate = gpu_gate_new(&f.gpu);
    CUstream first = gpu_stream_new(&f.gpu), second = gpu_stream_new(&f.gpu);

    connect_waiting();
    struct caid_client *other = daemon_connect(&f.daemon);
    struct caid_array *written = make_bytes(other, "x", SIZE), *read = must_open("x", "r");
    gpu_wait_at(&f.gpu, gate, first);
    bracket_on(other, written, first, true);
    bracket_on(f.client, read, second, false);
    pthread_t thread = run_until_it_waits(suspend);
    caid_client_close(f.client);
    pthread_join(thread, NULL);
    cr_assert_eq(w.error.code, CAID_ERR_CLOSED, "%s", w.error.message);
    *gate = 1;
    caid_array_close(read);
    caid_array_close(written);
    caid_client_close(other);
    f.client = daemon_connect(&f.daemon);
    assert_cuda(f.gpu.drv->cu.cuCtxSynchronize());
    gpu_gate_free(&f.gpu, gate);
}

/* ---- over a restart ---- */

static void
begin_supervised(void)
{
    gpu_begin(&f.gpu);
    daemon_start_supervised(&f.daemon);
    f.client = daemon_connect(&f.daemon);
}

static void
kill_daemon(void)
{
    cr_assert_eq(kill((pid_t)status_of(f.client).pid, SIGKILL), 0);
    status_of(f.client);
}

#define RESTART_TEST(name)                                                             \
    CAID_TEST_BETWEEN(mapped, name, ONLY_IF(gpu_is_soft(), begin_supervised()), end(), \
                      .init = driver_warm_up, .timeout = 120)

RESTART_TEST(what_is_kept_outlives_the_daemon)
{
    struct caid_array *array = make_bytes(f.client, "x", SIZE);
    struct caid_mapping *kept = keep(array), *freed;
    uint64_t ptr = ptr_of(array);

    caid_array_close(array);
    freed = keep(array = make_bytes(f.client, NULL, SIZE));
    caid_array_close(array);
    flush();
    cr_assert_eq(status_of(f.client).blocks, 1);
    uint64_t calls = n_mapping_calls();
    kill_daemon();
    array = must_open("x", "rw");
    cr_assert_eq(ptr_of(array), ptr);
    cr_assert_eq(n_mapping_calls(), calls);
    caid_array_close(array);
    caid_mapping_release(freed);
    caid_mapping_release(kept);
    flush();
    cr_assert_eq(soft_live(&f.gpu, "mappings"), 0);
}
