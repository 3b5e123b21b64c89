/* SPDX-License-Identifier: Apache-2.0 */
/*
 * A program that was compiled when each record had a field less: its caid/records.h is made from
 * this one. It runs with this library, which knows all fields.
 */
#include <string.h>
#include <unistd.h>

#include "client_fixture.h"

/* A result struct, and what lies behind it in the program. */
#define GUARDED(type)      \
    struct {               \
        struct type v;     \
        uint8_t guard[64]; \
    }

static bool
is_untouched(const uint8_t guard[static 64])
{
    for (int i = 0; i < 64; i++)
        if (guard[i] != 0x5a)
            return false;
    return true;
}

DAEMON_TEST(older, results_have_no_more_than_was_asked_for)
{
    GUARDED(caid_status) status;
    GUARDED(caid_memory_info) info;
    struct caid_error error;

    memset(&status, 0x5a, sizeof(status));
    status.v.struct_size = sizeof(status.v);
    assert_ok(caid_client_status(f.client, &status.v, &error));
    cr_assert(is_untouched(status.guard));
    cr_assert_eq(status.v.pid, f.daemon.pid);
    cr_assert_str_eq(status.v.socket, f.daemon.socket);

    memset(&info, 0x5a, sizeof(info));
    info.v.struct_size = sizeof(info.v);
    assert_ok(caid_memory_info(f.client, 0, &info.v, &error));
    cr_assert(is_untouched(info.guard));
    cr_assert(info.v.total > 0 && strncmp(info.v.uuid, "GPU-", 4) == 0);

    /* this library knows more */
    info.v.struct_size = sizeof(info);
    status.v.struct_size = sizeof(status);
    assert_ok(caid_client_status(f.client, &status.v, &error));
    assert_ok(caid_memory_info(f.client, 0, &info.v, &error));
    cr_assert(!is_untouched(status.guard) && !is_untouched(info.guard));
}

static int
see_details(const struct caid_details *details, void *userdata)
{
    cr_assert(details->n_holders == 2 && details->entry->leases == 2);
    for (uint32_t i = 0; i < details->n_holders; i++) {
        cr_assert_eq(details->holders[i]->pid, getpid());
        cr_assert_eq(details->holders[i]->uid, getuid());
    }
    cr_assert_str_eq(details->entry->name, "x");
    cr_assert(details->entry->ndim == 1 && details->entry->shape[0] == 100);
    ++*(int *)userdata;
    return 0;
}

DAEMON_TEST(older, records_in_records_are_found)
{
    struct caid_client *other = daemon_connect(&f.daemon);
    struct caid_array *array = make_bytes(f.client, "x", 100), *twice;
    struct caid_error error;
    int n = 0;

    assert_ok(caid_array_open(other, &twice, "x", NULL, &error));
    assert_ok(caid_show(f.client, "x", NULL, see_details, &n, &error));
    cr_assert_eq(n, 1);
    caid_array_close(twice);
    caid_array_close(array);
    caid_client_close(other);
}

static int
see_user(const struct caid_user *user, void *userdata)
{
    cr_assert(user->uid == getuid() && user->connections == 1 && user->fds > 0);
    ++*(int *)userdata;
    return 0;
}

static int
see_pool(const struct caid_pool *pool, void *userdata)
{
    cr_assert(pool->uid == getuid() && pool->names == 3 && strncmp(pool->name, "uid:", 4) == 0);
    ++*(int *)userdata;
    return 0;
}

static int
see_entry(const struct caid_entry *entry, void *userdata)
{
    const char name[] = {(char)('a' + (*(int *)userdata)++), 0};

    cr_assert_str_eq(entry->name, name);
    cr_assert(entry->nbytes == 10 && entry->uid == getuid());
    return 0;
}

DAEMON_TEST(older, lists)
{
    const char *const names[] = {"a", "b", "c"};
    struct caid_error error;
    int users = 0, pools = 0, entries = 0;

    for (int i = 0; i < 3; i++)
        caid_array_close(make_bytes(f.client, names[i], 10));
    assert_ok(caid_users(f.client, see_user, &users, &error));
    assert_ok(caid_pools(f.client, see_pool, &pools, &error));
    assert_ok(caid_list(f.client, NULL, see_entry, &entries, &error));
    cr_assert(users == 1 && pools == 1 && entries == 3);
}
