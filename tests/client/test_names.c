/* SPDX-License-Identifier: Apache-2.0 */
/* Names, pools and figures. */
#include <stdio.h>
#include <string.h>
#include <unistd.h>

#include "client_fixture.h"

#define N_NAMES 1500 /* more than a packet holds */

struct seen {
    struct caid_client *client;
    char last[300];
    int n, stop_at;
};

static int
see(const struct caid_entry *entry, void *userdata)
{
    struct seen *seen = userdata;

    cr_assert_lt(strcmp(seen->last, entry->name), 0, "in order, each once");
    strcpy(seen->last, entry->name);
    cr_assert_str_eq(entry->typestr, "|u1");
    cr_assert(entry->ndim == 1 && entry->shape[0] == 0 && entry->nbytes == 0);
    cr_assert(entry->device == 0 && entry->uid == getuid() && entry->pool[0]);
    seen->n++;
    return seen->stop_at == seen->n ? 42 : 0;
}

static void
make_names(struct caid_client *client, const char *prefix, int n)
{
    char name[64];

    for (int i = 0; i < n; i++) {
        snprintf(name, sizeof(name), "%s%0*d", prefix, 40, i);
        caid_array_close(make_bytes(client, name, 0));
    }
}

DAEMON_TEST(names, list)
{
    struct seen seen = {0}, stopped = {.stop_at = N_NAMES - 1}, some = {0}, all = {0};

    assert_ok(caid_list(f.client, NULL, see, &seen, &error));
    cr_assert_eq(seen.n, 0);
    make_names(f.client, "a/", N_NAMES);
    make_names(f.client, "b/", 3);

    assert_ok(caid_list(f.client, NULL, see, &seen, &error));
    cr_assert_eq(seen.n, N_NAMES + 3);
    cr_assert_eq(caid_list(f.client, NULL, see, &stopped, &error), 42);
    cr_assert_eq(stopped.n, N_NAMES - 1);
    OPTIONS(caid_list_options, options, .prefix = "b/");
    assert_ok(caid_list(f.client, &options, see, &some, &error));
    cr_assert_eq(some.n, 3);
    options.prefix = NULL;
    options.all = true;
    assert_ok(caid_list(f.client, &options, see, &all, &error));
    cr_assert_eq(all.n, N_NAMES + 3);

    assert_failed(caid_list(f.client, NULL, NULL, NULL, &error), CAID_ERR_INVALID);
    options.prefix = "\xff";
    assert_failed(caid_list(f.client, &options, see, &all, &error), CAID_ERR_INVALID);
    options.prefix = NULL;
    options.all = false;
    options.pool = "no-such-pool";
    assert_failed(caid_list(f.client, &options, see, &all, &error), CAID_ERR_NOT_FOUND);
}

static int
unlink_it(const struct caid_entry *entry, void *userdata)
{
    struct seen *seen = userdata;

    assert_ok(caid_unlink(seen->client, entry->name, NULL, &error));
    seen->n++;
    return 0;
}

/* The callback may use the client: nothing is locked, and the list goes on after the name that
 * has gone. */
DAEMON_TEST(names, the_callback_may_use_the_client)
{
    struct seen seen = {0};

    make_names(f.client, "n", N_NAMES);
    seen.client = f.client;
    assert_ok(caid_list(f.client, NULL, unlink_it, &seen, &error));
    cr_assert_eq(seen.n, N_NAMES);
    seen.n = 0;
    assert_ok(caid_list(f.client, NULL, see, &seen, &error));
    cr_assert_eq(seen.n, 0);
}

static int
check_details(const struct caid_details *d, void *userdata)
{
    const struct caid_array_info *info = caid_array_get_info(userdata);

    cr_assert_str_eq(d->entry->name, "x");
    cr_assert_eq(d->entry->leases, 2);
    cr_assert_eq(d->entry->nbytes, 1000);
    cr_assert(d->block == info->block && d->offset == info->offset);
    cr_assert_geq(d->block_size, 1000);
    cr_assert(!d->descr && !d->strides && d->array != 0);
    cr_assert_eq(d->n_holders, 2);
    for (size_t i = 0; i < 2; i++) {
        cr_assert_eq(d->holders[i]->pid, (uint64_t)getpid());
        cr_assert_eq(d->holders[i]->uid, getuid());
        cr_assert_not_null(d->holders[i]->client, "the program's name");
    }
    cr_assert_eq(d->holders[0]->readonly + d->holders[1]->readonly, 1);
    return 5;
}

