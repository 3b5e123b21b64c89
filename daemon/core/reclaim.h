/* SPDX-License-Identifier: Apache-2.0 */
/*
 * How memory that nobody holds is freed: the deallocation queue of each device, and what dooms the
 * blocks in reserve.
 *
 * To free a range needs no driver and cannot fail, so a queue is flushed at once. Blocks that
 * become empty go into reserve. Blocks that are to be released are doomed, and released one after
 * the other (release.h). Until its turn comes, a doomed block may still serve a create.
 */
#pragma once

#include <stdbool.h>
#include <stdint.h>

struct array;
struct conn;
struct core;
struct pool;
struct user;

/* Puts the array, which is charged for nothing any more, into the queue. May flush. */
void reclaim_add(struct core *core, struct array *array);
/* Takes a pending array out of the queue and frees it. Its block gets the range back. */
void reclaim_free(struct core *core, struct array *array);
/* The same, but the caller gets the range. */
struct range *reclaim_steal(struct core *core, struct array *array);
/* A quota is exceeded, on behalf of user: frees what the pool has in the queues (not what the user
 * has deferred), and dooms all of its reserve. Returns a device where blocks of the pool will be
 * released; n_devices: none. */
uint32_t reclaim_pool(struct core *core, struct pool *pool, const struct user *user);
/* Memory has run out, on behalf of user: frees what is in the queue (not what the user has
 * deferred). */
void reclaim_all(struct core *core, uint32_t device, const struct user *user);
/* Frees the entries of the device's queue that are not deferred: the user's, or all (NULL). Returns
 * how many. */
uint64_t reclaim_queue(struct core *core, uint32_t device, struct user *user);
/* Dooms the device's reserve: blocks of pools that conn may write, or all (NULL). Returns the last
 * doom that concerns it; 0: none. */
uint64_t reclaim_doom(struct core *core, uint32_t device, const struct conn *conn);
void reclaim_tick(struct core *core);
uint64_t reclaim_deadline_ns(const struct core *core);
#define DEFER_DEPTH_MAX 1000 /* of one connection */

/* Each connection may nest them. */
void reclaim_defer(struct core *core, struct conn *conn);
void reclaim_undefer(struct core *core, struct conn *conn);
