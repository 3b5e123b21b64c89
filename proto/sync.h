/* SPDX-License-Identifier: Apache-2.0 */
/*
 * Which of a storage's two buffers is up to date, in memory that processes share. The words lie in
 * front of the storage's host buffer (docs/STORAGE.md).
 *
 * Each modification raises a version, and stores which side it was on. `synced` is the version up
 * to which both sides are equal; while it is less than the version, the modified side is dirty. A
 * copy stores the version that it began with, so that a modification during the copy does not count
 * as copied. Both words only grow. Other processes write them, so they are checked: -EBADMSG for
 * impossible ones.
 */
#pragma once

#include <errno.h>
#include <stdatomic.h>
#include <stdint.h>

struct sync_words {
    _Atomic uint64_t modified; /* version << SYNC_SIDE_BITS | side; 0: never */
    _Atomic uint64_t synced;
};

enum sync_state {
    SYNC_CLEAN,
    SYNC_HOST_DIRTY,
    SYNC_DEVICE_DIRTY
};

#define SYNC_SIDE_BITS   2
#define SYNC_VERSION_MAX (UINT64_MAX >> (SYNC_SIDE_BITS + 1))

/* The state by both words. The caller has read `synced` first: so it cannot be ahead. */
static inline int
sync_state_of(uint64_t modified, uint64_t synced, uint64_t *ret_version)
{
    uint64_t version = modified >> SYNC_SIDE_BITS, side = modified % (1 << SYNC_SIDE_BITS);

    if (version >= SYNC_VERSION_MAX || synced > version || side > SYNC_DEVICE_DIRTY ||
        (side == SYNC_CLEAN) != (version == 0))
        return -EBADMSG;
    *ret_version = version;
    return synced == version ? SYNC_CLEAN : (int)side;
}

static inline int
sync_load(const struct sync_words *words, uint64_t *ret_version)
{
    uint64_t synced = atomic_load(&words->synced);

    return sync_state_of(atomic_load(&words->modified), synced, ret_version);
}

/* That side is modified. Returns the state before, which may be out of date. */
static inline int
sync_modify(struct sync_words *words, enum sync_state side, uint64_t *ret_version)
{
    uint64_t synced = atomic_load(&words->synced), modified = atomic_load(&words->modified);
    int state;

    do {
        state = sync_state_of(modified, synced, ret_version);
        if (state < 0)
            return state;
        ++*ret_version;
    } while (!atomic_compare_exchange_weak(&words->modified, &modified,
                                           *ret_version << SYNC_SIDE_BITS | side));
    return state;
}

/* Both sides are equal up to that version. */
static inline void
sync_pass(struct sync_words *words, uint64_t version)
{
    uint64_t synced = atomic_load(&words->synced);

    while (synced < version && !atomic_compare_exchange_weak(&words->synced, &synced, version))
        ;
}
