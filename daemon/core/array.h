/* SPDX-License-Identifier: Apache-2.0 */
/*
 * An array: a range of a block with a shape, and most often a name. It exists from the request that
 * creates it. `creating` until its memory is there: its name is taken, but nobody can open it.
 * Alive while it has a name or a lease. Then dead, while a process that had a lease has hung up and
 * not exited, or while a fence has not passed (I2). Then pending: an entry of its device's
 * deallocation queue, charged to nobody, until the queue frees it or its range serves a new array
 * of the same pool.
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

struct array { /* kept small: there may be a million */

    union {
        struct {                  /* alive or dead */
            RB_ENTRY(array) node; /* in pool->names or, once it has been leased, ->nameless */
            LIST_HEAD(, lease) leases; /* those of departed connections, too */
            uint64_t generation;       /* of its name, or of its last name */
            uint64_t id;
        };

        struct { /* pending */
            struct dealloc_entry entry;
            /* in zone->pendings, unless it has a block of its own */
            TAILQ_ENTRY(array) of_zone;
        };
    };
    struct pool *pool;
    struct charge charge; /* the creator's: one array, and array_host() */

    union {
        struct range *range; /* NULL: it has no bytes, or no memory yet */
        struct part *part;   /* is_part; NULL: it has been given up */
        struct set *set;     /* is_set */
    };

    struct use *use; /* NULL: no bracket and no fence */
    /* is_companion: the array that keeps it; else the one that it keeps, or NULL */
    struct array *companion;
    char *name;            /* "": it never had one. In extents, or in a struct text */
    struct text *metadata; /* or NULL */
    uint64_t nbytes;
    uint64_t span;       /* bytes that its elements span */
    uint32_t n_leases;   /* of connections that are connected */
    uint32_t n_departed; /* of departed connections */
    uint32_t record; /* its place in the journal, in units of 8 bytes; 0: it is not recorded */
    uint32_t n_sets; /* the number of set members that keep it */
    uint32_t made, published, opened; /* stamps; after a restart they begin anew */
    uint16_t device, n_descr;
    uint8_t kind, ndim, n_name, n_typestr;
    bool named : 1, creating : 1, pending : 1, mapped : 1, has_strides : 1;
    bool own : 1;          /* has a block of its own: it is large, or exclusive */
    bool listed : 1;       /* in pool->nameless */
    bool name_is_own : 1;  /* the name is in a struct text */
    bool abandoned : 1;    /* by a writer that died; until it is written or discarded */
    bool lingering : 1;    /* dead, in core->lingering */
    bool is_part : 1;      /* lies in the memory of another array */
    bool is_old_part : 1;  /* was a part in an earlier core already */
    bool is_whole : 1;     /* other arrays lie in its memory */
    bool is_companion : 1; /* has no name; another array keeps it */
    bool record_turn : 1;  /* which journal has its record: struct persist */
    bool record_named : 1; /* its record has a name */
    bool expires : 1;      /* its name has a time to live: in core->expiring */
    bool is_set : 1;       /* has members, and no bytes */
    bool uncharged : 1;    /* nobody is charged for its bytes any more */
    bool droppable : 1;    /* a set with a name: drop.h */
    bool is_channel : 1;   /* somebody takes part in it, or did: participant.h */
    int64_t extents[];     /* shape, strides; then typestr, descr and name, each terminated */
};

/* An array's metadata, or a name that it was given later. It is charged to the user who gave it,
 * which may not be the array's creator. */
struct text {
    struct charge charge;
    uint32_t n;
    char s[]; /* terminated */
};

#define TEXT_BYTES(n) (sizeof(struct text) + (n) + 1 + TEXT_HOST(n)) /* what one is charged */

/* -ENOMEM or REFUSED. */
int text_new(struct text **ret, struct user *user, struct msg_str s, struct refusal *r);
/* NULL: none. */
void text_free(struct text *text);

struct array_request {
    struct pool *pool;
    struct msg_str name; /* or not set: unnamed */
    uint32_t device;
    enum core_kind kind;
    bool mapped, exclusive;
    uint64_t alignment;
    struct geometry geometry;
    struct msg_str typestr, descr, metadata;
};

/* A `creating` array. Its name is taken, and all is charged but its range. -ENOMEM or REFUSED. */
int array_new(struct core *core, struct conn *conn, const struct array_request *req,
              struct array **ret, struct refusal *r);
/* The same for a part, which takes no name and no range. */
int array_new_part(struct core *core, struct part *part, const struct array_request *req,
                   struct array **ret, struct refusal *r);
/* What an array is charged of the daemon's own memory, with so many bytes of extents and texts. */
size_t array_host(size_t n_extents, size_t n_typestr, size_t n_descr, size_t n_name);
/* An array of an earlier core, still without its range and its name. -ENOMEM. */
int array_restore(struct core *core, struct user *user, const struct array_request *req,
                  struct array **ret);
/* Gives a restored array the name that it was made with. */
void array_restore_name(struct core *core, struct array *array);
/* array_view.c looks into an array, and changes nothing. */
const int64_t *array_shape(const struct array *array);
const int64_t *array_strides(const struct array *array); /* NULL: C order */
/* Texts that the array was made with, each terminated: typestr, descr, name. */
char *array_text(const struct array *array);
const char *array_typestr(const struct array *array);
const char *array_descr(const struct array *array); /* or NULL */
/* "device", "legacy", "pinned", "mapped" */
const char *array_memory(const struct array *array);
/* The array's own range; NULL: it has no bytes, or no memory yet. */
struct range *array_range(const struct array *array);
struct block *array_block(const struct array *array); /* NULL: no bytes, or none yet */
uint64_t array_offset(const struct array *array);
struct msg_str array_metadata(const struct array *array); /* or not set */
/* Gives the array another name; NULL: takes its name away. */
void array_set_name(struct array *array, struct text *name_consume);
/* Its name, or the last one that it had. */
struct msg_str array_name(const struct array *array);
/* What messages to people call the array. */
const char *array_label(const struct array *array);
/* What the array's range is charged, or will be. */
uint64_t array_bytes(const struct core *core, const struct array *array);
uint64_t array_request_bytes(const struct core *core, const struct array_request *req);
bool array_request_is_own(const struct core *core, const struct array_request *req);
/* Puts the array under its name into the pool, or takes it out. */
void array_insert_name(struct core *core, struct array *array);
void array_drop_name(struct core *core, struct array *array);
/* Puts a nameless array into pool->nameless, or takes it out. */
void array_list(struct array *array);
void array_unlist(struct array *array);
/* Records what the reply that follows promises (I9). */
void array_promise(struct core *core, struct array *array);
/* Undoes the charge for its bytes: the set of its parts is dropped, and it goes soon. */
void array_uncharge_bytes(struct core *core, struct array *array);
/* Undoes all charges of the array. */
void array_uncharge(struct core *core, struct array *array);
/* Frees the struct, and what is left of a set when the core ends. */
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
/* Checks the description of an array to be; name.p is NULL for an unnamed one. REFUSED. */
int geometry_check(struct msg_str name, struct msg_str typestr, struct msg_i64s shape,
                   struct msg_i64s strides, struct msg_str descr, struct geometry *ret,
                   struct refusal *r);
