/* SPDX-License-Identifier: Apache-2.0 */
/* caid_set_create(): sets of parts of one array, published again and again. */
#include <pthread.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <unistd.h>

#include "client_fixture.h"

#define N_BYTES 4096

static const int64_t shape[] = {4, 8};

static struct caid_member
member(const char *key, uint64_t offset)
{
    return (struct caid_member){.key = key,
                                .offset = offset,
                                .typestr = "<f4",
                                .ndim = 2,
                                .shape = shape};
}

/* With the bytes (i + 1) % 251, in which no two tensors are alike. */
static struct caid_array *
make_whole(unsigned char bytes[static N_BYTES])
{
    struct caid_array *whole = make_bytes(f.client, NULL, N_BYTES);

    for (size_t i = 0; i < N_BYTES; i++)
        bytes[i] = (unsigned char)((i + 1) % 251);
    assert_ok(caid_array_copy_from_host(whole, bytes, N_BYTES, &error));
    return whole;
}

static struct caid_array *
make_set(struct caid_array *whole, const struct caid_member *members, size_t n)
{
    struct caid_array *set;

    assert_ok(caid_set_create(f.client, &set, whole, members, n, &error));
    cr_assert_eq(caid_array_get_info(set)->members, n);
    return set;
}

static uint64_t
publish(struct caid_array *set, const char *name)
{
    uint64_t generation;

    assert_ok(caid_array_publish(set, name, NULL, &generation, &error));
    return generation;
}

FIXTURE_TEST(set, members_are_the_wholes_bytes)
{
    const struct caid_member two[] = {member("a", 0), member("b", 1024)};
    unsigned char wanted[N_BYTES], found[128];

    struct caid_array *whole = make_whole(wanted), *set = make_set(whole, two, 2);
    uint64_t layout = caid_array_get_info(set)->layout;
    cr_assert_neq(layout, 0);
    publish(set, "s/");
    struct caid_array *opened = must_open("s/", "r"), *b = must_open("s/b", "r");
    const struct caid_array_info *info = caid_array_get_info(opened),
                                 *of = caid_array_get_info(b);
    cr_assert_eq(info->members, 2);
    cr_assert_eq(info->layout, layout);
    cr_assert_eq(of->block, caid_array_get_info(whole)->block);
    cr_assert_eq(of->offset, caid_array_get_info(whole)->offset + 1024);
    cr_assert_str_eq(of->typestr, "<f4");
    cr_assert_eq(of->layout, 0);

    /* what its maker had is not needed any more */
    caid_array_close(whole);
    caid_array_close(set);
    assert_ok(caid_array_copy_to_host(b, found, sizeof(found), &error));
    cr_assert_arr_eq(found, wanted + 1024, sizeof(found));
    caid_array_close(opened);
    caid_array_close(b);
}

FIXTURE_TEST(set, is_published_in_turn_with_another)
{
    const struct caid_member one[] = {member("a", 0)};
    unsigned char bytes[N_BYTES];
    struct caid_array *wholes[2], *sets[2];
    uint64_t last = 0;

    for (int i = 0; i < 2; i++) {
        wholes[i] = make_whole(bytes);
        sets[i] = make_set(wholes[i], one, 1);
    }
    for (int i = 0; i < 20; i++) {
        uint64_t generation = publish(sets[i % 2], "s/");
        cr_assert_gt(generation, last);
        last = generation;
        cr_assert_eq(caid_array_get_info(sets[i % 2])->generation, generation);
        OWNED struct caid_array *a = must_open("s/a", "r");
        cr_assert_eq(caid_array_get_info(a)->block, caid_array_get_info(wholes[i % 2])->block);
        cr_assert_eq(caid_array_get_info(a)->generation, generation);
    }
    cr_assert_eq(caid_array_get_info(sets[0])->layout, caid_array_get_info(sets[1])->layout);
    for (int i = 0; i < 2; i++) {
        caid_array_close(sets[i]);
        caid_array_close(wholes[i]);
    }
}

