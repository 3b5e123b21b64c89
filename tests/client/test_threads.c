/* SPDX-License-Identifier: Apache-2.0 */
/* One client used from many threads; calls of all kinds at once: stress_client. */
#include <pthread.h>
#include <stdatomic.h>
#include <stdio.h>
#include <string.h>
#include <unistd.h>

#include "client_fixture.h"
#include "fake.h"
#include "session/client.h"

#define N_THREADS 8
#define N_ROUNDS  300

struct crowd {
    pthread_t threads[N_THREADS];
    atomic_int next;   /* gives each thread its number */
    atomic_int failed; /* threads do not assert: they are not the test's */
    char message[600];
};

static void
note_failure(struct crowd *crowd, const char *what, const struct caid_error *error)
{
    if (atomic_fetch_add(&crowd->failed, 1) == 0)
        snprintf(crowd->message, sizeof(crowd->message), "%s: %s", what, error->message);
}

static void
crowd_run(struct crowd *crowd, void *(*body)(void *))
{
    for (int i = 0; i < N_THREADS; i++)
        cr_assert_eq(pthread_create(&crowd->threads[i], NULL, body, crowd), 0);
}

static void
crowd_join(struct crowd *crowd)
{
    for (int i = 0; i < N_THREADS; i++)
        pthread_join(crowd->threads[i], NULL);
    cr_assert_eq(crowd->failed, 0, "%s", crowd->message);
}

static bool
first_byte_is(struct caid_array *array, unsigned char wanted, struct caid_error *error)
{
    unsigned char bytes[64] = {0};

    if (caid_array_copy_to_host(array, bytes, sizeof(bytes), error) < 0)
        return false;
    snprintf(error->message, sizeof(error->message), "read %d, not %d", bytes[0], wanted);
    return bytes[0] == wanted;
}

/* Each thread keeps opening and closing the same few arrays, so that their blocks are dropped
 * and fetched anew while other threads' replies are on their way. */
static void *
open_and_close(void *arg)
{
    struct crowd *crowd = arg;
    int me = atomic_fetch_add(&crowd->next, 1);
    struct caid_array *array;
    char name[2] = {0};

    for (int i = 0; i < N_ROUNDS && !crowd->failed; i++) {
        name[0] = (char)('a' + (i + me / 4) % 2);
        if (caid_array_open(f.client, &array, name, NULL, &error) < 0) {
            note_failure(crowd, "open", &error);
            break;
        }
        if (i % 16 == 0 && !first_byte_is(array, (unsigned char)name[0], &error))
            note_failure(crowd, "copy_to_host", &error);
        caid_array_close(array);
    }
    return NULL;
}

static void
make_filled(const char *name)
{
    char bytes[64];

    OWNED struct caid_array *array = make_bytes(f.client, name, sizeof(bytes));
    memset(bytes, name[0], sizeof(bytes));
    assert_ok(caid_array_copy_from_host(array, bytes, sizeof(bytes), &error));
}

FIXTURE_TEST(threads, open_and_close_the_same_blocks)
{
    struct crowd crowd = {0};

    make_filled("a");
    make_filled("b");
    crowd_run(&crowd, open_and_close);
    crowd_join(&crowd);
    wait_for_leases(f.client, 0);
}

/* Goes on until the connection ends, which has to end every call. */
static void *
until_lost(void *arg)
{
    struct crowd *crowd = arg;
    struct caid_array *array;

    while (caid_array_open(f.client, &array, "a", NULL, &error) == 0)
        caid_array_close(array);
    if (error.code != CAID_ERR_DISCONNECTED)
        note_failure(crowd, "open", &error);
    return NULL;
}

FIXTURE_TEST(threads, the_daemon_is_killed_under_them)
{
    struct crowd crowd = {0};

    make_filled("a");
    crowd_run(&crowd, until_lost);
    usleep(50 * 1000);
    daemon_end(&f.daemon, SIGKILL);
    crowd_join(&crowd);
}

/* Each array is a block of its own that goes at once when it is closed, while the other
 * threads' calls, which might refer to it, never cease. The device holds a few of them at a
 * time. */
