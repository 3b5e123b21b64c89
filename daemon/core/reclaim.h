/* SPDX-License-Identifier: Apache-2.0 */
/*
 * How memory that nobody holds gets back: the deallocation queue of each device, and what dooms the
 * reserve of empty blocks.
 *
 * Freeing a range needs no driver and cannot fail, so a flush of the queue happens at once. Blocks
 * that ran empty by it are in reserve. Those that are to go are doomed, and released one after the
 * other (release.h); as long as its turn has not come, a doomed block may still serve a create.
 */
#pragma once

#include <stdbool.h>
#include <stdint.h>

struct array;
struct conn;
struct core;
struct pool;
struct user;

/* The array, which is charged for nothing any more, is in the queue from here on; may flush. */
void reclaim_add(struct core *core, struct array *array);
/* Takes a pending array out of the queue and frees it; its range goes back to its block. */
void reclaim_free(struct core *core, struct array *array);
/* The same, but the range is the caller's. */
struct range *reclaim_steal(struct core *core, struct array *array);
/* What a quota that is exceeded calls for, on behalf of user: frees what of the pool is in the
 * queues and not held back by him, and dooms all of its reserve. Returns a device where blocks
 * of the pool are about to be released, n_devices for none. */
uint32_t reclaim_pool(struct core *core, struct pool *pool, const struct user *user);
/* What out of memory calls for, on behalf of user: frees what is in the queue. */
void reclaim_all(struct core *core, uint32_t device, const struct user *user);
/* Frees what is in the queue of the device and not held back: of the user, or, for NULL, of all.
 * Returns how many arrays that were. */
uint64_t reclaim_queue(struct core *core, uint32_t device, struct user *user);
/* Dooms the device's reserve: what lies in pools that conn may write, or, for NULL, all of it.
 * Returns the last doom that concerns it, 0 for none. */
uint64_t reclaim_doom(struct core *core, uint32_t device, const struct conn *conn);
void reclaim_tick(struct core *core);
uint64_t reclaim_deadline_ns(const struct core *core);
#define DEFER_DEPTH_MAX 1000 /* of one connection */

/* Nested per connection. */
void reclaim_defer(struct core *core, struct conn *conn);
void reclaim_undefer(struct core *core, struct conn *conn);
