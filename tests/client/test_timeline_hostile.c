/* SPDX-License-Identifier: Apache-2.0 */
/*
 * Pages that cannot be believed: as they arrive from a daemon, and as their owner writes to them.
 * What the daemon gets wrong ends the connection; what an owner writes is an error that names the
 * page, to whoever looks, and nothing else.
 */
#include <errno.h>
#include <fcntl.h>
#include <inttypes.h>
#include <stdio.h>
#include <string.h>
#include <sys/mman.h>
#include <unistd.h>

#include "base/clock.h"
#include "base/macros.h"
#include "caid_test.h"
#include "daemon.h"
#include "fake.h"
#include "gpu.h"
#include "timeline.h"

#define PAGE   77
#define PAUSE  (20 * NSEC_PER_MSEC)
#define SEALED (F_SEAL_SHRINK | F_SEAL_GROW)

#define HOSTILE_TEST(name)                                                          \
    CAID_TEST_BETWEEN(timeline_hostile, name, begin(), end(), .init = soft_warm_up, \
                      .timeout = 120)

static int
make_page(off_t size, int seals)
{
    int fd = memfd_create("hostile", MFD_CLOEXEC | MFD_ALLOW_SEALING);

    cr_assert(fd >= 0 && ftruncate(fd, size) == 0 && fcntl(fd, F_ADD_SEALS, seals) == 0);
    return fd;
}

/* ---- what arrives ---- */

struct arrival {
    const char *what;
    struct msg_page pages[2];
    uint32_t n_pages;
    uint64_t page; /* that the timeline is said to be */
    off_t size;
    int seals;
    size_t n_fds;
    bool pipe;
};

static const struct arrival arrivals[] = {
    {"no page at all", {{0}}, 0, PAGE, 4096, SEALED, 0, false},
    {"another page", {{.page = PAGE, .size = 4096}}, 1, PAGE + 1, 4096, SEALED, 1, false},
    {"page 0", {{.page = 0, .size = 4096}}, 1, 0, 4096, SEALED, 1, false},
    {"no fd", {{.page = PAGE, .size = 4096}}, 1, PAGE, 4096, SEALED, 0, false},
    {"an fd out of place",
     {{.page = PAGE, .size = 4096, .fd = 1}},
     1,
     PAGE,
     4096,
     SEALED,
     1,
     false},
    {"a huge place",
     {{.page = PAGE, .size = 4096, .fd = UINT64_MAX}},
     1,
     PAGE,
     4096,
     SEALED,
     1,
     false},
    {"more fds than pages", {{.page = PAGE, .size = 4096}}, 1, PAGE, 4096, SEALED, 2, false},
    {"an fd twice",
     {{.page = PAGE, .size = 4096}, {.page = PAGE + 1, .size = 4096}},
     2,
     PAGE,
     4096,
     SEALED,
     2,
     false},
    {"too small a page", {{.page = PAGE, .size = 2048}}, 1, PAGE, 4096, SEALED, 1, false},
    {"less than is said", {{.page = PAGE, .size = 8192}}, 1, PAGE, 4096, SEALED, 1, false},
    {"an empty file", {{.page = PAGE, .size = 4096}}, 1, PAGE, 0, SEALED, 1, false},
    {"one that can shrink",
     {{.page = PAGE, .size = 4096}},
     1,
     PAGE,
     4096,
     F_SEAL_GROW,
     1,
     false},
    {"no memory at all", {{.page = PAGE, .size = 4096}}, 1, PAGE, 4096, SEALED, 1, true},
};

static void
send_arrival(struct fake *fake)
{
    const struct arrival *a = fake->data;
    struct msg_open_timeline_result result = {
        .page = a->page,
        .pages = a->pages,
        .n_pages = a->n_pages,
    };
    int fds[2] = {-1, -1};

    for (size_t i = 0; i < a->n_fds; i++)
        if (a->pipe) {
            int ends[2];
            cr_assert_eq(pipe(ends), 0);
            close(ends[1]);
            fds[i] = ends[0];
        } else
            fds[i] = make_page(a->size, a->seals);
    fake_request(fake);
    fake_result(fake, MSG_OPEN_TIMELINE, &result, fds, a->n_fds);
    for (size_t i = 0; i < a->n_fds; i++)
        close(fds[i]);
    fake_drain(fake);
}

