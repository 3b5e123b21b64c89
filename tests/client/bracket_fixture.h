/* SPDX-License-Identifier: Apache-2.0 */
/*
 * Two clients of this process that share array "x", of N_BYTES zeros, and three streams, on the
 * software driver. Failures end the test.
 */
#pragma once

#include "caid_test.h"
#include "daemon.h"
#include "gpu.h"

#define N_BYTES 4096
/* How late streams are. */
#define LATE_NS (UINT64_C(200) * 1000 * 1000)

extern struct fixture {
    struct test_gpu gpu;
    struct daemon daemon;
    struct caid_client *a, *b;
    struct caid_array *ax;      /* a's, which made it */
    struct caid_array *bx, *bw; /* b's, opened "r" and "rw" */
    uint64_t s1, s2, s3;        /* streams, which wait for nothing but what they are told to */
    unsigned char
        *seen[2]; /* page-locked, so that copies to it are done when streams come to them */
} f;

#define BRACKET_TEST(suite, name)                                                        \
    CAID_TEST_BETWEEN(suite, name, fixture_begin(), fixture_end(), .init = soft_warm_up, \
                      .timeout = 120)

void fixture_begin(void);
void fixture_end(void);

/* What is enqueued on the stream from here on is done LATE_NS later, when this thread waits. */
void be_late(uint64_t stream);
void synchronize(void);

/* Enqueues: all bytes become value; all bytes are copied to `to`, which is page-locked. */
void fill(struct caid_array *array, unsigned char value, uint64_t stream);
void get(struct caid_array *array, unsigned char *to, uint64_t stream);
void assert_all(const unsigned char bytes[N_BYTES], unsigned char value);

void capture_begin(uint64_t stream);
void capture_end(uint64_t stream);

/* A bracket that begins, in this thread. */
struct caid_bracket *begin_on(struct caid_array *array, uint32_t flags, uint64_t stream);
void end_and_free(struct caid_bracket *bracket);
/* The array cannot be read. */
void assert_abandoned(struct caid_array *array);

/* A begin in a thread of its own, for which this one's brackets are others'. */
struct elsewhere {
    struct caid_array *array;
    uint32_t flags;
    uint64_t stream, timeout_ns;
    struct caid_bracket *bracket;
    struct caid_error error;
    int r;
};

int begin_elsewhere(struct elsewhere *e);

/* Until the daemon has so many brackets, or so many that wait for "x". */
void wait_for_brackets(struct caid_client *client, uint64_t n);
void wait_for_waiting(struct caid_client *client, uint64_t n);
