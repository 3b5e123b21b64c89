/* SPDX-License-Identifier: Apache-2.0 */
#include "books.h"

#include <stdio.h>

#include "caid_test.h"

/* ---- the driver's memory ---- */

static struct h_memory *
memory_find(struct harness *h, uint64_t handle)
{
    for (size_t i = 0; i < h->n_memory; i++)
        if (h->memory[i].handle == handle)
            return &h->memory[i];
    cr_assert_fail("there is no memory of handle %llu", (unsigned long long)handle);
    return NULL;
}

static struct h_memory *
memory_find_block(struct harness *h, uint64_t block)
{
    for (size_t i = 0; i < h->n_memory; i++)
        if (h->memory[i].block == block)
            return &h->memory[i];
    cr_assert_fail("no client was told of block %llu", (unsigned long long)block);
    return NULL;
}

void
books_allocated(struct harness *h, const struct h_job *job, uint64_t handle)
{
    cr_assert_lt(h->n_memory, ARRAY_SIZE(h->memory));
    h->memory[h->n_memory++] = (struct h_memory){.handle = handle,
                                                 .size = job->size,
                                                 .device = job->device,
                                                 .kind = job->kind};
    h->live_bytes += job->size;
    if (job->kind != KIND_PINNED)
        h->device_bytes[job->device] += job->size;
}

static bool
is_held(const struct harness *h, uint64_t conn, uint64_t block)
{
    for (size_t i = 0; i < h->n_holds; i++)
        if (h->holds[i].block == block && (!conn || h->holds[i].conn == conn))
            return true;
    return false;
}

static void
drop_holds(struct harness *h, uint64_t conn, uint64_t block)
{
    for (size_t i = h->n_holds; i-- > 0;)
        if ((!conn || h->holds[i].conn == conn) && (!block || h->holds[i].block == block))
            h->holds[i] = h->holds[--h->n_holds];
}

uint64_t
books_release(struct harness *h, uint64_t handle, int fd)
{
    struct h_memory *m = memory_find(h, handle);

    cr_assert_not(m->releasing, "released twice");
    m->releasing = true;
    cr_assert_eq(fd, m->kind == KIND_LEGACY ? -1 : (int)handle, "another block's fd");
    if (m->block) {
        for (size_t i = 0; i < h->n_ranges; i++)
            cr_assert_neq(h->ranges[i].block, m->block,
                          "block %llu goes while connection %llu may write it (I2)",
                          (unsigned long long)m->block, (unsigned long long)h->ranges[i].conn);
        books_unused(h, m->block, 0, m->size);
        if (m->kind != KIND_DEVICE)
            cr_assert_not(is_held(h, 0, m->block), "block %llu goes while it is open",
                          (unsigned long long)m->block);
        drop_holds(h, 0, m->block);
    }
    return m->size;
}

void
books_released(struct harness *h, uint64_t handle, int error)
{
    struct h_memory *m = memory_find(h, handle);

    h->live_bytes -= m->size;
    if (error)
        h->quarantined_bytes += m->size;
    else if (m->kind != KIND_PINNED)
        h->device_bytes[m->device] -= m->size;
    *m = h->memory[--h->n_memory];
}

/* ---- what clients are told ---- */

static void
add_block(struct harness *h, const struct core_action *a, const struct msg_block *b,
          struct msg_str pool)
{
    uint64_t handle;
    struct h_memory *m;

    cr_assert_not(is_held(h, a->conn, b->block), "block %llu is sent a second time (I3)",
                  (unsigned long long)b->block);
    if (msg_str_eq(b->kind, "legacy")) {
        cr_assert_eq(b->handle.n, CORE_HANDLE_WORDS);
        handle = b->handle.v[0];
    } else {
        cr_assert_lt(b->fd, a->n_fds);
        handle = (uint64_t)a->fds[b->fd];
    }
    cr_assert(saved_block(h, b->block),
              "a client is told of a block that is not recorded (I9)");
    m = memory_find(h, handle);
    cr_assert_not(m->releasing, "a client is told of a block that goes");
    cr_assert(msg_str_eq(b->kind, core_kind_name(m->kind)));
    cr_assert_eq(b->size, m->size);
    cr_assert(!m->block || m->block == b->block);
    cr_assert(!m->block || msg_str_eq(pool, m->pool), "a block of two pools (I1)");
    m->block = b->block;
    snprintf(m->pool, sizeof(m->pool), "%.*s", (int)pool.n, pool.p);
    cr_assert_lt(h->n_holds, H_BOOKS);
    h->holds[h->n_holds++] = (struct h_hold){.conn = a->conn, .block = b->block};
}

