/* SPDX-License-Identifier: Apache-2.0 */
/* Parts of an arena's memory, under names and in sets: what is pinned, for how long, and what is
 * refused. */
#include <errno.h>
#include <stdio.h>
#include <string.h>
#include <unistd.h>

#include "arena_fixture.h"
#include "base/macros.h"

#define N_PART 4096
#define TRIES  40000

static int
try_publish(uint64_t ptr, const char *name, int64_t n)
{
    OPTIONS(caid_part_options, options, .typestr = "|u1", .shape = &n, .ndim = 1);
    return caid_arena_publish(f.arena, ptr, name, &options, NULL, &error);
}

static void
publish(uint64_t ptr, const char *name)
{
    assert_ok(try_publish(ptr, name, N_PART));
}

static void
take_name(const char *name)
{
    assert_ok(caid_unlink(f.client, name, NULL, &error));
}

static void
fill(uint64_t ptr, unsigned char with)
{
    assert_cuda(f.gpu.drv->cu.cuMemsetD8(ptr, with, N_PART));
}

static void
read_is(struct caid_array *array, unsigned char wanted)
{
    unsigned char bytes[N_PART] = {0};

    assert_ok(caid_array_copy_to_host(array, bytes, sizeof(bytes), &error));
    cr_assert_eq(bytes[0], wanted);
    cr_assert_eq(bytes[N_PART - 1], wanted);
}

/* Only by part_poll(), which an allocation that finds no room does, or a dispatch. */
static void
wait_for_published(uint64_t n)
{
    for (int i = 0; i < TRIES && arena_look().published != n; i++) {
        assert_ok(caid_client_dispatch(f.client, &error));
        usleep(1000);
    }
    cr_assert_eq(arena_look().published, n);
}

ARENA_TEST(arena_part, is_an_array_like_any_other)
{
    struct caid_array *array = NULL;

    arena_get(1000);
    uint64_t ptr = arena_get(2 * N_PART);
    fill(ptr + 512, 7);
    publish(ptr + 512, "x");
    cr_assert_eq(arena_look().published, 1);
    struct caid_client *other = daemon_connect(&f.daemon);
    assert_ok(caid_array_open(other, &array, "x", NULL, &error));
    read_is(array, 7);
    struct caid_allocation found = CAID_INIT(found);
    assert_ok(caid_arena_find(f.arena, ptr, &found, &error));
    cr_assert_eq(caid_array_get_info(array)->block, found.block);
    cr_assert_eq(caid_array_get_info(array)->offset, found.offset + 512, "without a copy");
    caid_array_close(array);
    take_name("x");
    wait_for_published(0);
    caid_client_close(other);
}

ARENA_TEST(arena_part, pins_what_has_been_freed)
{
    struct caid_array *array = NULL;

    uint64_t ptr = arena_get(8 * MIB);
    fill(ptr, 7);
    publish(ptr, "x");
    publish(ptr + N_PART, "y");
    arena_put(ptr);
    assert_failed(caid_arena_free(f.arena, ptr, 0, &error), CAID_ERR_INVALID);
    struct caid_arena_info info = arena_look();
    cr_assert_eq(info.allocations, 0);
    cr_assert_eq(info.pending, 0);
    cr_assert_eq(info.published, 2);
    assert_ok(caid_arena_trim(f.arena, &error));
    for (int i = 0; i < 8; i++)
        cr_assert_neq(arena_get(8 * MIB), ptr);

    struct caid_client *other = daemon_connect(&f.daemon);
    assert_ok(caid_array_open(other, &array, "x", NULL, &error));
    take_name("x");
    take_name("y");
    wait_for_published(1);
    cr_assert_eq(arena_look().pending, 0);
    read_is(array, 7);
    caid_array_close(array);
    wait_for_published(0);
    cr_assert_eq(arena_look().pending, 1, "waits as what is freed does");
    caid_client_close(other);
}