FIXTURE_TEST(names, show)
{
    struct caid_array *reader;

    OWNED struct caid_array *array = make_bytes(f.client, "x", 1000);
    assert_ok(caid_array_open(f.client, &reader, "x", NULL, &error));
    cr_assert_eq(caid_show(f.client, "x", NULL, check_details, array, &error), 5);
    assert_failed(caid_show(f.client, "y", NULL, check_details, array, &error),
                  CAID_ERR_NOT_FOUND);
    assert_failed(caid_show(f.client, NULL, NULL, check_details, array, &error),
                  CAID_ERR_INVALID_NAME);
    assert_failed(caid_show(f.client, "x", NULL, NULL, NULL, &error), CAID_ERR_INVALID);
    caid_array_close(reader);
}

FIXTURE_TEST(names, unlink)
{
    struct caid_array *other;
    char bytes[8];

    OWNED struct caid_array *array = make_bytes(f.client, "x", 8);
    assert_ok(caid_array_copy_from_host(array, "unlinked", 8, &error));
    assert_ok(caid_unlink(f.client, "x", NULL, &error));
    assert_failed(caid_unlink(f.client, "x", NULL, &error), CAID_ERR_NOT_FOUND);
    assert_failed(caid_array_open(f.client, &other, "x", NULL, &error), CAID_ERR_NOT_FOUND);
    assert_ok(caid_array_copy_to_host(array, bytes, 8, &error));
    cr_assert_eq(memcmp(bytes, "unlinked", 8), 0, "its holder keeps it");

    other = make_bytes(f.client, "x", 8);
    cr_assert_neq(caid_array_get_info(other)->ptr, caid_array_get_info(array)->ptr);
    assert_failed(caid_unlink(f.client, NULL, NULL, &error), CAID_ERR_INVALID_NAME);
    caid_array_close(other);
}

FIXTURE_TEST(names, rename)
{
    uint64_t generation = 0;

    OWNED struct caid_array *array = make_bytes(f.client, "x", 8);
    assert_ok(caid_rename(f.client, "x", "y", NULL, false, &generation, &error));
    cr_assert_gt(generation, 0);
    cr_assert_str_eq(caid_array_get_info(array)->name, "x", "as it was opened");
    assert_failed(caid_rename(f.client, "x", "z", NULL, false, NULL, &error),
                  CAID_ERR_NOT_FOUND);
    assert_failed(caid_rename(f.client, "y", "y", NULL, false, NULL, &error), CAID_ERR_EXISTS);
    assert_failed(caid_rename(f.client, "y", "", NULL, true, NULL, &error),
                  CAID_ERR_INVALID_NAME);
    assert_failed(caid_rename(f.client, NULL, "z", NULL, true, NULL, &error),
                  CAID_ERR_INVALID_NAME);
    assert_failed(caid_rename(NULL, "y", "z", NULL, true, NULL, &error), CAID_ERR_INVALID);
    assert_ok(caid_unlink(f.client, "y", NULL, &error));
}

FIXTURE_TEST(names, expire)
{
    uint64_t generation = 0;

    OPTIONS(caid_create_options, unnamed, .typestr = "|u1", .ttl_ns = 1);
    OWNED struct caid_array *array = make_bytes(f.client, "x", 8), *none = NULL;
    uint64_t now = caid_array_get_info(array)->generation;
    assert_ok(caid_expire(f.client, "x", NULL, now, UINT64_MAX, &generation, &error));
    cr_assert_eq(generation, now);
    assert_failed(caid_expire(f.client, "x", NULL, now + 1, 1, NULL, &error), CAID_ERR_STALE);
    assert_failed(caid_expire(f.client, "y", NULL, 0, 1, NULL, &error), CAID_ERR_NOT_FOUND);
    assert_failed(caid_expire(f.client, NULL, NULL, 0, 1, NULL, &error), CAID_ERR_INVALID_NAME);
    assert_failed(caid_expire(NULL, "x", NULL, 0, 1, NULL, &error), CAID_ERR_INVALID);
    assert_failed(caid_array_create(f.client, &none, &unnamed, &error), CAID_ERR_INVALID);
    assert_ok(caid_unlink(f.client, "x", NULL, &error));
}