CAID_TEST_WITH(timeline_hostile, arrivals, .init = soft_warm_up, .timeout = 120)
{
    for (size_t i = 0; i < ARRAY_SIZE(arrivals); i++) {
        struct caid_timeline *timeline = NULL;
        struct fake fake;

        struct caid_client *client = fake_start(&fake, send_arrival, &arrivals[i]);
        int r = caid_timeline_open(client, &timeline, "t", NULL, &error);
        cr_assert_eq(r, -EPROTO, "%s: %d", arrivals[i].what, r);
        cr_assert(error.code == CAID_ERR_PROTOCOL && strstr(error.message, "open_timeline"),
                  "%s: %s", arrivals[i].what, error.message);
        cr_assert_null(timeline);
        assert_failed(caid_client_ping(client, &error), CAID_ERR_PROTOCOL);
        fake_stop(&fake);
    }
}

/* The page of one's own has to be one that can be written. */
static void
send_own_page(struct fake *fake)
{
    const struct msg_page page = {.page = PAGE, .size = 4096};
    struct msg_page_result result = {.pages = &page, .n_pages = 1};
    int fd = make_page(4096, SEALED | F_SEAL_FUTURE_WRITE);

    fake_request(fake);
    fake_result(fake, MSG_PAGE, &result, &fd, 1);
    close(fd);
    fake_drain(fake);
}

CAID_TEST_WITH(timeline_hostile, own_page_that_cannot_be_written, .init = soft_warm_up,
               .timeout = 120)
{
    struct caid_timeline *timeline;
    struct fake fake;

    struct caid_client *client = fake_start(&fake, send_own_page, NULL);
    assert_failed(caid_timeline_create(client, &timeline, "t", NULL, &error),
                  CAID_ERR_PROTOCOL);
    fake_stop(&fake);
}

/* ---- what its owner writes ---- */

static struct fixture {
    struct test_gpu gpu;
    struct fake fake;
    struct caid_client *client;
    struct caid_timeline *timeline;
    uint64_t stream;
    int fd;
    struct timeline_slot *slot; /* as its owner has it */
} f;

static void
send_page(struct fake *fake)
{
    const struct msg_page page = {.page = PAGE, .size = 4096};
    struct msg_open_timeline_result result = {.page = PAGE, .pages = &page, .n_pages = 1};

    fake_request(fake);
    fake_result(fake, MSG_OPEN_TIMELINE, &result, fake->data, 1);
    fake_go_on(fake);
}

static void
begin(void)
{
    gpu_begin(&f.gpu);
    f.fd = make_page(4096, SEALED);
    f.slot = mmap(NULL, 4096, PROT_READ | PROT_WRITE, MAP_SHARED, f.fd, 0);
    cr_assert_neq(f.slot, MAP_FAILED);
    f.client = fake_start(&f.fake, send_page, &f.fd);
    assert_ok(caid_timeline_open(f.client, &f.timeline, "t", NULL, &error));
    assert_ok(caid_stream_create(f.client, 0, CAID_STREAM_NON_BLOCKING, &f.stream, &error));
}

static void
end(void)
{
    assert_ok(caid_client_ping(f.client, &error)); /* nothing is the daemon's fault */
    caid_timeline_close(f.timeline);
    assert_ok(caid_stream_destroy(f.client, f.stream, &error));
    fake_stop(&f.fake);
    munmap(f.slot, 4096);
    close(f.fd);
    gpu_end(&f.gpu);
}

static void
assert_names_page(void)
{
    cr_assert(strstr(error.message, "page 77 of timelines, slot 0"), "%s", error.message);
}

