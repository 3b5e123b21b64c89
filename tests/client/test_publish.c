/* SPDX-License-Identifier: Apache-2.0 */
/* Publishing: who sees what, before and after, and what it waits for. */
#include <errno.h>
#include <pthread.h>
#include <stdatomic.h>
#include <stdio.h>
#include <string.h>

#include "client_fixture.h"

#define N_BYTES       4096
#define N_READERS     4
#define N_GENERATIONS 300

static uint64_t
publish(struct caid_array *array, const char *name, const char *metadata)
{
    uint64_t generation = 0;

    OPTIONS(caid_publish_options, options, .metadata = metadata);
    assert_ok(caid_array_publish(array, name, &options, &generation, &error));
    cr_assert_eq(caid_array_get_info(array)->generation, generation);
    cr_assert_str_eq(caid_array_get_info(array)->name, name);
    return generation;
}

static int
open_generation(const char *name, uint64_t generation, struct caid_array **ret)
{
    OPTIONS(caid_open_options, options, .generation = generation);
    return caid_array_open(f.client, ret, name, &options, &error);
}

static void
assert_first_byte(struct caid_array *array, unsigned char wanted)
{
    unsigned char bytes[N_BYTES];

    assert_ok(caid_array_copy_to_host(array, bytes, sizeof(bytes), &error));
    cr_assert_eq(bytes[0], wanted);
}

static struct caid_array *
make_filled(unsigned char with)
{
    unsigned char bytes[N_BYTES];

    struct caid_array *array = make_bytes(f.client, NULL, N_BYTES);
    memset(bytes, with, sizeof(bytes));
    assert_ok(caid_array_copy_from_host(array, bytes, sizeof(bytes), &error));
    return array;
}

FIXTURE_TEST(publish, replaces_what_was_there)
{
    struct caid_array *opened = NULL;

    struct caid_array *old = make_filled(1), *new = make_filled(2);
    uint64_t first = publish(old, "x", NULL);
    cr_assert_gt(first, 0);
    assert_ok(open_generation("x", 0, &opened));
    assert_first_byte(opened, 1);
    caid_array_close(opened);

    cr_assert_eq(publish(new, "x", NULL), first + 1);
    assert_ok(open_generation("x", 0, &opened));
    assert_first_byte(opened, 2);
    cr_assert_eq(caid_array_get_info(opened)->generation, first + 1);
    caid_array_close(opened);

    /* The old one lives as long as somebody holds it. */
    assert_ok(open_generation("x", first, &opened));
    assert_first_byte(opened, 1);
    caid_array_close(opened);
    caid_array_close(old);
    wait_for_leases(f.client, 1);
    opened = NULL;
    assert_failed(open_generation("x", first, &opened), CAID_ERR_STALE);
    assert_failed(open_generation("x", first + 2, &opened), CAID_ERR_STALE);
    cr_assert_null(opened);
    caid_array_close(new);
}

FIXTURE_TEST(publish, moves_the_name)
{
    struct caid_array *opened;

    struct caid_array *array = make_bytes(f.client, "a", 8);
    const char *before = caid_array_get_info(array)->name;
    publish(array, "b", NULL);
    cr_assert_str_eq(before, "a", "strings from before stay valid");
    assert_failed(open_generation("a", 0, &opened), CAID_ERR_NOT_FOUND);
    assert_ok(open_generation("b", 0, &opened));
    caid_array_close(opened);
    uint64_t again = publish(array, "b", NULL);
    cr_assert_gt(again, 0);
    caid_array_close(array);
    wait_for_leases(f.client, 0);
    assert_ok(open_generation("b", 0, &opened));
    caid_array_close(opened);
}

FIXTURE_TEST(publish, metadata_is_kept_or_replaced)
{
    struct caid_array *opened;

    OWNED struct caid_array *array = make_bytes(f.client, NULL, 8);
    publish(array, "x", "one");
    cr_assert_str_eq(caid_array_get_info(array)->metadata, "one");
    publish(array, "x", NULL);
    cr_assert_str_eq(caid_array_get_info(array)->metadata, "one");
    publish(array, "y", "two");
    assert_ok(open_generation("y", 0, &opened));
    cr_assert_str_eq(caid_array_get_info(opened)->metadata, "two");
    caid_array_close(opened);
}

