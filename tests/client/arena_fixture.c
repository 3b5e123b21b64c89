/* SPDX-License-Identifier: Apache-2.0 */
#include "arena_fixture.h"

struct arena_fixture f;

void
arena_begin_with(const struct caid_arena_options *options, const char *config)
{
    f = (struct arena_fixture){0};
    gpu_begin(&f.gpu);
    if (config)
        daemon_start_with(&f.daemon, config);
    else
        daemon_start(&f.daemon);
    f.client = daemon_connect(&f.daemon);
    assert_ok(caid_arena_new(f.client, &f.arena, options, &error));
}

void
arena_begin(const struct caid_arena_options *options)
{
    arena_begin_with(options, NULL);
}

void
arena_end(void)
{
    caid_arena_close(f.arena);
    caid_client_close(f.client);
    daemon_stop(&f.daemon);
    gpu_end(&f.gpu);
}

struct caid_arena_options
arena_blocks_of(uint64_t mib)
{
    OPTIONS(caid_arena_options, options, .block_size = mib * MIB);
    return options;
}

uint64_t
arena_get(uint64_t nbytes)
{
    uint64_t ptr = 0;

    assert_ok(caid_arena_alloc(f.arena, nbytes, 0, &ptr, &error));
    cr_assert(ptr && ptr % 512 == 0, "%#llx", (unsigned long long)ptr);
    return ptr;
}

void
arena_put(uint64_t ptr)
{
    assert_ok(caid_arena_free(f.arena, ptr, 0, &error));
}

struct caid_arena_info
arena_look(void)
{
    struct caid_arena_info info = CAID_INIT(info);

    assert_ok(caid_arena_info(f.arena, &info, &error));
    return info;
}

void
gate_shut(struct gate *gate)
{
    gate->stream = gpu_stream_new(&f.gpu);
    gate->word = gpu_gate_new(&f.gpu);
    gpu_wait_at(&f.gpu, gate->word, gate->stream);
}

void
gate_open(struct gate *gate)
{
    *gate->word = 1;
    assert_cuda(f.gpu.drv->cu.cuStreamSynchronize(gate->stream));
    assert_cuda(f.gpu.drv->cu.cuStreamDestroy(gate->stream));
    gpu_gate_free(&f.gpu, gate->word);
}
