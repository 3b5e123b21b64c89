/* SPDX-License-Identifier: Apache-2.0 */
/* Parts of an arena's memory under a name: what is pinned, for how long, and what is refused. */
#include <errno.h>
#include <string.h>
#include <unistd.h>

#include "arena_fixture.h"
#include "base/macros.h"

#define N_PART 4096
#define TRIES  4000

static int
try_publish(struct arena_fixture *f, uint64_t ptr, const char *name, int64_t n)
{
    struct caid_part_options options = CAID_INIT(options);

    options.typestr = "|u1";
    options.shape = &n;
    options.ndim = 1;
    return caid_arena_publish(f->arena, ptr, name, &options, NULL, &f->error);
}

static void
publish(struct arena_fixture *f, uint64_t ptr, const char *name)
{
    assert_ok(try_publish(f, ptr, name, N_PART), f->error);
}

static void
take_name(struct arena_fixture *f, const char *name)
{
    assert_ok(caid_unlink(f->client, name, NULL, &f->error), f->error);
}

static void
fill(struct arena_fixture *f, uint64_t ptr, unsigned char with)
{
    assert_cuda(f->gpu.drv->cu.cuMemsetD8(ptr, with, N_PART));
}

static void
read_is(struct arena_fixture *f, struct caid_array *array, unsigned char wanted)
{
    unsigned char bytes[N_PART] = {0};

    assert_ok(caid_array_copy_to_host(array, bytes, sizeof(bytes), &f->error), f->error);
    cr_assert_eq(bytes[0], wanted);
    cr_assert_eq(bytes[N_PART - 1], wanted);
}

/* Only by part_poll(), which an allocation that finds no room does, or a dispatch. */
static void
wait_for_published(struct arena_fixture *f, uint64_t n)
{
    for (int i = 0; i < TRIES && arena_look(f).published != n; i++) {
        assert_ok(caid_client_dispatch(f->client, &f->error), f->error);
        usleep(1000);
    }
    cr_assert_eq(arena_look(f).published, n);
}

CLIENT_TEST(arena_part, is_an_array_like_any_other)
{
    struct caid_array *array = NULL;
    struct arena_fixture f;

    arena_begin(&f, NULL);
    arena_get(&f, 1000);
    uint64_t ptr = arena_get(&f, 2 * N_PART);
    fill(&f, ptr + 512, 7);
    publish(&f, ptr + 512, "x");
    cr_assert_eq(arena_look(&f).published, 1);
    struct caid_client *other = daemon_connect(&f.daemon);
    assert_ok(caid_array_open(other, &array, "x", NULL, &f.error), f.error);
    read_is(&f, array, 7);
    struct caid_allocation found = CAID_INIT(found);
    assert_ok(caid_arena_find(f.arena, ptr, &found, &f.error), f.error);
    cr_assert_eq(caid_array_get_info(array)->block, found.block);
    cr_assert_eq(caid_array_get_info(array)->offset, found.offset + 512, "without a copy");
    caid_array_close(array);
    take_name(&f, "x");
    wait_for_published(&f, 0);
    caid_client_close(other);
    arena_end(&f);
}

CLIENT_TEST(arena_part, pins_what_has_been_freed)
{
    struct caid_array *array = NULL;
    struct arena_fixture f;

    arena_begin(&f, NULL);
    uint64_t ptr = arena_get(&f, 8 * MIB);
    fill(&f, ptr, 7);
    publish(&f, ptr, "x");
    publish(&f, ptr + N_PART, "y");
    arena_put(&f, ptr);
    assert_failed(caid_arena_free(f.arena, ptr, 0, &f.error), f.error, CAID_ERR_INVALID);
    struct caid_arena_info info = arena_look(&f);
    cr_assert_eq(info.allocations, 0);
    cr_assert_eq(info.pending, 0);
    cr_assert_eq(info.published, 2);
    assert_ok(caid_arena_trim(f.arena, &f.error), f.error);
    for (int i = 0; i < 8; i++)
        cr_assert_neq(arena_get(&f, 8 * MIB), ptr);

    struct caid_client *other = daemon_connect(&f.daemon);
    assert_ok(caid_array_open(other, &array, "x", NULL, &f.error), f.error);
    take_name(&f, "x");
    take_name(&f, "y");
    wait_for_published(&f, 1);
    cr_assert_eq(arena_look(&f).pending, 0);
    read_is(&f, array, 7);
    caid_array_close(array);
    wait_for_published(&f, 0);
    cr_assert_eq(arena_look(&f).pending, 1, "waits as what is freed does");
    caid_client_close(other);
    arena_end(&f);
}

