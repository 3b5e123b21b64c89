/* SPDX-License-Identifier: Apache-2.0 */
/*
 * The way back: what an earlier core has recorded (records.h) comes into a new one. What the
 * records say is checked; what cannot be is left out, and told.
 *
 *   restore_read()    the last record of each object that is there
 *   (the shell)       finds the processes, maps the pages
 *   core_restore()    who may have memory mapped, and signals, before the first connection
 *   core_tick()       then a piece of the rest with each, pool by pool: units.h
 *
 * What a process of the earlier core's has mapped is not given to anybody as long as it lives (I2):
 * its connection is a departed one, and as long as a block has such, what was free in it is set
 * aside (struct block, aside). An array that was being written is abandoned, where who wrote it
 * cannot say any more that it is whole; who can is waited for, as are those that may read:
 * former.h.
 */
#pragma once

#include "core.h"
#include "records.h"

struct journal;

struct restore_block {
    const struct record_block *record;
    uint64_t handle; /* import()'s to fill, as of core_alloc_result */
    int fd;
    struct block *block; /* the core's; NULL: it is not back */
    uint64_t lost;       /* who of those that had it does not come back, by former_bit() */
};

struct restore_conn {
    const struct record_conn *record;
    /* The shell's to fill: the number that core_exited() will be told, 0 where the process has
     * exited; and that of its pidfd at the keeper, or 0. */
    uint64_t conn;
    uint32_t kept;
};

struct restore_array {
    const struct record_array *record;
    uint16_t n;     /* bytes */
    uint32_t place; /* in the journal, in 8 bytes */
    uint64_t mark;
    struct array *array; /* the core's: while its unit comes back */
};

struct restore_page {
    const struct record_page *record;
    /* The shell's to fill: its owner has exited, and the page as the core may have it; slots NULL:
     * it is lost. */
    bool is_dead;
    struct core_page_result made;
};

struct restore_list {
    void *items; /* each begins with a pointer to its record, into the journal */
    size_t n;
};

#define RESTORE_LIST(item, name) \
    struct {                     \
        item *name;              \
        size_t n_##name;         \
    }

struct restore_ops {
    /* The memory of a block that the core is about to have. -EINVAL, -EBADF: there is none; any
     * other -errno: not now, and the way back ends there. */
    int (*import)(void *userdata, struct restore_block *block);
    /* What did not come back this time. It is told by the core as well, where its pool is there:
     * lost.h. */
    void (*lost)(void *userdata, const char *pool, const char *name, const char *why);
};

struct restore { /* by the kind of record, and in the order of its keys */

    union {
        struct restore_list lists[N_RECORDS];

        struct { /* the same in the order of enum record_type */
            struct restore_list none;
            RESTORE_LIST(const struct record_pool *, pools);
            RESTORE_LIST(struct restore_block, blocks);
            RESTORE_LIST(struct restore_array, arrays);
            RESTORE_LIST(const struct record_member *, members); /* by set */
            RESTORE_LIST(struct restore_conn, conns);
            RESTORE_LIST(const struct record_hold *, holds); /* by block, and connection */
            RESTORE_LIST(struct restore_page, pages);
            RESTORE_LIST(const struct record_floor *, floors); /* one, or none */
            RESTORE_LIST(const struct record_done *, dones);   /* by connection */
            struct restore_list gone;
            RESTORE_LIST(const struct record_lost *, losts);
            RESTORE_LIST(const struct record_ticket *, tickets);
            RESTORE_LIST(const struct record_suspect *, suspects);
            RESTORE_LIST(const struct record_channel *, channels);
        };
    };

    uint64_t in_hand[2]; /* when the earlier core ended: journal.h */
    uint64_t n_numbers;  /* of connections, with those that are gone: their holds say nothing */
    /* The shell's to fill: the same journal, to be written from here on, and who imports. */
    struct journal *journal;
    const struct restore_ops *ops;
    void *userdata;
};

/* Of a journal that has been opened, which is to stay until restore_deinit(). -ENOMEM. */
int restore_read(struct restore *ret, struct journal *journal);
void restore_deinit(struct restore *restore);

struct restore_dropped {
    uint64_t priority, reload_ns, bytes;
    struct msg_str metadata;
};

/* What the record of a name has beside, if it is of a dropped set: else zero. */
struct restore_dropped restore_dropped(const struct record_lost *record);

/* The item of that type's list, or NULL. */
void *restore_find(const struct restore *restore, enum record_type type, uint64_t id);
/* NULL: there is none. */
const struct record_ticket *restore_find_ticket(const struct restore *restore,
                                                struct record_key secret);

/* Into a core without connections. From here on the journal is the core's, which records what of it
 * has not come back; the next renewal leaves that out. `restore` is borrowed until all is back.
 * -ENOMEM. */
int core_restore(struct core *core, struct restore *restore);
/* Whether all is. Until then core_tick() has something to do, and core_admits() is to be asked. */
bool core_is_whole(const struct core *core);
/* -ENOMEM, or an import()'s: nothing more comes back in this process. What has not is recorded as
 * it was, for the next one. */
int core_restore_error(const struct core *core);
/* For core_tick(): a piece of what is left, and the rest of the first. */
void restore_run(struct core *core);
