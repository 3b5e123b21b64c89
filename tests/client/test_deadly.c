/* SPDX-License-Identifier: Apache-2.0 */
/*
 * Requests that the daemon dies of. An allocation kills it (tests/daemon/fail_malloc.c), which is
 * made for metadata of one length; its supervisor starts another one each time.
 */
#include <pthread.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/mman.h>
#include <unistd.h>

#include "caid_test.h"
#include "daemon.h"

#define N_BYTES   3333 /* of the metadata that the daemon dies of */
#define N_VICTIMS 3
#define OFTEN     20

static struct fixture {
    struct daemon daemon;
    struct caid_client *client;
    int fd;                  /* each daemon opens it anew */
    _Atomic int64_t *deadly; /* bytes, how often yet */
} f;

static void
setup(void)
{
    char path[64];

    f.fd = memfd_create("deadly", MFD_CLOEXEC);
    cr_assert(f.fd >= 0 && ftruncate(f.fd, 2 * sizeof(*f.deadly)) == 0);
    f.deadly = mmap(NULL, 2 * sizeof(*f.deadly), PROT_READ | PROT_WRITE, MAP_SHARED, f.fd, 0);
    cr_assert_neq(f.deadly, MAP_FAILED);
    f.deadly[0] = N_BYTES;
    snprintf(path, sizeof(path), "/proc/%d/fd/%d", (int)getpid(), f.fd);
    setenv("DEADLY_MALLOC", path, 1);
    setenv("LD_PRELOAD", build_path("tests/fail-malloc.so"), 1);
    daemon_start_supervised(&f.daemon);
    unsetenv("LD_PRELOAD");
    f.client = daemon_connect(&f.daemon);
}

static void
teardown(void)
{
    caid_client_close(f.client);
    daemon_stop(&f.daemon);
    close(f.fd);
    munmap(f.deadly, 2 * sizeof(*f.deadly));
}

/* An array without bytes. */
static int
create(struct caid_client *client, const char *name, size_t n_metadata, struct caid_error *why)
{
    char metadata[N_BYTES + 1] = "";
    const int64_t shape = 0;
    OWNED struct caid_array *array = NULL;
    OPTIONS(caid_create_options, options, .name = name, .typestr = "|u1", .shape = &shape,
            .ndim = 1, .metadata = metadata);

    memset(metadata, 'm', n_metadata);
    return caid_array_create(client, &array, &options, why);
}

/* Its caller is told of it by name; who waits meanwhile is told nothing. */
CLIENT_TEST(deadly, a_request_that_two_daemons_die_of)
{
    setup();
    struct caid_client *other = daemon_connect(&f.daemon);
    OWNED struct caid_array *mine = make_bytes(f.client, "x", 10);
    OWNED struct caid_array *theirs = NULL;
    struct caid_bracket *writes, *waits;
    struct caid_change change;
    struct caid_watch *watch;

    assert_ok(caid_array_open(other, &theirs, "x", NULL, &error));
    assert_ok(caid_array_begin(mine, &writes, CAID_BRACKET_WRITE, 0, CAID_FOREVER, &error));
    OPTIONS(caid_bracket_options, options, .reads = &theirs, .n_reads = 1);
    assert_ok(caid_bracket_start(other, &waits, &options, &error));
    assert_ok(caid_watch_new(other, &watch, "y", NULL, NULL, NULL, &error));

    f.deadly[1] = OFTEN;
    assert_failed(create(f.client, "y", N_BYTES, &error), CAID_ERR_INTERNAL);
    cr_assert(strstr(error.message, "create"), "%s", error.message);
    cr_assert_eq(f.deadly[1], OFTEN - 2);
    cr_assert_eq(status_of(f.client).restarts, 2);

    cr_assert_eq(caid_bracket_wait(waits, 0, &error), 1);
    assert_failed(caid_watch_next(watch, 0, &change, &error), CAID_ERR_TIMEOUT);
    assert_ok(create(f.client, "y", 1, &error));
    assert_ok(caid_watch_next(watch, CAID_FOREVER, &change, &error));
    assert_ok(caid_bracket_end(writes, &error));
    cr_assert_eq(caid_bracket_wait(waits, CAID_FOREVER, &error), 0);
    assert_ok(caid_bracket_end(waits, &error));
    caid_bracket_free(writes);
    caid_bracket_free(waits);
    caid_watch_close(watch);
    caid_array_close(TAKE_PTR(theirs));
    caid_array_close(TAKE_PTR(mine));
    caid_client_close(other);
    teardown();
}

CLIENT_TEST(deadly, one_that_a_daemon_has_died_of_is_repeated)
{
    setup();
    for (int i = 0; i < 3; i++) {
        f.deadly[1] = 1;
        assert_ok(create(f.client, NULL, N_BYTES, &error));
        cr_assert_eq(f.deadly[1], 0);
    }
    cr_assert_eq(status_of(f.client).restarts, 3);
    teardown();
}

struct victim {
    struct caid_client *client;
    pthread_t thread;
    struct caid_error why;
};

static void *
be_a_victim(void *arg)
{
    struct victim *victim = arg;

    create(victim->client, NULL, N_BYTES, &victim->why);
    return NULL;
}

/* Whoever is first each time, all come to an end: nothing is forgotten by a daemon in between. */
CLIENT_TEST(deadly, many_ask_for_it)
{
    struct victim victims[N_VICTIMS] = {0};

    setup();
    for (int i = 0; i < N_VICTIMS; i++)
        victims[i].client = daemon_connect(&f.daemon);
    f.deadly[1] = OFTEN;
    for (int i = 0; i < N_VICTIMS; i++)
        cr_assert_eq(pthread_create(&victims[i].thread, NULL, be_a_victim, &victims[i]), 0);
    for (int i = 0; i < N_VICTIMS; i++) {
        pthread_join(victims[i].thread, NULL);
        cr_assert_eq(victims[i].why.code, CAID_ERR_INTERNAL, "%s", victims[i].why.message);
        caid_client_close(victims[i].client);
    }
    cr_assert_eq(f.deadly[1], OFTEN - 2 * N_VICTIMS);
    teardown();
}