/* No room is reason enough to look whether parts are gone. */
CLIENT_TEST(arena_part, what_is_gone_makes_room)
{
    struct caid_arena_options options = arena_blocks_of(4);
    struct arena_fixture f;
    uint64_t again = 0;

    arena_begin(&f, &options);
    uint64_t ptr = arena_get(&f, 10 * MIB);
    publish(&f, ptr, "x");
    arena_put(&f, ptr);
    take_name(&f, "x");
    for (int i = 0; i < 200 && again != ptr; i++) { /* each leases a block if not */
        again = arena_get(&f, 10 * MIB);
        usleep(1000);
    }
    cr_assert_eq(again, ptr);
    arena_end(&f);
}

CLIENT_TEST(arena_part, is_replaced_by_the_next_one)
{
    struct arena_fixture f;

    arena_begin(&f, NULL);
    for (int i = 0; i < 20; i++) {
        uint64_t ptr = arena_get(&f, N_PART);
        fill(&f, ptr, (unsigned char)i);
        publish(&f, ptr, "x");
        arena_put(&f, ptr);
    }
    wait_for_published(&f, 1);
    take_name(&f, "x");
    wait_for_published(&f, 0);
    assert_ok(caid_arena_trim(f.arena, &f.error), f.error);
    cr_assert_eq(arena_look(&f).blocks, 0);
    arena_end(&f);
}

CLIENT_TEST(arena_part, outlives_the_arena)
{
    struct caid_array *array = NULL;
    struct arena_fixture f;

    arena_begin(&f, NULL);
    uint64_t ptr = arena_get(&f, N_PART);
    fill(&f, ptr, 7);
    publish(&f, ptr, "x");
    caid_arena_close(f.arena);
    f.arena = NULL;
    wait_for_leases(f.client, 0);
    assert_ok(caid_array_open(f.client, &array, "x", NULL, &f.error), f.error);
    read_is(&f, array, 7);
    caid_array_close(array);
    take_name(&f, "x"); /* tells of a part that nobody waits for */
    for (int i = 0; i < 10; i++)
        assert_ok(caid_client_dispatch(f.client, &f.error), f.error);
    arena_end(&f);
}

CLIENT_TEST(arena_part, outlives_the_client)
{
    struct caid_array *array = NULL;
    struct arena_fixture f;

    arena_begin(&f, NULL);
    uint64_t ptr = arena_get(&f, N_PART);
    fill(&f, ptr, 7);
    publish(&f, ptr, "x");
    caid_client_close(f.client);
    f.client = daemon_connect(&f.daemon);
    arena_put(&f, ptr);
    cr_assert_eq(arena_look(&f).pending, 0, "pinned for good: nobody tells any more");
    assert_ok(caid_array_open(f.client, &array, "x", NULL, &f.error), f.error);
    read_is(&f, array, 7);
    caid_array_close(array);
    arena_end(&f);
}

