/* SPDX-License-Identifier: Apache-2.0 */
/*
 * A client with an array, the whole, of which tests publish parts, and another client that reads
 * them. Failures end the test.
 */
#pragma once

#include "caid_test.h"
#include "daemon.h"

#define N_BYTES 8192
#define AT      1024 /* where most parts begin */
#define N_PART  512

extern struct fixture {
    struct daemon daemon;
    struct caid_client *client, *other;
    struct caid_array *whole; /* of client: N_BYTES of 1 */
} f;

void parts_begin(void);
/* The test has taken all names away, and closed what it opened. */
void parts_end(void);

/* All bytes of the whole. */
void write_bytes(unsigned char with);

/* A callback: one more. */
void count(void *n);
/* Of bytes; n_gone: counts the calls of `gone`, or NULL. */
struct caid_part_options bytes_options(const int64_t *shape, int *n_gone);
/* N_PART bytes, at AT; the generation. */
uint64_t publish_at(uint64_t offset, const char *name, int *n_gone);
uint64_t publish(const char *name, int *n_gone);
void unlink_name(const char *name);
struct caid_array *open_array(struct caid_client *client, const char *name);

/* All that the daemon has to say of the client's parts by now is told. */
void look(void);
/* Waits until *n_gone is n, and sees that it stays so. */
void dispatch_until(const int *n_gone, int n);
/* The fd of caid_client_get_fd(). */
bool is_readable(struct caid_client *client, int timeout_ms);
/* Until the daemon has so many. */
void wait_for_arrays(uint64_t n);

#define PART_TEST(suite, name)                                                         \
    CAID_TEST_BETWEEN(suite, name, parts_begin(), parts_end(), .init = driver_warm_up, \
                      .timeout = 120)
