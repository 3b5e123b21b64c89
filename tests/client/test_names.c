/* SPDX-License-Identifier: Apache-2.0 */
/* Names, pools and figures. */
#include <stdio.h>
#include <string.h>
#include <unistd.h>

#include "caid_test.h"
#include "daemon.h"

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

CAID_TEST(names, list)
{
    struct daemon daemon;
    struct caid_list_options options = CAID_INIT(options);
    struct seen seen = {0}, stopped = {.stop_at = N_NAMES - 1}, some = {0}, all = {0};
    struct caid_error error;

    daemon_start(&daemon);
    struct caid_client *client = daemon_connect(&daemon);
    assert_ok(caid_list(client, NULL, see, &seen, &error), error);
    cr_assert_eq(seen.n, 0);
    make_names(client, "a/", N_NAMES);
    make_names(client, "b/", 3);

    assert_ok(caid_list(client, NULL, see, &seen, &error), error);
    cr_assert_eq(seen.n, N_NAMES + 3);
    cr_assert_eq(caid_list(client, NULL, see, &stopped, &error), 42);
    cr_assert_eq(stopped.n, N_NAMES - 1);
    options.prefix = "b/";
    assert_ok(caid_list(client, &options, see, &some, &error), error);
    cr_assert_eq(some.n, 3);
    options.prefix = NULL;
    options.all = true;
    assert_ok(caid_list(client, &options, see, &all, &error), error);
    cr_assert_eq(all.n, N_NAMES + 3);

    assert_failed(caid_list(client, NULL, NULL, NULL, &error), error, CAID_ERR_INVALID);
    options.prefix = "\xff";
    assert_failed(caid_list(client, &options, see, &all, &error), error, CAID_ERR_INVALID);
    options.prefix = NULL;
    options.all = false;
    options.pool = "no-such-pool";
    assert_failed(caid_list(client, &options, see, &all, &error), error, CAID_ERR_NOT_FOUND);
    caid_client_close(client);
    daemon_stop(&daemon);
}

static int
unlink_it(const struct caid_entry *entry, void *userdata)
{
    struct seen *seen = userdata;
    struct caid_error error;

    assert_ok(caid_unlink(seen->client, entry->name, NULL, &error), error);
    seen->n++;
    return 0;
}

/* The callback may use the client: nothing is locked, and the list goes on after the name that
 * has gone. */
CAID_TEST(names, the_callback_may_use_the_client)
{
    struct daemon daemon;
    struct seen seen = {0};
    struct caid_error error;

    daemon_start(&daemon);
    struct caid_client *client = daemon_connect(&daemon);
    make_names(client, "n", N_NAMES);
    seen.client = client;
    assert_ok(caid_list(client, NULL, unlink_it, &seen, &error), error);
    cr_assert_eq(seen.n, N_NAMES);
    seen.n = 0;
    assert_ok(caid_list(client, NULL, see, &seen, &error), error);
    cr_assert_eq(seen.n, 0);
    caid_client_close(client);
    daemon_stop(&daemon);
}

static int
check_details(const struct caid_details *d, void *userdata)
{
    const struct caid_array_info *info = caid_array_get_info(userdata);

    cr_assert_str_eq(d->entry.name, "x");
    cr_assert_eq(d->entry.leases, 2);
    cr_assert_eq(d->entry.nbytes, 1000);
    cr_assert(d->block == info->block && d->offset == info->offset);
    cr_assert_geq(d->block_size, 1000);
    cr_assert(!d->descr && !d->strides && d->array != 0);
    cr_assert_eq(d->n_holders, 2);
    for (size_t i = 0; i < 2; i++) {
        cr_assert_eq(d->holders[i].pid, (uint64_t)getpid());
        cr_assert_eq(d->holders[i].uid, getuid());
        cr_assert_not_null(d->holders[i].client, "the program's name");
    }
    cr_assert_eq(d->holders[0].readonly + d->holders[1].readonly, 1);
    return 5;
}