/* More than one request takes. */
FIXTURE_TEST(set, of_many)
{
    const size_t n = 2500;
    struct caid_member *members = calloc(n, sizeof(*members));
    char(*keys)[48] = calloc(n, sizeof(*keys));
    unsigned char bytes[N_BYTES];
    struct caid_array *set;

    for (size_t i = 0; i < n; i++) {
        snprintf(keys[i], sizeof(keys[i]), "model.layers.%zu.mlp.down_proj.weight", i);
        members[i] = member(keys[i], 4 * (i % 100));
    }
    struct caid_array *whole = make_whole(bytes);
    set = make_set(whole, members, n);
    publish(set, "s/");
    OWNED struct caid_array *last = must_open("s/model.layers.2499.mlp.down_proj.weight", "r");
    cr_assert_eq(caid_array_get_info(last)->offset,
                 caid_array_get_info(whole)->offset + members[n - 1].offset);
    caid_array_close(set);

    /* the last one is wrong: nothing is left of the others */
    members[n - 1].offset = N_BYTES;
    assert_failed(caid_set_create(f.client, &set, whole, members, n, &error), CAID_ERR_INVALID);
    caid_array_close(whole);
    wait_for_leases(f.client, 1);
    free(keys);
    free(members);
}

FIXTURE_TEST(set, what_is_refused)
{
    struct caid_member one[] = {member("a", 0)};
    unsigned char bytes[N_BYTES];
    struct caid_array *set = NULL;

    OWNED struct caid_array *whole = make_whole(bytes);
#define REFUSED_AS(code, ...) \
    assert_failed(caid_set_create(f.client, &set, __VA_ARGS__, &error), CAID_ERR_##code)
    REFUSED_AS(INVALID, whole, one, 0);
    REFUSED_AS(INVALID, whole, NULL, 1);
    REFUSED_AS(INVALID, NULL, one, 1);
    REFUSED_AS(INVALID, whole, one, 300000);
    one[0].key = NULL;
    REFUSED_AS(INVALID_NAME, whole, one, 1);
    one[0].key = "a";
    one[0].typestr = NULL;
    REFUSED_AS(INVALID, whole, one, 1);
    one[0].typestr = "<f4";
    one[0].shape = NULL;
    REFUSED_AS(INVALID, whole, one, 1);
    one[0] = member("a", 2);
    REFUSED_AS(INVALID, whole, one, 1);
    assert_ok(caid_array_publish(whole, "x", NULL, NULL, &error));
    OWNED struct caid_array *readonly = must_open("x", "r");
    one[0].offset = 0;
    REFUSED_AS(READ_ONLY, readonly, one, 1);
    wait_for_leases(f.client, 2);
}

/* ---- vacate ---- */

/* A set that was published, and whose name another one has now. */
static struct caid_array *
make_displaced(struct caid_array *whole, struct caid_array **ret_current)
{
    const struct caid_member one[] = {member("a", 0)};
    unsigned char bytes[N_BYTES];
    struct caid_array *other = make_whole(bytes), *set = make_set(whole, one, 1);

    *ret_current = make_set(other, one, 1);
    caid_array_close(other);
    publish(set, "s/");
    return set;
}

static int
vacate(struct caid_array *set, struct caid_array *own, uint64_t timeout_ns)
{
    return caid_set_vacate(f.client, &set, 1, &own, own != NULL, timeout_ns, NULL, &error);
}

FIXTURE_TEST(set, is_vacant_when_readers_have_closed)
{
    unsigned char bytes[N_BYTES];
    struct caid_array *current;

    struct caid_array *whole = make_whole(bytes), *set = make_displaced(whole, &current);
    assert_failed(vacate(set, whole, 0), CAID_ERR_INVALID);
    struct caid_client *reader = daemon_connect(&f.daemon);
    struct caid_array *read;
    assert_ok(caid_array_open(reader, &read, "s/a", NULL, &error));
    publish(current, "s/");
    assert_failed(vacate(set, whole, 0), CAID_ERR_TIMEOUT);
    cr_assert(strstr(error.message, "pid "), "%s", error.message);
    assert_failed(vacate(set, whole, 20000000), CAID_ERR_TIMEOUT);
    caid_array_close(read);
    assert_ok(vacate(set, whole, CAID_FOREVER));
    assert_failed(vacate(set, NULL, 0), CAID_ERR_TIMEOUT);
    cr_assert_gt(publish(set, "s/"), 2);
    assert_failed(vacate(set, whole, 0), CAID_ERR_INVALID);
    caid_client_close(reader);
    caid_array_close(whole);
    caid_array_close(set);
    caid_array_close(current);
}

static int
interrupts(void *userdata)
{
    return *(bool *)userdata;
}

/* A wait that was left, by a signal, does not keep the next one from waiting. */
FIXTURE_TEST(set, is_waited_for_again)
{
    unsigned char bytes[N_BYTES];
    struct caid_array *current, *read;
    bool interrupted = false;

    struct caid_client *reader = daemon_connect(&f.daemon);
    caid_client_close(f.client);
    OPTIONS(caid_connect_options, options, .socket = f.daemon.socket, .interrupted = interrupts,
            .userdata = &interrupted);
    assert_ok(caid_connect(&f.client, &options, &error));
    struct caid_array *whole = make_whole(bytes), *set = make_displaced(whole, &current);
    assert_ok(caid_array_open(reader, &read, "s/a", NULL, &error));
    publish(current, "s/");
    for (int i = 0; i < 3; i++) {
        interrupted = true;
        assert_failed(vacate(set, whole, CAID_FOREVER), CAID_ERR_INTERRUPTED);
        interrupted = false;
        assert_failed(vacate(set, whole, 1000000), CAID_ERR_TIMEOUT);
    }
    caid_array_close(read);
    assert_ok(vacate(set, whole, CAID_FOREVER));
    caid_client_close(reader);
    caid_array_close(whole);
    caid_array_close(set);
    caid_array_close(current);
}

struct waiting {
    struct caid_array *sets[2], *own[2];
    size_t n, which;
    int r;
    struct caid_error error;
};

static void *
wait_for_sets(void *arg)
{
    struct waiting *w = arg;

    w->r = caid_set_vacate(f.client, w->sets, w->n, w->own, w->n, CAID_FOREVER, &w->which,
                           &w->error);
    return NULL;
}

/* The one that nobody has is told; others are waited for until caid_set_cancel(). */
FIXTURE_TEST(set, is_waited_for_with_others)
{
    unsigned char bytes[N_BYTES];
    struct caid_array *current[2], *read[2];
    struct waiting w = {.n = 2};
    pthread_t thread;

    struct caid_client *reader = daemon_connect(&f.daemon);
    for (int i = 0; i < 2; i++) {
        w.own[i] = make_whole(bytes);
        w.sets[i] = make_displaced(w.own[i], &current[i]);
        assert_ok(caid_array_open(reader, &read[i], "s/a", NULL, &error));
    }
    publish(current[0], "s/");
    cr_assert_eq(pthread_create(&thread, NULL, wait_for_sets, &w), 0);
    caid_array_close(read[1]);
    pthread_join(thread, NULL);
    cr_assert_eq(w.r, 0, "%s", w.error.message);
    cr_assert_eq(w.which, 1);
    struct caid_array *twice[] = {w.sets[0], w.sets[0]}, *set = w.sets[1];
    assert_failed(caid_set_vacate(f.client, twice, 2, NULL, 0, 0, NULL, &error),
                  CAID_ERR_INVALID);
    assert_failed(caid_set_vacate(f.client, &set, 0, NULL, 0, 0, NULL, &error),
                  CAID_ERR_INVALID);
    assert_failed(caid_set_vacate(f.client, &set, 1, NULL, 1, 0, NULL, &error),
                  CAID_ERR_INVALID);

    w.n = 1;
    cr_assert_eq(pthread_create(&thread, NULL, wait_for_sets, &w), 0);
    usleep(10000);
    caid_set_cancel(f.client, w.sets[0]);
    pthread_join(thread, NULL);
    cr_assert_eq(w.error.code, CAID_ERR_CANCELLED, "%s", w.error.message);
    caid_array_close(read[0]);
    assert_failed(vacate(w.sets[0], w.own[0], CAID_FOREVER), CAID_ERR_CANCELLED);
    assert_ok(vacate(w.sets[1], w.own[1], CAID_FOREVER));
    caid_set_cancel(f.client, NULL);
    assert_failed(vacate(w.sets[1], w.own[1], CAID_FOREVER), CAID_ERR_CANCELLED);
    caid_client_close(reader);
    for (int i = 0; i < 2; i++) {
        caid_array_close(w.own[i]);
        caid_array_close(w.sets[i]);
        caid_array_close(current[i]);
    }
}