/* Everything that looks finds out; no stream is made to wait. */
static void
assert_disbelieved(const char *what)
{
    uint64_t value = 12345;

    assert_failed(caid_timeline_value(f.timeline, &value, &error), CAID_ERR_PROTOCOL);
    assert_names_page();
    cr_assert_eq(value, 12345, "%s", what);
    assert_failed(caid_timeline_wait(f.timeline, 0, 100, PAUSE, 0, &error), CAID_ERR_PROTOCOL);
    assert_names_page();
    assert_failed(caid_timeline_wait(f.timeline, f.stream, 100, PAUSE, 0, &error),
                  CAID_ERR_PROTOCOL);
    assert_failed(caid_timeline_wait(f.timeline, f.stream, 100, PAUSE, CAID_TIMELINE_AHEAD,
                                     &error),
                  CAID_ERR_PROTOCOL);
    cr_assert_eq(soft_calls(&f.gpu, "cuStreamWaitValue64"), 0, "%s", what);
    assert_ok(caid_stream_synchronize(f.client, f.stream, 0, &error));
}

static void
store(uint64_t done, uint64_t submitted, uint64_t landed)
{
    f.slot->landed = landed;
    f.slot->submitted = submitted;
    f.slot->done = done;
}

static uint64_t
value_of(void)
{
    uint64_t value;

    assert_ok(caid_timeline_value(f.timeline, &value, &error));
    return value;
}

HOSTILE_TEST(beyond_what_there_is)
{
    store(TIMELINE_DEAD + 1, 5, 0);
    assert_disbelieved("done");
    store(UINT64_MAX, 5, 0);
    assert_disbelieved("done, all ones");
    store(5, TIMELINE_DEAD + 1, 0);
    assert_disbelieved("submitted");
    store(TIMELINE_DEAD, TIMELINE_DEAD, TIMELINE_DEAD);
    assert_disbelieved("landed");
    store(5, 5, 0);
    cr_assert_eq(value_of(), 5); /* nothing was learnt from it */
}

HOSTILE_TEST(backwards)
{
    store(9, 9, 0);
    cr_assert_eq(value_of(), 9);
    store(8, 9, 0);
    assert_disbelieved("backwards");
    assert_failed(caid_timeline_wait(f.timeline, 0, 3, PAUSE, 0, &error), CAID_ERR_PROTOCOL);
    store(10, 10, 0);
    cr_assert_eq(value_of(), 10);
}

/* Dead is dead; and what had passed before has passed. */
HOSTILE_TEST(back_to_life)
{
    uint64_t value;

    store(9, 9, 0);
    cr_assert_eq(value_of(), 9);
    store(TIMELINE_DEAD, TIMELINE_DEAD, 4);
    assert_ok(caid_timeline_wait(f.timeline, 0, 9, 0, 0, &error));
    assert_failed(caid_timeline_wait(f.timeline, 0, 10, 0, 0, &error), CAID_ERR_ABANDONED);
    assert_failed(caid_timeline_value(f.timeline, &value, &error), CAID_ERR_ABANDONED);
    cr_assert_eq(value, 9);
    store(50, 50, 0);
    assert_disbelieved("alive");
}

/* It says that a value is on its way, and it never is: the stream waits, until the page is dead,
 * and nothing else does. An event that is none is not waited for. */
HOSTILE_TEST(never_comes)
{
    store(0, 5, 0);
    f.slot->has_event = 1;
    memset(f.slot->event, 0xff, sizeof(f.slot->event));
    assert_failed(caid_timeline_wait(f.timeline, 0, 5, PAUSE, 0, &error), CAID_ERR_TIMEOUT);
    assert_ok(caid_timeline_wait(f.timeline, f.stream, 5, PAUSE, 0, &error));
    cr_assert_eq(cuda_stream_query(f.client, f.stream, 0, &error), 0);
    store(0, 0, 0); /* and takes it back: no news for a stream that waits */
    assert_ok(caid_stream_check(f.client, f.stream, 0, &error));
    store(TIMELINE_DEAD, TIMELINE_DEAD, 0);
    assert_failed(caid_stream_synchronize(f.client, f.stream, 0, &error), CAID_ERR_ABANDONED);
}

/* Holes can be punched into a page of a process that lives: it reads as zeroes. */
HOSTILE_TEST(punched)
{
    store(3, 3, 0);
    cr_assert_eq(value_of(), 3);
    cr_assert_eq(fallocate(f.fd, FALLOC_FL_PUNCH_HOLE | FALLOC_FL_KEEP_SIZE, 0, 4096), 0);
    assert_disbelieved("punched");
    store(4, 4, 0);
}