static bool
overlap(uint64_t a, uint64_t n_a, uint64_t b, uint64_t n_b)
{
    return a < b + n_b && b < a + n_a;
}

/* Bytes from the first to the last of an array that has some: more than nbytes where it has
 * strides. */
static uint64_t
span_of(const struct msg_array *r)
{
    uint64_t elements = 1, last = 0;

    for (uint32_t i = 0; i < r->shape.n; i++)
        elements *= (uint64_t)r->shape.v[i];
    for (uint32_t i = 0; i < r->strides.n; i++)
        last += (uint64_t)(r->shape.v[i] - 1) * (uint64_t)r->strides.v[i];
    return r->strides.v ? last + r->nbytes / elements : r->nbytes;
}

/* The creator writes its array. */
static bool
is_among(struct msg_u64s leases, uint64_t lease)
{
    for (uint32_t i = 0; i < leases.n; i++)
        if (leases.v[i] == lease)
            return true;
    return false;
}

uint64_t
books_written(struct harness *h, uint64_t conn, struct msg_u64s own, uint64_t block,
              uint64_t offset, uint64_t bytes)
{
    for (size_t i = 0; i < h->n_ranges; i++)
        cr_assert(h->ranges[i].block != block ||
                      !overlap(h->ranges[i].offset, h->ranges[i].bytes, offset, bytes) ||
                      (h->ranges[i].conn == conn && is_among(own, h->ranges[i].lease)),
                  "a range that connection %llu may write is given away (I2)",
                  (unsigned long long)h->ranges[i].conn);
    books_unused(h, block, offset, bytes);
    for (size_t i = h->n_contents; i-- > 0;) {
        struct h_content *c = &h->contents[i];
        if (c->block == block && overlap(c->offset, c->bytes, offset, bytes))
            *c = h->contents[--h->n_contents];
    }
    cr_assert_lt(h->n_contents, H_BOOKS);
    h->contents[h->n_contents++] = (struct h_content){.block = block,
                                                      .offset = offset,
                                                      .bytes = bytes,
                                                      .stamp = ++h->next_stamp};
    return h->next_stamp;
}

/* Of the array itself, or of the whole that it is a part of. */
static uint64_t
read_content(const struct harness *h, const struct msg_array *r)
{
    uint64_t end = r->offset + span_of(r);

    for (size_t i = 0; i < h->n_contents; i++) {
        const struct h_content *c = &h->contents[i];
        if (c->block == r->block && c->offset <= r->offset && end <= c->offset + c->bytes)
            return c->stamp;
    }
    return 0;
}

static void
add_range(struct harness *h, const struct core_action *a, const struct msg_array *r,
          struct msg_str pool)
{
    const struct h_memory *m = memory_find_block(h, r->block);

    cr_assert(is_held(h, a->conn, r->block), "the fd of block %llu was not sent (I3)",
              (unsigned long long)r->block);
    cr_assert(msg_str_eq(pool, m->pool), "an array in another pool's block (I1)");
    cr_assert_leq(r->offset + span_of(r), m->size);
    cr_assert_lt(h->n_ranges, H_BOOKS);
    h->ranges[h->n_ranges++] = (struct h_range){.conn = a->conn,
                                                .lease = r->lease,
                                                .array = r->array,
                                                .block = r->block,
                                                .offset = r->offset,
                                                .bytes = span_of(r)};
}

void
books_exported(struct harness *h, uint64_t block)
{
    memory_find_block(h, block)->exported = true;
}

