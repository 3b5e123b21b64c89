/* SPDX-License-Identifier: Apache-2.0 */
/* A daemon, a client, the test's own use of the GPU, and an arena of device 0. Failures end the test. */
#pragma once

#include "caid_test.h"
#include "daemon.h"
#include "gpu.h"

#define MIB (UINT64_C(1) << 20)

struct arena_fixture {
    struct daemon daemon;
    struct test_gpu gpu;
    struct caid_client *client;
    struct caid_arena *arena; /* NULL: closed by the test; so is the client */
    struct caid_error error;
};

/* options may be NULL; config is text of a caid.conf, or NULL. */
void arena_begin(struct arena_fixture *f, const struct caid_arena_options *options);
void arena_begin_with(struct arena_fixture *f, const struct caid_arena_options *options,
                      const char *config);
void arena_end(struct arena_fixture *f);

/* Options with blocks of so many MiB. */
struct caid_arena_options arena_blocks_of(uint64_t mib);

/* Those that have to work. */
uint64_t arena_get(struct arena_fixture *f, uint64_t nbytes);
void arena_put(struct arena_fixture *f, uint64_t ptr);
struct caid_arena_info arena_look(struct arena_fixture *f);

/* Work on a stream of its own, that ends when gate_open() lets it. */
struct gate {
    CUstream stream;
    uint64_t *word;
};

void gate_shut(struct arena_fixture *f, struct gate *gate);
void gate_open(struct arena_fixture *f, struct gate *gate);
