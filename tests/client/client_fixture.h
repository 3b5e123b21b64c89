/* SPDX-License-Identifier: Apache-2.0 */
/* A daemon and a client; where a test has it so, its own use of the GPU, too. Failures end the
 * test. */
#pragma once

#include "caid_test.h"
#include "daemon.h"
#include "gpu.h"

extern struct fixture {
    struct daemon daemon;
    struct caid_client *client;
    struct test_gpu gpu;
} f;

void begin(void);
void begin_with_gpu(void);
void end(void);

struct caid_array *must_open(const char *name, const char *mode);

#define FIXTURE_TEST(suite, name) \
    CAID_TEST_BETWEEN(suite, name, begin(), end(), .init = driver_warm_up, .timeout = 120)
/* The same, where the driver is not used. */
#define DAEMON_TEST(suite, name) CAID_TEST_BETWEEN(suite, name, begin(), end(), .timeout = 60)