static struct h_array
add_array(struct harness *h, const struct core_action *a, enum msg_method method,
          const struct msg_array *r, struct msg_str pool)
{
    struct h_array array = {.lease = r->lease,
                            .number = r->array,
                            .block = r->block,
                            .offset = r->offset,
                            .nbytes = r->nbytes,
                            .generation = r->generation};

    snprintf(array.memory, sizeof(array.memory), "%.*s", (int)r->memory.n,
             r->memory.p ? r->memory.p : "");
    snprintf(array.metadata, sizeof(array.metadata), "%.*s", (int)r->metadata.n,
             r->metadata.p ? r->metadata.p : "");
    cr_assert_neq(!r->block, !r->device.p, "the device is the block's, or else said");
    if (!r->block)
        return array;
    if (method == MSG_CREATE) /* else it may be a part */
        cr_assert(r->offset % 512 == 0 && !memory_find_block(h, r->block)->exported);
    array.stamp = method == MSG_CREATE ? books_written(h, a->conn, (struct msg_u64s){0},
                                                       r->block, r->offset, span_of(r))
                                       : read_content(h, r);
    add_range(h, a, r, pool);
    return array;
}

void
books_arrays(struct harness *h, const struct core_action *a, enum msg_method method,
             const struct msg_arrays_result *result, struct h_reply *reply)
{
    reply->n_arrays = result->n_arrays;
    reply->n_blocks = result->n_blocks;
    for (uint32_t i = 0; i < result->n_blocks; i++)
        add_block(h, a, &result->blocks[i], result->pool);
    for (uint32_t i = 0; i < result->n_arrays; i++) {
        struct h_array array = add_array(h, a, method, &result->arrays[i], result->pool);
        if (i < ARRAY_SIZE(reply->arrays))
            reply->arrays[i] = array;
    }
    reply->lease = reply->arrays[0].lease;
    reply->members = result->n_arrays ? result->arrays[0].members : 0;
    reply->layout = result->n_arrays ? result->arrays[0].layout : 0;
    reply->block = reply->arrays[0].block;
    reply->offset = reply->arrays[0].offset;
    reply->generation = reply->arrays[0].generation;
    reply->stamp = reply->arrays[0].stamp;
}

void
books_closed(struct harness *h, uint64_t conn, uint64_t lease)
{
    for (size_t i = h->n_ranges; i-- > 0;)
        if (h->ranges[i].conn == conn && h->ranges[i].lease == lease)
            h->ranges[i] = h->ranges[--h->n_ranges];
    books_given_up(h, conn, lease);
}

/* A client that has forgotten a block has unmapped it: what its streams do does not reach that. */
static void
drop_unknown(struct harness *h)
{
    for (size_t i = h->n_uses; i-- > 0;) {
        const struct h_use *use = &h->uses[i];
        if (use->is_old && use->fence.page && !is_held(h, use->conn, use->range.block))
            h->uses[i] = h->uses[--h->n_uses];
    }
}

void
books_forgotten(struct harness *h, uint64_t conn, uint64_t block)
{
    drop_holds(h, conn, block);
    drop_unknown(h);
}

void
books_uses_unknown(struct harness *h)
{
    for (size_t i = 0; i < h->n_uses; i++)
        h->uses[i].is_old = true;
    drop_unknown(h);
}

/* Nothing that the process had is in use any more. */
void
books_exited(struct harness *h, uint64_t conn)
{
    for (size_t i = h->n_ranges; i-- > 0;)
        if (h->ranges[i].conn == conn)
            h->ranges[i] = h->ranges[--h->n_ranges];
    drop_holds(h, conn, 0);
}

void
books_moved(struct harness *h, uint64_t from, uint64_t to)
{
    for (size_t i = 0; i < h->n_holds; i++)
        h->holds[i].conn = h->holds[i].conn == from ? to : h->holds[i].conn;
    for (size_t i = 0; i < h->n_ranges; i++)
        h->ranges[i].conn = h->ranges[i].conn == from ? to : h->ranges[i].conn;
    for (size_t i = 0; i < h->n_pages; i++)
        h->pages[i].conn = h->pages[i].conn == from ? to : h->pages[i].conn;
    for (size_t i = 0; i < h->n_uses; i++)
        h->uses[i].conn = h->uses[i].conn == from ? to : h->uses[i].conn;
}

void
books_restarted(struct harness *h, bool (*has)(void *userdata, uint64_t handle), void *userdata)
{
    h->n_jobs = h->n_page_holds = 0;
    for (size_t i = h->n_memory; i-- > 0;) {
        h->memory[i].releasing = false;
        if (!has(userdata, h->memory[i].handle))
            books_released(h, h->memory[i].handle, 0);
    }
    for (size_t i = 0; i < h->n_pages; i++)
        h->pages[i].killed = false;
}
