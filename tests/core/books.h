/* SPDX-License-Identifier: Apache-2.0 */
/*
 * The harness's books: what the driver has made and what each client has been told of it.
 */
#pragma once

#include "harness.h"

void books_allocated(struct harness *h, const struct h_job *job, uint64_t handle);
/* The core has asked for it; returns the size. */
uint64_t books_release(struct harness *h, uint64_t handle, int fd);
void books_released(struct harness *h, uint64_t handle, int error);
/* A reply to create or open; fills in what it says. */
void books_arrays(struct harness *h, const struct core_action *a, enum msg_method method,
                  const struct msg_arrays_result *result, struct h_reply *reply);
/* A client writes what lies there, with those leases of its own: nobody else has it. Returns its
 * stamp. */
uint64_t books_written(struct harness *h, uint64_t conn, struct msg_u64s own, uint64_t block,
                       uint64_t offset, uint64_t bytes);
void books_closed(struct harness *h, uint64_t conn, uint64_t lease);
void books_forgotten(struct harness *h, uint64_t conn, uint64_t block);
/* The core is killed: the next one does not wait for what is under way in a block that its client
 * has forgotten, and so unmapped, or forgets later. */
void books_uses_unknown(struct harness *h);
void books_exited(struct harness *h, uint64_t conn);
/* What it has goes on under another number. */
void books_moved(struct harness *h, uint64_t from, uint64_t to);
/* The core is another one, which has those blocks. */
void books_restarted(struct harness *h, bool (*has)(void *userdata, uint64_t handle),
                     void *userdata);
/* Around what the core does: allocations of its may fail then, not the harness's. */
void books_arm(bool on);

/* harness.c: into h->records */
void h_note(struct harness *h, const char *text);

/* saved.c: the journal. */
void saved_init(struct harness *h);
void saved_deinit(struct harness *h);
/* What has been recorded since. */
void saved_read(struct harness *h);
bool saved_block(struct harness *h, uint64_t block);
bool saved_name(const struct harness *h, const char *pool, const char *name);
/* Blocks, or names. */
uint64_t saved_count(const struct harness *h, bool blocks);
/* Kills the core as it is now, in a copy, and looks at the one that comes after it. */
void saved_check(struct harness *h);
/* The same, with allocations that fail between around(true) and around(false). Whether that core
 * has ended of one: then the next one has all. */
bool saved_fails(struct harness *h, void (*around)(bool on));
/* The core that comes after this one takes its place. */
void saved_restart(struct harness *h);
/* And has not all back, before saved_finish(). */
void saved_begin_restart(struct harness *h);
void saved_finish(struct harness *h);
/* The same where somebody has exited who is recorded yet: before a restart, since its shell would
 * find that, and pages dead. */
void saved_settle_exits(struct harness *h);
/* Begins a new journal, or goes over to it when that has all. */
void saved_renew(struct harness *h);

/* harness_reply.c */
void books_reply(struct harness *h, const struct core_action *a);

/* harness_bracket.c */
void books_page_new(struct harness *h, const struct core_action *a);
void books_page_seal(struct harness *h, uint64_t page);
void books_page_kill(struct harness *h, uint64_t page);
void books_page_free(struct harness *h, uint64_t page);
void books_join(struct harness *h, const struct core_action *a,
                const struct msg_join_result *result, struct h_reply *reply);
void books_members(struct harness *h, const struct core_action *a,
                   const struct msg_members_result *result, struct h_reply *reply);
void books_page(struct harness *h, const struct core_action *a,
                const struct msg_page_result *result, struct h_reply *reply);
/* A reply to begin or fences. */
void books_fences(struct harness *h, const struct core_action *a,
                  const struct msg_fences_result *result, struct h_reply *reply);
void books_timeline(struct harness *h, const struct core_action *a,
                    const struct msg_open_timeline_result *result, struct h_reply *reply);
/* The lease, and with it its part of brackets. */
void books_given_up(struct harness *h, uint64_t conn, uint64_t lease);
/* Ends a bracket. */
void books_ended(struct harness *h, uint64_t conn, const struct msg_end_params *p);
/* A begin of that request, if it was one. */
void books_refused(struct harness *h, uint64_t conn, uint32_t request);
/* Somebody may have the block for good. */
void books_exported(struct harness *h, uint64_t block);
/* The range is given away, or goes. */
void books_unused(const struct harness *h, uint64_t block, uint64_t offset, uint64_t bytes);
/* What it had of others' pages, and brackets, ends. */
void books_hung_up(struct harness *h, uint64_t conn);