/* No room is reason enough to look whether parts are gone. */
ARENA_TEST_OF(arena_part, what_is_gone_makes_room, .block_size = 4 * MIB)
{
    uint64_t again = 0;

    uint64_t ptr = arena_get(10 * MIB);
    publish(ptr, "x");
    arena_put(ptr);
    take_name("x");
    for (int i = 0; i < 200 && again != ptr; i++) { /* each leases a block if not */
        again = arena_get(10 * MIB);
        usleep(20 * 1000);
    }
    cr_assert_eq(again, ptr);
}

ARENA_TEST(arena_part, is_replaced_by_the_next_one)
{
    for (int i = 0; i < 20; i++) {
        uint64_t ptr = arena_get(N_PART);
        fill(ptr, (unsigned char)i);
        publish(ptr, "x");
        arena_put(ptr);
    }
    wait_for_published(1);
    take_name("x");
    wait_for_published(0);
    assert_ok(caid_arena_trim(f.arena, &error));
    cr_assert_eq(arena_look().blocks, 0);
}

ARENA_TEST(arena_part, outlives_the_arena)
{
    struct caid_array *array = NULL;

    uint64_t ptr = arena_get(N_PART);
    fill(ptr, 7);
    publish(ptr, "x");
    caid_arena_close(f.arena);
    f.arena = NULL;
    wait_for_leases(f.client, 0);
    assert_ok(caid_array_open(f.client, &array, "x", NULL, &error));
    read_is(array, 7);
    caid_array_close(array);
    take_name("x"); /* tells of a part that nobody waits for */
    for (int i = 0; i < 10; i++)
        assert_ok(caid_client_dispatch(f.client, &error));
}

ARENA_TEST(arena_part, outlives_the_client)
{
    struct caid_array *array = NULL;

    uint64_t ptr = arena_get(N_PART);
    fill(ptr, 7);
    publish(ptr, "x");
    caid_client_close(f.client);
    f.client = daemon_connect(&f.daemon);
    arena_put(ptr);
    cr_assert_eq(arena_look().pending, 0, "pinned for good: nobody tells any more");
    assert_ok(caid_array_open(f.client, &array, "x", NULL, &error));
    read_is(array, 7);
    caid_array_close(array);
}

ARENA_TEST(arena_part, is_refused)
{
    uint64_t ptr = arena_get(N_PART);
    assert_failed(try_publish(ptr + 1, "x", N_PART), CAID_ERR_INVALID);
    cr_assert(strstr(error.message, "4095"), "%s", error.message);
    assert_failed(try_publish(ptr, "x", INT64_MAX), CAID_ERR_INVALID);
    assert_failed(try_publish(ptr, "x", 0), CAID_ERR_INVALID);
    assert_failed(try_publish(ptr, "x", -1), CAID_ERR_INVALID);
    assert_failed(try_publish(ptr, "", N_PART), CAID_ERR_INVALID_NAME);
    assert_failed(try_publish(ptr, NULL, N_PART), CAID_ERR_INVALID_NAME);
    assert_failed(try_publish(ptr + N_PART, "x", 1), CAID_ERR_NOT_FOUND);
    struct caid_part_options options = CAID_INIT(options);
    assert_failed(caid_arena_publish(f.arena, ptr, "x", &options, NULL, &error),
                  CAID_ERR_INVALID);
    const int64_t shape[] = {2, 1024}, far[] = {4096, 1}, near[] = {2048, 1};
    options.typestr = "|u1";
    options.shape = shape;
    options.ndim = 2;
    options.strides = far;
    assert_failed(caid_arena_publish(f.arena, ptr, "x", &options, NULL, &error),
                  CAID_ERR_INVALID);
    struct caid_arena_info info = arena_look();
    cr_assert_eq(info.published, 0, "nothing is pinned");

    options.strides = near;
    assert_ok(caid_arena_publish(f.arena, ptr, "x", &options, NULL, &error));
    take_name("x");
    wait_for_published(0);
    arena_put(ptr);
    assert_failed(try_publish(ptr, "x", N_PART), CAID_ERR_NOT_FOUND);
    cr_assert_eq(arena_look().pending, 1);
}

