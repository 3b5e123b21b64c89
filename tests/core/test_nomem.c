/* SPDX-License-Identifier: Apache-2.0 */
/*
 * One history, again and again, with the n-th allocation inside the core failing, for every n
 * until none fails: no crash, no leak, sums that are right, and at most that one connection ended.
 * (The linker's --wrap puts the counter in front of the allocator; msgpack-c, a shared library,
 * is not concerned.)
 */
#include "core.h"

#include "caid_test.h"

static bool armed;
static long countdown;

static bool
fails(void)
{
    return armed && --countdown == 0;
}

void *__real_malloc(size_t n);
void *__real_calloc(size_t n, size_t size);
void *__real_realloc(void *p, size_t n);
char *__real_strdup(const char *s);
char *__real_strndup(const char *s, size_t n);
void *__wrap_malloc(size_t n);
void *__wrap_calloc(size_t n, size_t size);
void *__wrap_realloc(void *p, size_t n);
char *__wrap_strdup(const char *s);
char *__wrap_strndup(const char *s, size_t n);

void *
__wrap_malloc(size_t n)
{
    return fails() ? NULL : __real_malloc(n);
}

void *
__wrap_calloc(size_t n, size_t size)
{
    return fails() ? NULL : __real_calloc(n, size);
}

void *
__wrap_realloc(void *p, size_t n)
{
    return fails() ? NULL : __real_realloc(p, n);
}

char *
__wrap_strdup(const char *s)
{
    return fails() ? NULL : __real_strdup(s);
}

char *
__wrap_strndup(const char *s, size_t n)
{
    return fails() ? NULL : __real_strndup(s, n);
}

struct run {
    struct core *core;
    uint64_t jobs[32];
    enum core_action_type types[32];
    size_t n_jobs;
    unsigned closed; /* connections, one bit each */
    uint32_t id;
};

static void
drain(struct run *run)
{
    struct core_action a;

    armed = false;
    while (core_next(run->core, &a)) {
        if (a.type == CORE_CLOSE)
            run->closed |= 1U << a.conn;
        if (a.type == CORE_ALLOC || a.type == CORE_RELEASE || a.type == CORE_MEMORY) {
            run->types[run->n_jobs] = a.type;
            run->jobs[run->n_jobs++] = a.job;
        }
    }
    core_check(run->core);
}

static void
finish(struct run *run)
{
    while (run->n_jobs) {
        uint64_t job = run->jobs[--run->n_jobs];
        armed = true;
        if (run->types[run->n_jobs] == CORE_ALLOC)
            core_alloc_done(run->core, job, &(struct core_alloc_result){.handle = 1, .fd = 1});
        else if (run->types[run->n_jobs] == CORE_RELEASE)
            core_release_done(run->core, job, 0);
        else
            core_memory_done(run->core, job, &(struct core_memory_result){.total = 1}, 1);
        drain(run);
    }
}

static void
ask(struct run *run, uint64_t conn, enum msg_method method, const void *params)
{
    struct msg_buf buf = {0};

    if (msg_method_is_request(method))
        cr_assert_eq(msg_encode_request(&buf, ++run->id, method, params), 0);
    else
        cr_assert_eq(msg_encode_notify(&buf, method, params), 0);
    armed = true;
    core_receive(run->core, conn, buf.data, buf.n, 0);
    drain(run);
    msg_buf_deinit(&buf);
    finish(run);
}

static void
hello(struct run *run, uint64_t conn)
{
    struct core_peer peer = {.uid = 7, .groups = (gid_t[]){1, 2}, .n_groups = 2};

    armed = true;
    int r = core_connect(run->core, conn, &peer, 0);
    drain(run);
    cr_assert(r == 0 || r == -ENOMEM);
    ask(run, conn, MSG_HELLO, &(struct msg_hello_params){.version_min = 1, .version_max = 1});
}

static void
history(struct run *run)
{
    struct msg_str name = MSG_STR("w");
    int64_t shape = 100;
    uint64_t lease = 1;

    hello(run, 1);
    hello(run, 2);
    ask(run, 1, MSG_CREATE,
        &(struct msg_create_params){.name = name,
                                    .typestr = MSG_STR("|V8"),
                                    .descr = MSG_STR("[]"),
                                    .shape = {&shape, 1}});
    ask(run, 2, MSG_OPEN, &(struct msg_open_params){.names = {&name, 1}, .mode = MSG_STR("r")});
    ask(run, 2, MSG_LIST, &(struct msg_list_params){0});
    ask(run, 2, MSG_SHOW, &(struct msg_name_params){.name = name});
    ask(run, 2, MSG_POOLS, &(struct msg_pools_params){0});
    ask(run, 2, MSG_STATUS, &(struct msg_none){});
    ask(run, 2, MSG_MEMORY_INFO, &(struct msg_memory_params){0});
    ask(run, 2, MSG_UNLINK, &(struct msg_name_params){.name = name});
    ask(run, 1, MSG_CLOSE, &(struct msg_close_params){.leases = {&lease, 1}});
}

/* Whether an allocation failed. */
static bool
run_with(long n)
{
    struct core_device device = {.uuid = "GPU-0", .total = 1 << 30, .granularity = 1 << 21};
    struct core_config config = {
        .server = "s",
        .driver = "soft",
        .driver_path = "/",
        .limits = {8, 8, 8, 8, 8, 0, 0},
        .threads = 2,
        .user_mode = 0600,
        .devices = &device,
        .n_devices = 1,
        .pools = &(struct core_pool_config){.name = "p", .mode = 0666},
        .n_pools = 1,
    };
    struct run run = {0};
    struct core_counts counts;

    countdown = n;
    armed = true;
    int r = core_new(&run.core, &config, 0);
    armed = false;
    if (r < 0) {
        cr_assert_eq(r, -ENOMEM);
        return true;
    }
    history(&run);
    for (uint64_t conn = 1; conn <= 2; conn++) {
        core_disconnect(run.core, conn);
        drain(&run);
    }
    finish(&run);
    core_get_counts(run.core, &counts);
    cr_assert_eq(counts.connections + counts.leases + counts.jobs, 0);
    cr_assert_eq(counts.arrays, counts.names, "n = %ld", n);
    cr_assert_eq(counts.blocks, counts.names);
    cr_assert_neq(run.closed, 6, "one failure ended two connections");
    core_free(run.core);
    return countdown <= 0;
}

CAID_TEST(nomem, every_allocation_fails_once)
{
    long n = 1;

    while (run_with(n))
        n++;
    cr_assert_gt(n, 30, "the counter is not in front of the allocator");
}