static int
check_pool(const struct caid_pool *pool, void *userdata)
{
    const struct caid_status *status = userdata;

    cr_assert_str_eq(pool->name, status->pool);
    cr_assert(pool->uid == getuid() && pool->mode == 0600);
    cr_assert(pool->names == 1 && pool->arrays == 2 && pool->used > 0);
    return 6;
}

FIXTURE_TEST(names, pools)
{
    struct caid_status status = CAID_INIT(status);

    OWNED struct caid_array *a = make_bytes(f.client, "x", 100),
                            *b = make_bytes(f.client, NULL, 100);
    assert_ok(caid_client_status(f.client, &status, &error));
    cr_assert(status.arrays == 2 && status.names == 1 && status.leases == 2);
    cr_assert_eq(caid_pools(f.client, check_pool, &status, &error), 6);
    assert_failed(caid_pools(f.client, NULL, NULL, &error), CAID_ERR_INVALID);
}

FIXTURE_TEST(names, memory_info)
{
    struct caid_memory_info before = CAID_INIT(before), with = CAID_INIT(with);
    const int64_t n = 64 << 20;

    assert_ok(caid_memory_info(f.client, 0, &before, &error));
    cr_assert(before.used == 0 && before.blocks == 0 && before.arrays == 0);
    cr_assert(before.free > 0 && before.free <= before.total);
    OWNED struct caid_array *array = make_bytes(f.client, NULL, n);
    assert_ok(caid_memory_info(f.client, 0, &with, &error));
    cr_assert(with.used >= (uint64_t)n && with.blocks == 1 && with.arrays == 1);
    cr_assert_leq(with.free, with.total - with.used);

    assert_failed(caid_memory_info(f.client, 99, &with, &error), CAID_ERR_DEVICE);
    assert_failed(caid_memory_info(f.client, -1, &with, &error), CAID_ERR_DEVICE);
    assert_failed(caid_memory_info(f.client, 0, NULL, &error), CAID_ERR_INVALID);
}

/* ---- what has no name ---- */

struct unnamed {
    int n;
    bool lost_its_name; /* one that had it was among them */
};

static int
see_unnamed(const struct caid_details *d, void *userdata)
{
    struct unnamed *unnamed = userdata;

    cr_assert(d->array != 0 && d->n_holders == 1 && d->entry->leases == 1);
    cr_assert_eq(d->holders[0]->pid, (uint64_t)getpid());
    cr_assert(!d->holders[0]->hung_up && !d->holders[0]->readonly);
    cr_assert_str_eq(d->entry->memory, "device");
    unnamed->lost_its_name |= strcmp(d->entry->name, "was") == 0;
    unnamed->n++;
    return 0;
}

static int
stop_there(const struct caid_details *d, void *userdata)
{
    (void)d;
    (void)userdata;
    return 7;
}

FIXTURE_TEST(names, unnamed)
{
    static struct caid_array *arrays[N_NAMES];
    struct unnamed unnamed = {0}, all = {0};

    assert_ok(caid_unnamed(f.client, NULL, see_unnamed, &unnamed, &error));
    cr_assert_eq(unnamed.n, 0);
    OWNED struct caid_array *named = make_bytes(f.client, "is", 0);
    arrays[0] = make_bytes(f.client, "was", 0);
    assert_ok(caid_unlink(f.client, "was", NULL, &error));
    for (int i = 1; i < N_NAMES; i++)
        arrays[i] = make_bytes(f.client, NULL, 0);
    assert_ok(caid_unnamed(f.client, NULL, see_unnamed, &unnamed, &error));
    cr_assert_eq(unnamed.n, N_NAMES);
    cr_assert(unnamed.lost_its_name);
    OPTIONS(caid_list_options, options, .all = true);
    assert_ok(caid_unnamed(f.client, &options, see_unnamed, &all, &error));
    cr_assert_eq(all.n, N_NAMES);
    cr_assert_eq(caid_unnamed(f.client, NULL, stop_there, NULL, &error), 7);
    assert_failed(caid_unnamed(f.client, NULL, NULL, NULL, &error), CAID_ERR_INVALID);
    options.all = false;
    options.pool = "no-such-pool";
    assert_failed(caid_unnamed(f.client, &options, see_unnamed, &all, &error),
                  CAID_ERR_NOT_FOUND);
    for (int i = 0; i < N_NAMES; i++)
        caid_array_close(arrays[i]);
}