/* Freed by another thread while the daemon is asked: it goes when that has failed. */
CLIENT_TEST(arena_part, is_refused_by_the_daemon)
{
    arena_begin_with(NULL, "[limits]\nnames = 1\n");
    uint64_t ptr = arena_get(2 * N_PART);
    publish(ptr, "x");
    assert_failed(try_publish(ptr, "y", N_PART), CAID_ERR_LIMIT);
    cr_assert_eq(arena_look().published, 1);
    take_name("x");
    wait_for_published(0);
    arena_end();
}

/* Nobody was asked, so nobody can have the part: the memory serves again. */
static void
is_not_pinned(uint64_t ptr, int32_t code)
{
    assert_failed(try_publish(ptr, "x", N_PART), code);
    cr_assert_eq(arena_look().published, 0);
    arena_put(ptr);
    cr_assert_eq(arena_look().pending, 1);
    do
        assert_ok(caid_arena_flush(f.arena, &error));
    while (arena_look().draining > 0);
    cr_assert_eq(arena_get(40 * MIB), ptr);
    cr_assert_eq(arena_look().n_leased, 1);
    arena_end();
}

CLIENT_TEST(arena_part, of_a_connection_that_has_ended)
{
    arena_begin(NULL);
    uint64_t ptr = arena_get(40 * MIB);
    daemon_end(&f.daemon, SIGKILL);
    assert_failed(caid_client_ping(f.client, &error), CAID_ERR_DISCONNECTED);
    is_not_pinned(ptr, CAID_ERR_DISCONNECTED);

    arena_begin(NULL);
    ptr = arena_get(40 * MIB);
    caid_client_close(f.client);
    f.client = NULL;
    is_not_pinned(ptr, CAID_ERR_CLOSED);
}

ARENA_TEST(arena_part, of_a_daemon_that_is_gone)
{
    uint64_t ptr = arena_get(N_PART);
    daemon_end(&f.daemon, SIGKILL);
    assert_failed(try_publish(ptr, "x", N_PART), CAID_ERR_DISCONNECTED);
    arena_put(ptr);
}

/* ---- sets ---- */

#define N_MANY 3000 /* more than two requests take */

static const int64_t n_part = N_PART, nothing = 0;

static struct caid_member
member(const char *key, uint64_t ptr)
{
    return (struct caid_member){.key = key,
                                .offset = ptr,
                                .typestr = "|u1",
                                .ndim = 1,
                                .shape = &n_part};
}

static void
count(void *n)
{
    ++*(int *)n;
}

static struct caid_array *
make_set(const struct caid_member *members, size_t n, int *n_gone)
{
    struct caid_array *set;

    assert_ok(caid_arena_set_create(f.arena, &set, members, n, count, n_gone, &error));
    cr_assert_eq(caid_array_get_info(set)->members, n);
    cr_assert_eq(arena_look().published, n);
    return set;
}

/* Two blocks, of which one has one allocation, freed while the set keeps both. */
ARENA_TEST(arena_part, are_members_of_a_set)
{
    static char keys[N_MANY][8];
    static struct caid_member members[N_MANY];
    const char *const names[] = {"s/2998", "s/2", "s/2999", "s/2997"};
    const uint64_t at[] = {arena_get(20 * MIB), arena_get(N_PART)};
    struct caid_array *arrays[ARRAY_SIZE(names)];
    int n_gone = 0;

    for (size_t i = 0; i < N_MANY; i++) {
        snprintf(keys[i], sizeof(keys[i]), "%zu", i);
        members[i] = member(keys[i], at[i % 2]);
        if (i % 3 == 0)
            members[i].shape = &nothing;
    }
    members[2].offset += N_PART;
    fill(at[0], 1);
    fill(at[0] + N_PART, 2);
    fill(at[1], 3);
    struct caid_array *set = make_set(members, N_MANY, &n_gone);
    cr_assert_eq(caid_array_get_info(set)->layout, 0, "of two blocks");
    assert_ok(caid_array_publish(set, "s/", NULL, NULL, &error));
    caid_array_close(set);
    arena_put(at[0]);
    arena_put(at[1]);

    struct caid_client *other = daemon_connect(&f.daemon);
    for (size_t i = 0; i < ARRAY_SIZE(names); i++)
        assert_ok(caid_array_open(other, &arrays[i], names[i], NULL, &error));
    for (unsigned char i = 0; i < 3; i++)
        read_is(arrays[i], i + 1);
    cr_assert_eq(caid_array_get_info(arrays[3])->nbytes, 0);
    caid_array_close(arrays[0]);
    caid_array_close(arrays[1]);
    caid_array_close(arrays[3]);
    take_name("s/");
    wait_for_published(1);
    cr_assert_eq(n_gone, 0);
    cr_assert_eq(arena_look().pending, 1, "the other block's");
    caid_array_close(arrays[2]);
    wait_for_published(0);
    cr_assert_eq(n_gone, 1);
    cr_assert_eq(arena_look().pending, 2);
    caid_client_close(other);
}

