/* SPDX-License-Identifier: Apache-2.0 */
/*
 * An array, from the request that creates it: a range of a block with a shape, and most often a
 * name. `creating` until its memory is there: its name is taken but nobody can open it. Alive while
 * it has a name or a lease. Then dead, while a process that had it leased hung up and lives on, or
 * while a fence on it has not passed (I2). Then pending, an entry of the device's deallocation
 * queue, charged to nobody, until the queue frees it or its range serves a new array of the same
 * pool.
 */
#pragma once

#include "actions.h"
#include "base/tree.h"
#include "dealloc.h"
#include "geometry.h"
#include "user.h"

struct array_index;
struct conn;
struct restore_array;

struct array { /* a million of them must be cheap */

    union {
        struct {                  /* alive or dead */
            RB_ENTRY(array) node; /* pool->names, or, from its first lease on, ->nameless */
            LIST_HEAD(, lease) leases; /* departed ones, too */
            uint64_t generation;       /* of its name, the last one if it has none */
            uint64_t id;
        };

        struct { /* pending */
            struct dealloc_entry entry;
            TAILQ_ENTRY(array) of_zone; /* zone->pendings; not in an own block */
        };
    };
    struct pool *pool;
    struct charge charge; /* to who created it: as an array, and bytes of it here */

    union {
        struct range *range; /* NULL: no bytes, or none yet */
        struct part *part;   /* is_part; NULL: given up */
        struct set *set;     /* is_set */
    };

    struct use *use;         /* NULL: nobody uses it, and no fence is left */
    struct array *companion; /* that it keeps; is_companion: that keeps it; or NULL */
    char *name;            /* "": never had one. Lies behind this struct, or in a struct text */
    struct text *metadata; /* or NULL */
    uint64_t nbytes;
    uint64_t span;       /* bytes that it needs */
    uint32_t n_leases;   /* of connections that are there */
    uint32_t n_departed; /* of those that are not */
    uint32_t record;     /* its place in the journal, in 8 bytes; 0: it is not there */
    uint32_t n_sets;     /* keys of sets under which it is kept */
    uint16_t device, n_descr;
    uint8_t kind, ndim, n_name, n_typestr;
    bool named : 1, creating : 1, pending : 1, mapped : 1, has_strides : 1;
    bool own : 1;          /* has a block of its own: it is large, or was asked for so */
    bool listed : 1;       /* in pool->nameless */
    bool name_is_own : 1;  /* in a struct text */
    bool abandoned : 1;    /* a writer died, and nobody has written or discarded it since */
    bool lingering : 1;    /* dead, in core->lingering */
    bool is_part : 1;      /* lies in another one's memory */
    bool is_old_part : 1;  /* and did so in an earlier core */
    bool is_whole : 1;     /* others lie in its memory */
    bool is_companion : 1; /* another one keeps it, and it has no name */
    bool record_turn : 1;  /* in which journal: struct persist */
    bool record_named : 1; /* with a name */
    bool expires : 1;      /* its name does: in core->expiring */
    bool is_set : 1;       /* keeps others, and has no bytes */
    int64_t extents[];     /* shape, strides; then typestr, descr, name: terminated */
};

/* A name or metadata that was given to an array, charged to who gave it: another one than its
 * creator may publish it. */
struct text {
    struct charge charge;
    uint32_t n;
    char s[]; /* terminated */
};

#define TEXT_BYTES(n) (sizeof(struct text) + (n) + 1 + TEXT_HOST(n)) /* that one is charged */

/* -ENOMEM or REFUSED. */
int text_new(struct text **ret, struct user *user, struct msg_str s, struct refusal *r);
/* NULL: none. */
void text_free(struct text *text);

struct array_request {
    struct pool *pool;
    struct msg_str name; /* or not set */
    uint32_t device;
    enum core_kind kind;
    bool mapped, exclusive;
    uint64_t alignment;
    struct geometry geometry;
    struct msg_str typestr, descr, metadata;
};

/* A `creating` array with its name taken and everything but its range charged. -ENOMEM or
 * REFUSED. */
int array_new(struct core *core, struct conn *conn, const struct array_request *req,
              struct array **ret, struct refusal *r);
/* The same for the part, which takes no name and no range. */
int array_new_part(struct core *core, struct part *part, const struct array_request *req,
                   struct array **ret, struct refusal *r);
/* Bytes of the daemon's own memory that it is charged, of so many bytes of extents and texts. */
size_t array_host(size_t n_extents, size_t n_typestr, size_t n_descr, size_t n_name);
/* One of an earlier core's, without its range and, for now, its name. -ENOMEM. */
int array_restore(struct core *core, struct user *user, const struct array_request *req,
                  struct array **ret);
/* The name that it was made with. */
void array_restore_name(struct core *core, struct array *array);
/* What it knows of itself: array_view.c. */
const int64_t *array_shape(const struct array *array);
const int64_t *array_strides(const struct array *array); /* NULL: C order */
/* typestr, descr and the name that it was made with, each terminated. */
char *array_text(const struct array *array);
const char *array_typestr(const struct array *array);
const char *array_descr(const struct array *array); /* or NULL */
/* "device", "legacy", "pinned", "mapped" */
const char *array_memory(const struct array *array);
/* Its own; NULL: no bytes, or none yet. */
struct range *array_range(const struct array *array);
struct block *array_block(const struct array *array); /* NULL: no bytes, or none yet */
uint64_t array_offset(const struct array *array);
struct msg_str array_metadata(const struct array *array); /* or not set */
/* Gives it another name, or takes that (NULL). */
void array_set_name(struct array *array, struct text *name_consume);
/* Its name, or the last one. */
struct msg_str array_name(const struct array *array);
/* What messages call it. */
const char *array_label(const struct array *array);
/* Bytes of the range that it takes, as they are charged. */
uint64_t array_bytes(const struct core *core, const struct array *array);
/* Its name's place in the pool. */
void array_insert_name(struct core *core, struct array *array);
void array_drop_name(struct core *core, struct array *array);
/* In pool->nameless, unless it has a name. */
void array_list(struct array *array);
void array_unlist(struct array *array);
/* What is promised with the reply that follows is recorded first (I9). */
void array_promise(struct core *core, struct array *array);
/* Nobody is charged for it any more. */
void array_uncharge(struct core *core, struct array *array);
/* The struct alone, and what of a set is left when the core ends. */
void array_free(struct array *array);

/* The arrays that an earlier core has left, by their numbers, as long as a client may come back
 * that knows them by those (former.h): n records, by number, of which no array is there yet. NULL:
 * out of memory. */
struct array_index *array_index_new(const struct restore_array *arrays, size_t n);
/* NULL, also where the core has no index (NULL): the array is not there. */
struct array *array_index_find(const struct array_index *index, uint64_t id);
/* The array of the record at that place is there now. */
void array_index_set(struct array_index *index, size_t place, struct array *array);
/* The array is not found any more. index may be NULL. */
void array_index_forget(struct array_index *index, uint64_t id);

int metadata_check(struct msg_str metadata, struct refusal *r);
/* What an array of that name (p NULL: unnamed) is to look like. */
int geometry_check(struct msg_str name, struct msg_str typestr, struct msg_i64s shape,
                   struct msg_i64s strides, struct msg_str descr, struct geometry *ret,
                   struct refusal *r);
