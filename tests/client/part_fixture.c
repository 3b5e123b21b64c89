/* SPDX-License-Identifier: Apache-2.0 */
#include "part_fixture.h"

#include <poll.h>
#include <string.h>

struct fixture f;

void
write_bytes(unsigned char with)
{
    unsigned char bytes[N_BYTES];

    memset(bytes, with, sizeof(bytes));
    assert_ok(caid_array_copy_from_host(f.whole, bytes, sizeof(bytes), &error));
}

void
parts_begin(void)
{
    daemon_start(&f.daemon);
    f.client = daemon_connect(&f.daemon);
    f.other = daemon_connect(&f.daemon);
    f.whole = make_bytes(f.client, NULL, N_BYTES);
    write_bytes(1);
}

void
wait_for_arrays(uint64_t n)
{
    while (status_of(f.other).arrays != n)
        ;
}

/* The test has taken all names away. */
void
parts_end(void)
{
    caid_array_close(f.whole);
    wait_for_arrays(0);
    caid_client_close(f.other);
    caid_client_close(f.client);
    daemon_stop(&f.daemon);
}

/* ---- publishing ---- */

void
count(void *userdata)
{
    ++*(int *)userdata;
}

struct caid_part_options
bytes_options(const int64_t *shape, int *n_gone)
{
    OPTIONS(caid_part_options, options, .typestr = "|u1", .shape = shape, .ndim = 1,
            .gone = n_gone ? count : NULL, .userdata = n_gone);
    return options;
}

uint64_t
publish_at(uint64_t offset, const char *name, int *n_gone)
{
    const int64_t shape = N_PART;
    struct caid_part_options options = bytes_options(&shape, n_gone);
    uint64_t generation = 0;

    assert_ok(caid_array_publish_part(f.whole, offset, name, &options, &generation, &error));
    return generation;
}

uint64_t
publish(const char *name, int *n_gone)
{
    return publish_at(AT, name, n_gone);
}

void
unlink_name(const char *name)
{
    assert_ok(caid_unlink(f.other, name, NULL, &error));
}

struct caid_array *
open_array(struct caid_client *client, const char *name)
{
    struct caid_array *array = NULL;

    assert_ok(caid_array_open(client, &array, name, NULL, &error));
    return array;
}

/* All that the daemon has said of the client's parts by now is told. */
void
look(void)
{
    assert_ok(caid_client_ping(f.other, &error));
    assert_ok(caid_client_ping(f.client, &error));
    /* The first answer may have been on its way for long; what went since is in the next one. */
    assert_ok(caid_client_ping(f.client, &error));
    assert_ok(caid_client_dispatch(f.client, &error));
}

bool
is_readable(struct caid_client *client, int timeout_ms)
{
    struct pollfd fd = {.fd = caid_client_get_fd(client), .events = POLLIN};

    cr_assert_geq(fd.fd, 0);
    return poll(&fd, 1, timeout_ms) == 1;
}

void
dispatch_until(const int *n_gone, int n)
{
    while (*n_gone < n) {
        cr_assert(is_readable(f.client, -1));
        assert_ok(caid_client_dispatch(f.client, &error));
    }
    look();
    cr_assert_eq(*n_gone, n, "once each");
}
