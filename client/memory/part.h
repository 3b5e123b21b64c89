/* SPDX-License-Identifier: Apache-2.0 */
/*
 * Parts: arrays that lie in the memory of another one, which this client has published
 * (caid_array_publish_part()), until nobody can reach them any more. The daemon tells of that in
 * the answer to one request, which is in flight as long as there is a part in the table, and is
 * made again with each answer. Every part is in the table, also where nobody wants to
 * hear of it: an answer that names another one, or one twice, breaks the protocol.
 *
 *   LIVE --told--> its hook runs --> its `gone` runs --> freed
 *
 * A hook is the library's own (an arena's, whose memory may be used again): it runs as soon as
 * somebody looks, in part_poll() or caid_client_dispatch(). `gone` is the program's, and runs in
 * caid_client_dispatch() alone, for whose sake the client's fd is raised, or in
 * caid_client_close(). Both run with no lock held, each at most once: what runs has been taken out
 * of its list before.
 *
 * When the connection is lost nobody knows of the parts that have not been told: no hook of theirs
 * runs any more, and their `gone` waits for caid_client_close(), as the last word. In a child after
 * fork() nothing runs, since the parent's will.
 *
 * A part is made before the daemon is asked, put into the table by whichever thread takes the
 * reply, and belongs to the table from then on. It holds nothing: neither the client, which ends
 * all of them, nor the array, which may be closed before.
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
    struct part_ids live;      /* that have not been told, by id */
    struct part_hooks hooked;  /* those whose hook has not begun to run, by its userdata */
    struct part_list reported; /* whose hook is to run */
    struct part_list running;  /* whose hook runs */
    struct part_list gone;     /* whose `gone` is to run */
    pthread_cond_t idle;       /* a hook has run */
    uint64_t last;             /* id of a part; the next one's is higher */
    struct call request;
    struct caid_error failed; /* the daemon's refusal, until it has been told; code 0: none */
};

extern const struct feature part_feature;

void part_table_init(struct part_table *table);

/* Publishes a part of the array; the options have been read. The hook, which may be NULL, is
 * called once, when told, unless it is forgotten before. On failure neither it nor `gone` ever is.
 * *ret_unknown, which may be NULL, is written in any case: the daemon has been asked, and the
 * connection was lost, or the call given up, before it could say, so that others may have got the
 * part all the same; in the latter case the hook is called as if it had not failed, or when the
 * daemon has said no. Waits for the GPU and the daemon; no lock is held. */
int part_publish(struct caid_array *array, uint64_t offset, const char *name,
                 const struct caid_part_options *options, const struct part_hook *hook,
                 uint64_t *ret_generation, bool *ret_unknown, struct caid_error *error);

/* Reads what has come, without blocking, and runs the hooks of parts that have been told; no
 * callback of the program's. Not under any lock. */
void part_poll(struct caid_client *client);

/* Who owns the hooks with this userdata ends: they are not called any more, and when this returns
 * none of them runs. Not from a hook, not under any lock. Allowed at any time, also after
 * caid_client_close() and in a child after fork(). */
void part_forget(struct caid_client *client, const void *hook_userdata);

/* The connection has ended for good: calls back for all that are left. Under the client's lock,
 * which it drops meanwhile. */
void part_close_all(struct caid_client *client);