ARENA_TEST(arena_part, of_a_set_in_one_block_are_known_by_its_layout)
{
    uint64_t ptr = arena_get(2 * N_PART);
    const struct caid_member two[] = {member("a", ptr), member("b", ptr + N_PART)};
    int n_gone = 0;

    struct caid_array *set = make_set(two, 2, &n_gone);
    cr_assert_neq(caid_array_get_info(set)->layout, 0);
    assert_ok(caid_array_publish(set, "s/", NULL, NULL, &error));
    assert_ok(caid_array_publish(set, "s/", NULL, NULL, &error));
    caid_array_close(set);
    caid_arena_close(f.arena);
    f.arena = NULL;
    take_name("s/");
    for (int i = 0; i < TRIES && n_gone == 0; i++) {
        assert_ok(caid_client_dispatch(f.client, &error));
        usleep(1000);
    }
    cr_assert_eq(n_gone, 1, "the arena need not be there");
}

/* All or none; what is wrong may come last. */
ARENA_TEST(arena_part, of_a_set_that_is_refused)
{
    static char keys[N_MANY][8];
    static struct caid_member members[N_MANY];
    const uint64_t at[] = {arena_get(20 * MIB), arena_get(N_PART)};
    struct caid_array *set = NULL;
    int n_gone = 0;

    for (size_t i = 0; i < N_MANY; i++) {
        snprintf(keys[i], sizeof(keys[i]), "%zu", i);
        members[i] = member(keys[i], at[i % 2]);
    }
#define REFUSED_AS(code, ...) \
    assert_failed(caid_arena_set_create(__VA_ARGS__, count, &n_gone, &error), CAID_ERR_##code)
    REFUSED_AS(INVALID, NULL, &set, members, 1);
    REFUSED_AS(INVALID, f.arena, NULL, members, 1);
    REFUSED_AS(INVALID, f.arena, &set, NULL, 1);
    REFUSED_AS(INVALID, f.arena, &set, members, 0);
    members[N_MANY - 1].offset = at[1] + N_PART;
    REFUSED_AS(NOT_FOUND, f.arena, &set, members, N_MANY);
    members[N_MANY - 1].offset = at[1] + 1;
    REFUSED_AS(INVALID, f.arena, &set, members, N_MANY);
    cr_assert_eq(arena_look().published, 0, "nobody was asked");
    members[N_MANY - 1] = member("0", at[1]);
    REFUSED_AS(EXISTS, f.arena, &set, members, N_MANY);
    members[N_MANY - 1] = member(NULL, at[1]);
    REFUSED_AS(INVALID_NAME, f.arena, &set, members, N_MANY);
    wait_for_published(0);
    cr_assert_null(set);

    members[0].key = "a";
    set = make_set(members, 1, &n_gone);
    cr_assert_eq(n_gone, 0, "never of what failed");
    caid_array_close(set);
    wait_for_published(0);
    cr_assert_eq(n_gone, 1);
    arena_put(at[0]);
    arena_put(at[1]);
    assert_ok(caid_arena_trim(f.arena, &error));
    cr_assert_eq(arena_look().blocks, 0);
}