CLIENT_TEST(names, show)
{
    struct daemon daemon;
    struct caid_array *reader;
    struct caid_error error;

    daemon_start(&daemon);
    struct caid_client *client = daemon_connect(&daemon);
    struct caid_array *array = make_bytes(client, "x", 1000);
    assert_ok(caid_array_open(client, &reader, "x", NULL, &error), error);
    cr_assert_eq(caid_show(client, "x", NULL, check_details, array, &error), 5);
    assert_failed(caid_show(client, "y", NULL, check_details, array, &error), error,
                  CAID_ERR_NOT_FOUND);
    assert_failed(caid_show(client, NULL, NULL, check_details, array, &error), error,
                  CAID_ERR_INVALID_NAME);
    assert_failed(caid_show(client, "x", NULL, NULL, NULL, &error), error, CAID_ERR_INVALID);
    caid_array_close(reader);
    caid_array_close(array);
    caid_client_close(client);
    daemon_stop(&daemon);
}

CLIENT_TEST(names, unlink)
{
    struct daemon daemon;
    struct caid_array *other;
    struct caid_error error;
    char bytes[8];

    daemon_start(&daemon);
    struct caid_client *client = daemon_connect(&daemon);
    struct caid_array *array = make_bytes(client, "x", 8);
    assert_ok(caid_array_copy_from_host(array, "unlinked", 8, &error), error);
    assert_ok(caid_unlink(client, "x", NULL, &error), error);
    assert_failed(caid_unlink(client, "x", NULL, &error), error, CAID_ERR_NOT_FOUND);
    assert_failed(caid_array_open(client, &other, "x", NULL, &error), error,
                  CAID_ERR_NOT_FOUND);
    assert_ok(caid_array_copy_to_host(array, bytes, 8, &error), error);
    cr_assert_eq(memcmp(bytes, "unlinked", 8), 0, "its holder keeps it");

    other = make_bytes(client, "x", 8);
    cr_assert_neq(caid_array_get_info(other)->ptr, caid_array_get_info(array)->ptr);
    assert_failed(caid_unlink(client, NULL, NULL, &error), error, CAID_ERR_INVALID_NAME);
    caid_array_close(other);
    caid_array_close(array);
    caid_client_close(client);
    daemon_stop(&daemon);
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

CLIENT_TEST(names, pools)
{
    struct daemon daemon;
    struct caid_status status = CAID_INIT(status);
    struct caid_error error;

    daemon_start(&daemon);
    struct caid_client *client = daemon_connect(&daemon);
    struct caid_array *a = make_bytes(client, "x", 100), *b = make_bytes(client, NULL, 100);
    assert_ok(caid_client_status(client, &status, &error), error);
    cr_assert(status.arrays == 2 && status.names == 1 && status.leases == 2);
    cr_assert_eq(caid_pools(client, check_pool, &status, &error), 6);
    assert_failed(caid_pools(client, NULL, NULL, &error), error, CAID_ERR_INVALID);
    caid_array_close(a);
    caid_array_close(b);
    caid_client_close(client);
    daemon_stop(&daemon);
}

CLIENT_TEST(names, memory_info)
{
    struct daemon daemon;
    struct caid_memory_info before = CAID_INIT(before), with = CAID_INIT(with);
    struct caid_error error;
    const int64_t n = 64 << 20;

    daemon_start(&daemon);
    struct caid_client *client = daemon_connect(&daemon);
    assert_ok(caid_memory_info(client, 0, &before, &error), error);
    cr_assert(before.used == 0 && before.blocks == 0 && before.arrays == 0);
    cr_assert(before.free > 0 && before.free <= before.total);
    struct caid_array *array = make_bytes(client, NULL, n);
    assert_ok(caid_memory_info(client, 0, &with, &error), error);
    cr_assert(with.used >= (uint64_t)n && with.blocks == 1 && with.arrays == 1);
    cr_assert_leq(with.free, with.total - with.used);

    assert_failed(caid_memory_info(client, 99, &with, &error), error, CAID_ERR_DEVICE);
    assert_failed(caid_memory_info(client, -1, &with, &error), error, CAID_ERR_DEVICE);
    assert_failed(caid_memory_info(client, 0, NULL, &error), error, CAID_ERR_INVALID);
    caid_array_close(array);
    caid_client_close(client);
    daemon_stop(&daemon);
}