/* ---- users and queues ---- */

static int
see_user(const struct caid_user *user, void *userdata)
{
    struct caid_user *ret = userdata;

    if (user->uid == getuid())
        *ret = *user;
    return 0;
}

static struct caid_user
charges(struct caid_client *client)
{
    struct caid_user user = {.uid = UINT32_MAX};

    assert_ok(caid_users(client, see_user, &user, &error));
    cr_assert_eq(user.uid, getuid());
    return user;
}

FIXTURE_TEST(names, users)
{
    struct caid_watch *watch;

    struct caid_array *array = make_bytes(f.client, "x", 1000);
    assert_ok(caid_watch_new(f.client, &watch, "y", NULL, NULL, NULL, &error));
    struct caid_user user = charges(f.client);
    cr_assert(user.arrays == 1 && user.names == 1 && user.leases == 1 && user.watches == 1);
    cr_assert(user.connections == 1 && user.bytes >= 1000 && user.pinned == 0);
    caid_watch_close(watch);
    assert_ok(caid_unlink(f.client, "x", NULL, &error));
    caid_array_close(array);
    assert_ok(caid_flush(f.client, -1, NULL, &error));
    user = charges(f.client);
    cr_assert(user.arrays == 0 && user.names == 0 && user.leases == 0 && user.watches == 0);
    cr_assert(user.bytes == 0 && user.pending == 0);
    assert_failed(caid_users(f.client, NULL, NULL, &error), CAID_ERR_INVALID);
}

FIXTURE_TEST(names, flush_and_defer)
{
    struct caid_flushed flushed = CAID_INIT(flushed);
    struct caid_memory_info info = CAID_INIT(info);

    assert_ok(caid_defer_begin(f.client, &error));
    assert_ok(caid_defer_begin(f.client, &error));
    cr_assert_eq(charges(f.client).deferred, 1);
    caid_array_close(make_bytes(f.client, NULL, 1000));
    assert_ok(caid_flush(f.client, 0, &flushed, &error));
    cr_assert(flushed.entries == 0 && flushed.blocks == 0, "held back");
    assert_ok(caid_memory_info(f.client, 0, &info, &error));
    cr_assert(info.pending == 1 && info.pending_bytes >= 1000 && info.blocks == 1);
    assert_ok(caid_defer_end(f.client, &error));
    assert_ok(caid_flush(f.client, -1, &flushed, &error));
    cr_assert_eq(flushed.entries, 0, "they nest");
    assert_ok(caid_defer_end(f.client, &error));
    assert_failed(caid_defer_end(f.client, &error), CAID_ERR_INVALID);

    /* What this f.client has closed is flushed though the GPU had to drain first. */
    assert_ok(caid_flush(f.client, 0, &flushed, &error));
    cr_assert(flushed.entries == 1 && flushed.blocks == 1 && flushed.bytes > 0);
    assert_ok(caid_memory_info(f.client, 0, &info, &error));
    cr_assert(info.pending == 0 && info.blocks == 0 && info.used == 0);
    cr_assert(info.flushes > 0 && info.releases > 0 && info.quarantined == 0);
    assert_failed(caid_flush(f.client, 99, NULL, &error), CAID_ERR_DEVICE);
    assert_failed(caid_flush(f.client, -2, NULL, &error), CAID_ERR_DEVICE);
}
