/* SPDX-License-Identifier: Apache-2.0 */
#include "handoff.h"

#include <err.h>

struct victim {
    struct handoff_process *p;
    const struct kill_case *c;
    CUstream stream;
};

static struct caid_bracket *
start(const struct victim *v, bool writes)
{
    struct caid_array **arrays = &v->p->array;
    OPTIONS(caid_bracket_options, options, .reads = arrays, .n_reads = !writes,
            .writes = arrays, .n_writes = writes, .stream = STREAM(v->stream));
    struct caid_bracket *bracket;

    MUST(caid_bracket_start(v->p->client, &bracket, &options, &error));
    return bracket;
}

/* Two halves, so that a kill can come between them. */
static void
work(const struct victim *v, bool writes, CUdeviceptr copy)
{
    CUdeviceptr at = caid_array_get_info(v->p->array)->ptr;
    size_t half = HANDOFF_WORDS / 2, bytes = half * sizeof(uint32_t);
    uint32_t value = v->p->shared->number;

    for (size_t i = 0; i < 2; i++) {
        if (writes)
            MUST_CUDA(v->p->drv->cu.cuMemsetD32Async(at + i * bytes, value, half, v->stream));
        else
            MUST_CUDA(v->p->drv->cu.cuMemcpyDtoDAsync(copy + i * bytes, at + i * bytes, bytes,
                                                      v->stream));
    }
}

/* Brackets that end well. What a witness has left abandoned, nobody reads. */
static _Noreturn void
loop(const struct victim *v, CUdeviceptr copy)
{
    program_control(v->p->drv->path, ACTOR_FAST);
    sem_post(&v->p->shared->reached);
    for (unsigned i = 0;; i++) {
        bool writes = v->c->writes || i % 4 == 0;
        struct caid_bracket *bracket = start(v, writes);
        MUST(caid_bracket_wait(bracket, CAID_FOREVER, &error));
        work(v, writes, copy);
        MUST(caid_bracket_end(bracket, &error));
        caid_bracket_free(bracket);
    }
}

static _Noreturn void
run_timeline(const struct victim *v)
{
    struct caid_timeline *timeline;

    MUST(caid_timeline_create(v->p->client, &timeline, HANDOFF_TIMELINE, NULL, &error));
    program_control(v->p->drv->path, ACTOR_SLOW);
    if (v->c->moment == MOMENT_submitted)
        MUST(caid_timeline_signal(timeline, STREAM(v->stream), 1, &error));
    actor_stay(&v->p->shared->reached);
}

static _Noreturn void
run_bracket(const struct victim *v)
{
    sem_t *reached = &v->p->shared->reached;
    enum moment moment = v->c->moment;
    CUdeviceptr copy;

    MUST_CUDA(v->p->drv->cu.cuMemAlloc(&copy, HANDOFF_WORDS * sizeof(uint32_t)));
    if (moment == MOMENT_opened)
        actor_stay(reached);
    if (moment == MOMENT_looping)
        loop(v, copy);
    struct caid_bracket *bracket = start(v, v->c->writes);
    MUST(caid_client_ping(v->p->client, &error)); /* the daemon has looked at the begin */
    if (moment == MOMENT_waiting || moment == MOMENT_started)
        actor_stay(reached);
    MUST(caid_bracket_wait(bracket, CAID_FOREVER, &error));
    if (moment == MOMENT_begun)
        actor_stay(reached);
    if (moment != MOMENT_done)
        program_control(v->p->drv->path, ACTOR_SLOW);
    work(v, v->c->writes, copy);
    if (moment == MOMENT_working)
        actor_stay(reached);
    if (moment == MOMENT_signalled)
        actor_stop_before_send(reached);
    MUST(caid_bracket_end(bracket, &error));
    if (moment == MOMENT_signalled)
        errx(1, "the end of a bracket was not sent");
    if (moment == MOMENT_done)
        MUST_CUDA(v->p->drv->cu.cuStreamSynchronize(v->stream));
    MUST(caid_client_ping(v->p->client, &error)); /* the daemon has looked at the end */
    actor_stay(reached);
}

_Noreturn void
handoff_victim(struct handoff_process *p)
{
    OPTIONS(caid_open_options, options, .mode = "rw");
    struct victim v = {.p = p, .c = &p->shared->now};

    handoff_open(p);
    MUST(caid_array_open(p->client, &p->array, HANDOFF_ARRAY, &options, &error));
    MUST_CUDA(p->drv->cu.cuStreamCreate(&v.stream, CU_STREAM_NON_BLOCKING));
    if (v.c->moment == MOMENT_submitted || v.c->moment == MOMENT_silent)
        run_timeline(&v);
    run_bracket(&v);
}