static void *
create_large(void *arg)
{
    struct crowd *crowd = arg;
    const int64_t n = 100 << 20;
    struct caid_array *array;

    OPTIONS(caid_create_options, create, .typestr = "|u1", .shape = &n, .ndim = 1);
    for (int i = 0; i < N_ROUNDS / 3; i++) {
        if (caid_array_create(f.client, &array, &create, &error) < 0) {
            note_failure(crowd, "create", &error);
            break;
        }
        caid_array_close(array);
    }
    return NULL;
}

FIXTURE_TEST(threads, large_arrays_come_and_go)
{
    struct crowd crowd = {0};

    crowd_run(&crowd, create_large);
    crowd_join(&crowd);
    wait_for_leases(f.client, 0);
}

/* Arrays hold the client: closing one after the other from several threads frees it once. */
static void *
close_share(void *arg)
{
    struct caid_array **arrays = arg;

    for (int i = 0; i < N_ROUNDS; i++)
        caid_array_close(arrays[i]);
    return NULL;
}

FIXTURE_TEST(threads, the_last_array_frees_the_client)
{
    static struct caid_array *arrays[N_THREADS * N_ROUNDS];
    struct crowd crowd = {0};

    make_filled("a");
    for (int i = 0; i < N_THREADS * N_ROUNDS; i++)
        assert_ok(caid_array_open(f.client, &arrays[i], "a", NULL, &error));
    caid_client_close(f.client);
    for (int i = 0; i < N_THREADS; i++)
        pthread_create(&crowd.threads[i], NULL, close_share, arrays + i * N_ROUNDS);
    crowd_join(&crowd);
    f.client = daemon_connect(&f.daemon);
}

/* ---- watches ---- */

struct early {
    struct caid_client *client;
    atomic_bool answered; /* what caid_watch_new() waits for */
    atomic_int n, n_early;
};

static void
note_early(const struct caid_change *change, void *userdata)
{
    struct early *early = userdata;

    (void)change;
    if (!early->answered)
        early->n_early++;
    early->n++;
}

static void *
dispatch_until_told(void *arg)
{
    struct early *early = arg;

    while (early->n == 0 && caid_client_dispatch(early->client, &error) == 0)
        usleep(1000);
    return NULL;
}

/* The news come long before the answer that caid_watch_new() waits for. */
static void
script_early_news(struct fake *fake)
{
    const struct msg_watch_result news = {.generation = 7};
    atomic_bool *answered = *(atomic_bool *const *)fake->data;

    if (fake_request(fake) == MSG_WATCH)
        fake_result(fake, MSG_WATCH, &news, NULL, 0);
    fake_request(fake);
    usleep(200 * 1000);
    *answered = true;
    fake_pong(fake);
    fake_drain(fake);
}

CAID_TEST(threads, no_news_before_there_is_a_watch)
{
    struct early early = {0};
    struct caid_watch *watch = NULL;
    pthread_t thread;
    struct fake fake;

    atomic_bool *answered = &early.answered;
    early.client = fake_start(&fake, script_early_news, &answered);
    cr_assert_eq(pthread_create(&thread, NULL, dispatch_until_told, &early), 0);
    assert_ok(caid_watch_new(early.client, &watch, "x", NULL, note_early, &early, &error));
    pthread_join(thread, NULL);
    cr_assert_eq(early.n, 1);
    cr_assert_eq(early.n_early, 0);
    caid_watch_close(watch);
    fake_stop(&fake);
}

/* The ids of requests are 32 bits: they come round while a watch stands. */
FIXTURE_TEST(threads, request_ids_go_round_a_watch)
{
    struct caid_watch *watch;
    struct caid_change change;
    uint64_t generation;

    OWNED struct caid_array *array = make_bytes(f.client, NULL, 8);
    pthread_mutex_lock(&f.client->lock);
    uint64_t seq = f.client->seq + 1; /* of the watch */
    pthread_mutex_unlock(&f.client->lock);
    assert_ok(caid_watch_new(f.client, &watch, "x", NULL, NULL, NULL, &error));
    pthread_mutex_lock(&f.client->lock);
    f.client->seq = UINT32_MAX + seq - 2;
    pthread_mutex_unlock(&f.client->lock);
    for (int i = 0; i < 5; i++)
        assert_ok(caid_client_ping(f.client, &error));
    assert_ok(caid_array_publish(array, "x", NULL, &generation, &error));
    assert_ok(caid_watch_next(watch, UINT64_MAX, &change, &error));
    cr_assert_eq(change.generation, generation);
    caid_watch_close(watch);
}
