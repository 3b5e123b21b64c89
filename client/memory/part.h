/* SPDX-License-Identifier: Apache-2.0 */
/*
 * Parts: arrays that this client has published in the memory of another array
 * (caid_array_publish_part()), until nobody can reach them any more. The daemon reports such parts
 * in the answer to one request, which is in flight as long as there is a part in the table, and is
 * made again after each answer. Every part is in the table, also if nobody wants to be told of it:
 * an answer that names an unknown part, or one twice, breaks the protocol.
 *
 *   LIVE --reported--> its hook runs --> its `gone` runs --> freed
 *
 * The hook is the library's (an arena uses the memory again). It runs as soon as a thread looks, in
 * part_poll() or caid_client_dispatch(). `gone` is the program's. It runs in
 * caid_client_dispatch(), for which the client's fd is raised, or in caid_client_close(). Both run
 * without a lock, each at most once: the part is taken out of its list before.
 *
 * When the connection is lost, the state of the parts that were not reported is not known: their
 * hooks never run, and their `gone` runs in caid_client_close(). In a child after fork() nothing
 * runs, since it runs in the parent.
 *
 * A part is made before the daemon is asked. The thread that takes the reply puts it into the
 * table, which owns it from then on. It has no reference: not to the client, which ends all parts,
 * nor to the array, which may be closed before.
 */
#pragma once

#include <pthread.h>
#include <stdbool.h>
#include <stdint.h>
#include <sys/queue.h>

#include "caid/caid.h"

#include "base/tree.h"
#include "session/call.h"

struct caid_client;
struct part;

TAILQ_HEAD(part_list, part);
RB_HEAD(part_ids, part);
RB_HEAD(part_hooks, part);

struct part_hook {
    void (*released)(void *userdata);
    void *userdata;
};

struct part_table {            /* under the client's lock */
    struct part_ids live;      /* not reported yet, by id */
    struct part_hooks hooked;  /* the hook has not begun to run; by its userdata */
    struct part_list reported; /* the hook is to run */
    struct part_list running;  /* the hook runs */
    struct part_list gone;     /* `gone` is to run */
    pthread_cond_t idle;       /* a hook has run */
    uint64_t last;             /* the highest id so far; the next part's is higher */
    struct call request;
    struct caid_error failed; /* the daemon's refusal, until the program has it; code 0: none */
};

extern const struct feature part_feature;

void part_table_init(struct part_table *table);

/* Publishes a part of the array; the options have been read. The hook, which may be NULL, is called
 * once, when the part is reported, unless it is forgotten before. After a failure neither it nor
 * `gone` is called, but for this: *ret_unknown, which may be NULL and is written in any case, says
 * that the daemon was asked, and the connection was lost or the call was left before it answered.
 * Then others may have the part. If the call was left, the hook is called as after a success, or
 * when the daemon has refused. Waits for the GPU and the daemon; no lock is held. */
int part_publish(struct caid_array *array, uint64_t offset, const char *name,
                 const struct caid_part_options *options, const struct part_hook *hook,
                 uint64_t *ret_generation, bool *ret_unknown, struct caid_error *error);

/* For requests that make several parts: a list of them, in the order of the request, before the
 * reply. part_list_add() fails with -ENOMEM. */
int part_list_add(struct part_list *list, const struct part_hook *hook,
                  void (*gone)(void *userdata), void *userdata);
/* The daemon has made them, with ids from `first` on, one by one: they are the table's, and the
 * list is empty. -EPROTO: the ids have been used. Under lock. */
int part_list_take(struct caid_client *client, struct part_list *list, uint64_t first);
/* Nobody is called back for them, if they are made yet. */
void part_list_disown(struct part_list *list);
void part_list_free(struct part_list *list);

/* Reads what has come, without blocking, and runs the hooks of reported parts, but no callback of
 * the program. Not under any lock. */
void part_poll(struct caid_client *client);

/* The owner of the hooks with this userdata ends: they are not called any more, and when this
 * returns none of them runs. Not from a hook, not under any lock. Allowed at any time, also after
 * caid_client_close() and in a child after fork(). */
void part_forget(struct caid_client *client, const void *hook_userdata);

/* The connection has ended for good: calls back for all parts that are left. Under the client's
 * lock, which it drops meanwhile. */
void part_close_all(struct caid_client *client);