FIXTURE_TEST(publish, what_is_refused)
{
    static char metadata[4098];
    struct caid_array *array, *opened;

    array = make_bytes(f.client, NULL, 8);
    memset(metadata, 'm', sizeof(metadata) - 1);
    OPTIONS(caid_publish_options, options, .metadata = metadata);
    assert_failed(caid_array_publish(array, "x", &options, NULL, &error), CAID_ERR_INVALID);
    metadata[4096] = 0;
    assert_ok(caid_array_publish(array, "x", &options, NULL, &error));
    options.metadata = "\xff";
    assert_failed(caid_array_publish(array, "x", &options, NULL, &error), CAID_ERR_INVALID);
    assert_failed(caid_array_publish(array, "", NULL, NULL, &error), CAID_ERR_INVALID_NAME);
    assert_failed(caid_array_publish(array, NULL, NULL, NULL, &error), CAID_ERR_INVALID_NAME);
    assert_failed(caid_array_publish(NULL, "x", NULL, NULL, &error), CAID_ERR_INVALID);
    options.metadata = NULL;
    options.struct_size = 0;
    assert_failed(caid_array_publish(array, "x", &options, NULL, &error), CAID_ERR_INVALID);

    struct caid_client *client = f.client;
    caid_client_close(client);
    f.client = daemon_connect(&f.daemon);
    assert_failed(caid_array_publish(array, "late", NULL, NULL, &error), CAID_ERR_CLOSED);
    assert_failed(open_generation("late", 0, &opened), CAID_ERR_NOT_FOUND);
    caid_array_close(array);
}

/* ---- what it waits for ---- */

static void
late_fill_and_publish(struct test_gpu *gpu, bool stream_is_named)
{
    struct caid_array *opened;

    CUstream stream = gpu_stream_new(gpu);
    struct caid_array *array = make_filled(1);
    if (gpu_is_soft())
        soft_control(gpu, "delay 100000");
    assert_cuda(
        gpu->drv->cu.cuMemsetD8Async(caid_array_get_info(array)->ptr, 2, N_BYTES, stream));
    OPTIONS(caid_publish_options, options,
            .stream = stream_is_named ? (uint64_t)(uintptr_t)stream : 0);
    assert_ok(caid_array_publish(array, "x", &options, NULL, &error));
    assert_cuda(gpu->drv->cu.cuStreamQuery(stream));
    if (gpu_is_soft())
        soft_control(gpu, "delay 0");
    assert_ok(open_generation("x", 0, &opened));
    assert_first_byte(opened, 2);
    caid_array_close(opened);
    caid_array_close(array);
    assert_cuda(gpu->drv->cu.cuStreamDestroy(stream));
}

FIXTURE_TEST(publish, waits_for_the_work_that_writes)
{
    struct test_gpu gpu;

    gpu_begin(&gpu);
    late_fill_and_publish(&gpu, false);
    late_fill_and_publish(&gpu, true);
    gpu_end(&gpu);
}

/* What is incomplete is not shown. */
CLIENT_TEST(publish, fails_when_the_work_has_failed)
{
    struct caid_array *opened;
    struct test_gpu gpu;

    if (!gpu_is_soft())
        return;
    begin();
    gpu_begin(&gpu);
    struct caid_array *array = make_filled(1);
    soft_control(&gpu, "fault 0 LAUNCH_FAILED");
    assert_failed(caid_array_publish(array, "x", NULL, NULL, &error), CAID_ERR_DRIVER);
    assert_failed(open_generation("x", 0, &opened), CAID_ERR_NOT_FOUND);
    caid_array_close(array);
    gpu_end(&gpu);
    end();
}

/* ---- many readers ---- */

struct crowd {
    const struct daemon *daemon;
    atomic_bool stop;
    atomic_int failed, n_read; /* threads do not assert: they are not the test's */
    char message[600];
};

static bool
is_whole(struct caid_array *array, struct caid_error *error)
{
    unsigned char bytes[N_BYTES];

    if (caid_array_copy_to_host(array, bytes, sizeof(bytes), error) < 0)
        return false;
    unsigned char wanted = (unsigned char)caid_array_get_info(array)->generation;
    for (size_t i = 0; i < sizeof(bytes); i++)
        if (bytes[i] != wanted) {
            snprintf(error->message, sizeof(error->message), "byte %zu is %d, not %d", i,
                     bytes[i], wanted);
            return false;
        }
    return true;
}

static void *
read_on(void *arg)
{
    struct crowd *crowd = arg;
    struct caid_client *client = daemon_connect(crowd->daemon);
    struct caid_array *array;

    while (!crowd->stop && !crowd->failed) {
        int r = caid_array_open(client, &array, "x", NULL, &error);
        if (r == 0 && !is_whole(array, &error))
            r = -EIO;
        if (r < 0 && atomic_fetch_add(&crowd->failed, 1) == 0)
            snprintf(crowd->message, sizeof(crowd->message), "%s", error.message);
        if (r < 0)
            break;
        caid_array_close(array);
        crowd->n_read++;
    }
    caid_client_close(client);
    return NULL;
}

