/* SPDX-License-Identifier: Apache-2.0 */
/* A daemon, a client, the test's own use of the GPU, and an arena of device 0. Failures end the
 * test. */
#pragma once

#include "caid_test.h"
#include "daemon.h"
#include "gpu.h"

#define MIB (UINT64_C(1) << 20)

extern struct arena_fixture {
    struct daemon daemon;
    struct test_gpu gpu;
    struct caid_client *client;
    struct caid_arena *arena; /* NULL: closed by the test; so is the client */
} f;

/* options may be NULL; config is text of a caid.conf, or NULL. */
void arena_begin(const struct caid_arena_options *options);
void arena_begin_with(const struct caid_arena_options *options, const char *config);
void arena_end(void);

/* Options with blocks of so many MiB. */
struct caid_arena_options arena_blocks_of(uint64_t mib);

/* Those that have to work. */
uint64_t arena_get(uint64_t nbytes);
void arena_put(uint64_t ptr);
struct caid_arena_info arena_look(void);

/* Work on a stream of its own, that ends when gate_open() lets it. */
struct gate {
    CUstream stream;
    _Atomic uint64_t *word;
};

void gate_shut(struct gate *gate);
void gate_open(struct gate *gate);

#define ARENA_TEST(suite, name)                                                            \
    CAID_TEST_BETWEEN(suite, name, arena_begin(NULL), arena_end(), .init = driver_warm_up, \
                      .timeout = 120)

/* With an arena of these options. */
#define ARENA_TEST_OF(suite, name, ...)                                                        \
    CAID_TEST_BETWEEN(suite, name,                                                             \
                      arena_begin(&(struct caid_arena_options){.struct_size = sizeof(          \
                                                                   struct caid_arena_options), \
                                                               __VA_ARGS__}),                  \
                      arena_end(), .init = driver_warm_up, .timeout = 120)
