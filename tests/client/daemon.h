/* SPDX-License-Identifier: Apache-2.0 */
/*
 * The built daemon, started for one test on a socket in a folder of its own. Stopped by its
 * pid; it dies with the test in any case (PR_SET_PDEATHSIG). Failures end the test.
 */
#pragma once

#include <signal.h>
#include <sys/types.h>

#include "base/macros.h"
#include "caid/caid.h"
#include "cuda/local.h"

struct daemon {
    pid_t pid;
    char dir[32];
    char socket[64];
};

void daemon_start(struct daemon *daemon);
/* The same with settings: the text of a caid.conf. */
void daemon_start_with(struct daemon *daemon, const char *config);
/* The same where streams wait for those of other processes so: "memops", "host", "events". */
void daemon_start_by(struct daemon *daemon, const char *handoff);
/* The same under caid --supervise, whose process daemon->pid is. */
void daemon_start_supervised(struct daemon *daemon);
/* Ends it with signal and waits; SIGTERM must be answered with exit status 0. */
void daemon_end(struct daemon *daemon, int signal);
/* Ends it with SIGTERM if need be and removes its folder. */
void daemon_stop(struct daemon *daemon);

struct caid_client *daemon_connect(const struct daemon *daemon);

/* The path of a program of the build: "bin/caidctl". Static storage. */
const char *build_path(const char *program);

/* Opens the driver and makes a context, before CAID_TEST counts fds: what a driver opens, it
 * keeps. */
void driver_warm_up(void);

/* The same, and has the driver offer something to other processes, which it goes on doing. */
void driver_warm_up_events(void);

/* The same with the software driver, whichever the tests are run with. */
void soft_warm_up(void);
void soft_warm_up_events(void);

/* A test that uses the daemon and the driver. */
#define CLIENT_TEST(suite, name) \
    CAID_TEST_WITH(suite, name, .init = driver_warm_up, .timeout = 120)

/* The daemon's figures. */
struct caid_status status_of(struct caid_client *client);

/* Waits until the daemon counts this many leases: it is told of a close in a process with a
 * CUDA context when the GPU has drained. Fails the test when it takes too long. */
void wait_for_leases(struct caid_client *client, uint64_t n);

/* An array of n bytes; checked. name may be NULL. */
struct caid_array *make_bytes(struct caid_client *client, const char *name, int64_t n);

/* An array that is closed where the block ends. */
#define OWNED _cleanup_(array_close_at)

static inline void
array_close_at(struct caid_array **array)
{
    caid_array_close(*array);
}

/* Options with some fields set. */
#define OPTIONS(type, name, ...) \
    struct type name = {.struct_size = sizeof(struct type), __VA_ARGS__}

/* Of each thread: what is given to the calls that these two look at. */
extern __thread struct caid_error error;

#define assert_ok(r)                                             \
    do {                                                         \
        int r_ = (r);                                            \
        cr_assert(r_ >= 0, "%s: %d: %s", #r, r_, error.message); \
    } while (0)

/* r is the errno of code, and error says code and has a message. */
#define assert_failed(r, wanted)                                                            \
    do {                                                                                    \
        error = (struct caid_error){0};                                                     \
        int r_ = (r);                                                                       \
        cr_assert(r_ < 0, "%s worked", #r);                                                 \
        cr_assert_eq(error.code, wanted, "%s: code %d: %s", #r, error.code, error.message); \
        cr_assert(error.message[0], "%s: no message", #r);                                  \
    } while (0)