FIXTURE_TEST(publish, readers_see_whole_generations)
{
    struct crowd crowd = {0};
    pthread_t threads[N_READERS];

    crowd.daemon = &f.daemon;
    struct caid_array *array = make_filled(1);
    cr_assert_eq(publish(array, "x", NULL), 1);
    caid_array_close(array);
    for (int i = 0; i < N_READERS; i++)
        cr_assert_eq(pthread_create(&threads[i], NULL, read_on, &crowd), 0);
    for (uint64_t i = 2; i < N_GENERATIONS && !crowd.failed; i++) {
        array = make_filled((unsigned char)i);
        cr_assert_eq(publish(array, "x", NULL), i);
        caid_array_close(array);
    }
    crowd.stop = true;
    for (int i = 0; i < N_READERS; i++)
        pthread_join(threads[i], NULL);
    cr_assert_eq(crowd.failed, 0, "%s", crowd.message);
    cr_assert_gt(crowd.n_read, 0);
    wait_for_leases(f.client, 0);
}

/* ---- two that publish, and one that looks ---- */

FIXTURE_TEST(publish, with_a_companion)
{
    struct caid_array *opened, *first, *other = NULL;

    OPTIONS(caid_create_options, create, .typestr = "|u1", .memory = "pinned");
    OPTIONS(caid_publish_options, options, .flags = CAID_PUBLISH_NEW);
    OPTIONS(caid_publish_options, alone, .flags = CAID_PUBLISH_NEW);
    struct caid_array *array = make_filled(1), *late = make_bytes(f.client, NULL, 1);
    assert_ok(caid_array_create(f.client, &options.companion, &create, &error));
    assert_ok(caid_array_publish(array, "x", &options, NULL, &error));
    assert_failed(caid_array_publish(late, "x", &alone, NULL, &error), CAID_ERR_EXISTS);
    caid_array_close(options.companion);
    caid_array_close(array);
    wait_for_leases(f.client, 1);

    assert_ok(open_generation("x", 0, &opened));
    assert_ok(caid_array_open_companion(opened, &first, &error));
    cr_assert_str_eq(caid_array_get_info(first)->memory, "pinned");
    cr_assert(caid_array_get_info(first)->readonly);
    assert_failed(caid_array_open_companion(first, &other, &error), CAID_ERR_NOT_FOUND);
    assert_failed(caid_array_open_companion(late, &other, &error), CAID_ERR_NOT_FOUND);
    cr_assert_null(other);
    options.companion = opened; /* "r", and has a name */
    assert_failed(caid_array_publish(late, "y", &options, NULL, &error), CAID_ERR_INVALID);
    options.flags = 2;
    assert_failed(caid_array_publish(late, "y", &options, NULL, &error), CAID_ERR_INVALID);
    caid_array_close(late);
    caid_array_close(opened);
    caid_array_close(first);
}

FIXTURE_TEST(publish, sent_and_taken_once)
{
    uint8_t ticket[CAID_TICKET_SIZE], unknown[CAID_TICKET_SIZE] = {0};
    unsigned char bytes[N_BYTES];
    struct caid_array *taken = NULL, *again = NULL;

    OPTIONS(caid_open_options, rw, .mode = "rw");
    OPTIONS(caid_open_options, named, .generation = 1);
    struct caid_array *array = make_filled(1);
    assert_ok(caid_array_publish(array, "x", NULL, NULL, &error));
    assert_ok(caid_array_send(array, ticket, &error));
    assert_ok(caid_unlink(f.client, "x", NULL, &error));
    caid_array_close(array);
    wait_for_leases(f.client, 1);

    assert_failed(caid_array_take(f.client, &taken, unknown, NULL, &error), CAID_ERR_NOT_FOUND);
    assert_failed(caid_array_take(f.client, &taken, ticket, &named, &error), CAID_ERR_INVALID);
    assert_ok(caid_array_take(f.client, &taken, ticket, NULL, &error));
    assert_failed(caid_array_take(f.client, &again, ticket, NULL, &error), CAID_ERR_NOT_FOUND);
    cr_assert_str_eq(caid_array_get_info(taken)->name, "x");
    assert_ok(caid_array_copy_to_host(taken, bytes, sizeof(bytes), &error));
    cr_assert_eq(bytes[N_BYTES - 1], 1);

    assert_ok(caid_array_send(taken, ticket, &error)); /* "r" */
    assert_failed(caid_array_take(f.client, &again, ticket, &rw, &error), CAID_ERR_PERMISSION);
    assert_ok(caid_array_take(f.client, &again, ticket, NULL, &error));
    cr_assert(caid_array_get_info(again)->readonly);
    caid_array_close(again);
    caid_array_close(taken);
    wait_for_leases(f.client, 0);
}

struct race {
    struct caid_array *array;
    const char *name;
    atomic_bool *stop;
};

