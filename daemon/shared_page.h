/* SPDX-License-Identifier: Apache-2.0 */
/*
 * Pages of timelines (timeline.h) in the daemon: a memfd each, mapped here for reading and writing,
 * since the daemon reads values, and stores in a page that its owner is dead.
 *
 *     making  the keeper has yet to map it (kept.h)
 *     made    two fds: one by which the owner maps the page for writing, and one for all others,
 *             opened for reading
 *     sealed  the first fd is closed, and no fd can be mapped for writing any more
 *     freed
 *
 * The core says when a page is made, sealed and freed (core.h), and gives its number. Nobody can
 * cut or extend a page in any state, and its memory is there from the start: touching it never
 * faults. Mappings in other processes outlive all of this.
 *
 * What the daemon stores is certain to be seen only in a sealed page. While a page is not sealed
 * its owner can replace its memory (fallocate(2)). A driver that has pinned the old memory keeps
 * it, so that a stream would wait in it for ever. An owner can also keep the daemon from sealing
 * the page, by F_SEAL_SEAL. Then others are given a page that is dead from the start, the same for
 * all such cases.
 */
#pragma once

#include "core.h"
#include "kept.h"

#include "base/tree.h"

struct shared_page;

RB_HEAD(shared_page_tree, shared_page);
TAILQ_HEAD(shared_page_list, shared_page);

struct shared_pages {
    struct shared_page_tree tree;
    struct shared_page_list making; /* in the order of their beginning */
    struct shared_page_list dying;  /* the keeper was told to kill them */
    uint32_t n, max;
    int dead;          /* the dead page, for reading */
    struct kept *kept; /* the keeper keeps the pages, and maps them */
};

/* max_fds: how many fds the daemon may have, for all purposes. -errno; call deinit() also after a
 * failure. */
int shared_pages_init(struct shared_pages *pages, struct kept *kept, uint64_t max_fds);
/* Frees the pages that are left, and kills none. */
void shared_pages_deinit(struct shared_pages *pages);

/* With so many bytes behind the slots. 0; KEPT_LATER: shared_pages_next() returns it, unless it is
 * freed before; -EMFILE: pages have as many fds as they may; -errno. *ret has the same error. */
int shared_page_new(struct shared_pages *pages, uint64_t id, size_t tail,
                    struct core_page_result *ret);
/* A page that is made now, or cannot be; false: there is none. To be called when kept_listen() says
 * so, and at shared_pages_deadline_ns(). */
bool shared_pages_next(struct shared_pages *pages, uint64_t *ret_id,
                       struct core_page_result *ret);
/* When the keeper has had its time to map the first page; UINT64_MAX: none is being made. */
uint64_t shared_pages_deadline_ns(const struct shared_pages *pages);
/* Takes over an earlier daemon's page, which was found under that number. One that is sealed is
 * mapped for reading, and the keeper kills it; else it is as one that was made here. -errno: it
 * stays found. */
int shared_page_adopt(struct shared_pages *pages, uint64_t id, uint32_t kept,
                      struct core_page_result *ret);
/* The owner has mapped the page. false: it could not be sealed, and its fd for reading is the dead
 * page's from now on. */
bool shared_page_seal(struct shared_pages *pages, uint64_t id);
/* The owner has died: releases all streams and hosts that wait for a value in the page. */
void shared_page_kill(struct shared_pages *pages, uint64_t id);
void shared_page_free(struct shared_pages *pages, uint64_t id);
/* Whether the keeper has yet to kill pages. */
bool shared_pages_are_dying(struct shared_pages *pages);
