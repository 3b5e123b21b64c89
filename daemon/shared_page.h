/* SPDX-License-Identifier: Apache-2.0 */
/*
 * Pages of timelines (timeline.h) as the daemon has them: a memfd each, mapped here for reading and
 * writing, since the daemon looks at values, and says in a page that its owner is dead.
 *
 *     made    two fds: one for the owner, which maps the page for writing by it, one for all
 *             others, opened for reading
 *     sealed  the first fd is closed, and no further mapping for writing is possible, by whatever
 *             fd
 *     freed
 *
 * Made, sealed and freed when the core says so (core.h), and known by the core's number. Nobody
 * else can cut or extend a page in any state, and its memory is there from the start: to touch it
 * never faults. What processes have mapped outlives all of this.
 *
 * Only who has a sealed page sees in it what the daemon stores. While it is not sealed its owner
 * can take its memory out (fallocate(2)), and whoever has the old memory pinned, as drivers do,
 * keeps that: a stream of his would wait in it for ever. An owner can keep the daemon from sealing
 * the page, by F_SEAL_SEAL; then others are given in its place one that is dead from the start, the
 * same for all such.
 */
#pragma once

#include "core.h"
#include "kept.h"

#include "base/tree.h"

struct shared_page;

RB_HEAD(shared_page_tree, shared_page);

struct shared_pages {
    struct shared_page_tree tree;
    uint32_t n, max;
    int dead;          /* for reading */
    struct kept *kept; /* keeps them, and has them mapped */
};

/* max_fds: that the daemon may have open, for all purposes. -errno; deinit() is right in any
 * case. */
int shared_pages_init(struct shared_pages *pages, struct kept *kept, uint64_t max_fds);
/* Frees those that are left, and kills none. */
void shared_pages_deinit(struct shared_pages *pages);

/* -EMFILE where pages have as many fds as they may; what the kernel says. *ret has the same
 * error. */
int shared_page_new(struct shared_pages *pages, uint64_t id, struct core_page_result *ret);
/* One of an earlier daemon's, sealed by then, which was found under that number: mapped for
 * reading, and killed by the keeper. -errno: it stays there. */
int shared_page_adopt(struct shared_pages *pages, uint64_t id, uint32_t kept,
                      struct core_page_result *ret);
/* Its owner has mapped it. False where it could not be sealed: to read it by its fd is to read a
 * dead one from now on. */
bool shared_page_seal(struct shared_pages *pages, uint64_t id);
/* Nobody signals in it any more: whoever waits for a value, a stream or a host, is let go. */
void shared_page_kill(struct shared_pages *pages, uint64_t id);
void shared_page_free(struct shared_pages *pages, uint64_t id);