static void *
publish_often(void *arg)
{
    const struct race *race = arg;

    OPTIONS(caid_publish_options, options, .metadata = race->name);
    for (int i = 0; i < N_GENERATIONS; i++)
        assert_ok(caid_array_publish(race->array, race->name, &options, NULL, &error));
    return NULL;
}

static void *
look_often(void *arg)
{
    const struct race *race = arg;
    const struct caid_array_info *info;

    while (!atomic_load(race->stop)) {
        info = caid_array_get_info(race->array);
        if (info->metadata && strcmp(info->name, info->metadata) != 0)
            return "the name of one and the metadata of another";
    }
    return NULL;
}

CLIENT_TEST(publish, by_two_threads_at_once)
{
    atomic_bool stop = false;
    struct caid_array *opened;
    pthread_t threads[3];
    void *seen;

    begin();
    struct caid_array *array = make_bytes(f.client, NULL, 8);
    struct race race[3] = {{array, "a", &stop}, {array, "b", &stop}, {array, NULL, &stop}};
    for (int i = 0; i < 3; i++)
        cr_assert_eq(pthread_create(&threads[i], NULL, i < 2 ? publish_often : look_often,
                                    &race[i]),
                     0);
    for (int i = 0; i < 2; i++)
        pthread_join(threads[i], NULL);
    atomic_store(&stop, true);
    pthread_join(threads[2], &seen);
    cr_assert_null(seen, "%s", (const char *)seen);

    /* What is told last is what the daemon did last. */
    const struct caid_array_info *info = caid_array_get_info(array);
    assert_ok(open_generation(info->name, info->generation, &opened));
    cr_assert_str_eq(caid_array_get_info(opened)->metadata, info->metadata);
    caid_array_close(opened);
    caid_array_close(array);
    end();
}

/* ---- sets ---- */

static int
see_key(const struct caid_entry *entry, void *userdata)
{
    char *seen = userdata;

    cr_assert(entry->of_set);
    strcat(seen, entry->name);
    return 0;
}

/* More keys than one message holds, by their bytes; a version is read whole when the name has
 * another one. */
FIXTURE_TEST(publish, many_at_once)
{
    enum {
        N = 3000,
        N_KEY = 200
    };

    static char texts[N][N_KEY + 1];
    static const char *keys[N];
    static struct caid_array *arrays[N], *opened[N];
    struct caid_array *set, *a = make_filled(1), *b = make_filled(2);
    const char *few[] = {"k", "l"};
    char seen[8] = "";
    uint64_t first, second;

    for (int i = 0; i < N; i++) {
        snprintf(texts[i], sizeof(texts[i]), "%0*d", N_KEY, i);
        keys[i] = texts[i];
        arrays[i] = a;
    }
    assert_ok(caid_publish_many(f.client, "s/", keys, arrays, N, NULL, &first, &error));
    assert_ok(caid_array_open(f.client, &set, "s/", NULL, &error));
    cr_assert_eq(caid_array_get_info(set)->members, N);
    assert_ok(caid_publish_many(f.client, "s/", few, (struct caid_array *[]){a, b}, 2, NULL,
                                &second, &error));
    cr_assert_gt(second, first);
    assert_ok(caid_set_open_many(set, opened, keys, N, NULL, &error));
    for (int i = 0; i < N; i++) {
        cr_assert_eq(caid_array_get_info(opened[i])->generation, first);
        caid_array_close(opened[i]);
    }
    assert_failed(caid_set_open_many(set, opened, few, 1, NULL, &error), CAID_ERR_NOT_FOUND);
    caid_array_close(set);
    assert_ok(caid_array_open(f.client, &set, "s/", NULL, &error));
    assert_ok(caid_set_list(set, see_key, seen, &error));
    cr_assert_str_eq(seen, "kl");
    assert_ok(caid_set_open_many(set, opened, few, 2, NULL, &error));
    cr_assert_str_eq(caid_array_get_info(opened[1])->name, "s/l");
    assert_first_byte(opened[1], 2);
    OPTIONS(caid_open_options, writable, .mode = "rw");
    assert_failed(caid_set_open_many(set, opened, few, 2, &writable, &error),
                  CAID_ERR_PERMISSION);
    assert_failed(caid_set_list(a, see_key, seen, &error), CAID_ERR_INVALID);
    assert_failed(caid_publish_many(f.client, "s/", few, arrays, 0, NULL, NULL, &error),
                  CAID_ERR_INVALID);
    for (int i = 0; i < 2; i++)
        caid_array_close(opened[i]);
    caid_array_close(set);
    caid_array_close(a);
    caid_array_close(b);
    assert_ok(caid_unlink(f.client, "s/", NULL, &error));
}