CLIENT_TEST(arena_part, is_refused)
{
    struct arena_fixture f;

    arena_begin(&f, NULL);
    uint64_t ptr = arena_get(&f, N_PART);
    struct caid_error *e = &f.error;
    assert_failed(try_publish(&f, ptr + 1, "x", N_PART), *e, CAID_ERR_INVALID);
    cr_assert(strstr(e->message, "4095"), "%s", e->message);
    assert_failed(try_publish(&f, ptr, "x", INT64_MAX), *e, CAID_ERR_INVALID);
    assert_failed(try_publish(&f, ptr, "x", 0), *e, CAID_ERR_INVALID);
    assert_failed(try_publish(&f, ptr, "x", -1), *e, CAID_ERR_INVALID);
    assert_failed(try_publish(&f, ptr, "", N_PART), *e, CAID_ERR_INVALID_NAME);
    assert_failed(try_publish(&f, ptr, NULL, N_PART), *e, CAID_ERR_INVALID_NAME);
    assert_failed(try_publish(&f, ptr + N_PART, "x", 1), *e, CAID_ERR_NOT_FOUND);
    struct caid_part_options options = CAID_INIT(options);
    assert_failed(caid_arena_publish(f.arena, ptr, "x", &options, NULL, e), *e,
                  CAID_ERR_INVALID);
    const int64_t shape[] = {2, 1024}, far[] = {4096, 1}, near[] = {2048, 1};
    options.typestr = "|u1";
    options.shape = shape;
    options.ndim = 2;
    options.strides = far;
    assert_failed(caid_arena_publish(f.arena, ptr, "x", &options, NULL, e), *e,
                  CAID_ERR_INVALID);
    struct caid_arena_info info = arena_look(&f);
    cr_assert_eq(info.published, 0, "nothing is pinned");

    options.strides = near;
    assert_ok(caid_arena_publish(f.arena, ptr, "x", &options, NULL, e), *e);
    take_name(&f, "x");
    wait_for_published(&f, 0);
    arena_put(&f, ptr);
    assert_failed(try_publish(&f, ptr, "x", N_PART), *e, CAID_ERR_NOT_FOUND);
    cr_assert_eq(arena_look(&f).pending, 1);
    arena_end(&f);
}

/* Freed by another thread while the daemon is asked: it goes when that has failed. */
CLIENT_TEST(arena_part, is_refused_by_the_daemon)
{
    struct arena_fixture f;

    arena_begin_with(&f, NULL, "[limits]\nnames = 1\n");
    uint64_t ptr = arena_get(&f, 2 * N_PART);
    publish(&f, ptr, "x");
    assert_failed(try_publish(&f, ptr, "y", N_PART), f.error, CAID_ERR_LIMIT);
    cr_assert_eq(arena_look(&f).published, 1);
    take_name(&f, "x");
    wait_for_published(&f, 0);
    arena_end(&f);
}

/* Nobody was asked, so nobody can have the part: the memory serves again. */
static void
is_not_pinned(struct arena_fixture *f, uint64_t ptr, int32_t code)
{
    assert_failed(try_publish(f, ptr, "x", N_PART), f->error, code);
    cr_assert_eq(arena_look(f).published, 0);
    arena_put(f, ptr);
    cr_assert_eq(arena_look(f).pending, 1);
    do
        assert_ok(caid_arena_flush(f->arena, &f->error), f->error);
    while (arena_look(f).draining > 0);
    cr_assert_eq(arena_get(f, 40 * MIB), ptr);
    cr_assert_eq(arena_look(f).n_leased, 1);
    arena_end(f);
}

CLIENT_TEST(arena_part, of_a_connection_that_has_ended)
{
    struct arena_fixture f;

    arena_begin(&f, NULL);
    uint64_t ptr = arena_get(&f, 40 * MIB);
    daemon_end(&f.daemon, SIGKILL);
    assert_failed(caid_client_ping(f.client, &f.error), f.error, CAID_ERR_DISCONNECTED);
    is_not_pinned(&f, ptr, CAID_ERR_DISCONNECTED);

    arena_begin(&f, NULL);
    ptr = arena_get(&f, 40 * MIB);
    caid_client_close(f.client);
    f.client = NULL;
    is_not_pinned(&f, ptr, CAID_ERR_CLOSED);
}

CLIENT_TEST(arena_part, of_a_daemon_that_is_gone)
{
    struct arena_fixture f;

    arena_begin(&f, NULL);
    uint64_t ptr = arena_get(&f, N_PART);
    daemon_end(&f.daemon, SIGKILL);
    assert_failed(try_publish(&f, ptr, "x", N_PART), f.error, CAID_ERR_DISCONNECTED);
    arena_put(&f, ptr);
    arena_end(&f);
}
