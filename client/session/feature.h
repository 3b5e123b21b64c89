/* SPDX-License-Identifier: Apache-2.0 */
/*
 * What a feature of the library (arrays, brackets, watches, ...) has to do when something happens
 * to the session: for all of them, in the order in which the one file that knows all of them
 * (features.c) names them. A session knows no feature, and asks these tables. A hook that is NULL
 * has nothing to do.
 *
 * Hooks are called under the client's lock, where it does not say otherwise. One that drops the
 * lock meanwhile says so, too; the others do not, and make no driver call.
 */
#pragma once

#include <stdbool.h>
#include <stdint.h>

#include "caid/caid.h"

#include "cuda_abi.h"

struct caid_client;
struct inventory;
struct reaped_queue;

struct feature {
    /* ---- what the daemon is to be told, where the socket does not take it at once ---- */

    bool (*has_unsent)(const struct caid_client *client);
    /* Sends it, as far as the socket takes it, as call_flush(); nothing where the connection has
     * ended. */
    int (*flush)(struct caid_client *client);

    /* ---- what is due: on the client's thread (reaper.h) ---- */

    /* When tidy() has something to do: a time, 0 for now, UINT64_MAX for never. */
    uint64_t (*due)(const struct caid_client *client);
    /* Does what is due by now. `all`: also what may be given back before its time. May drop the
     * lock, and call the driver. */
    void (*tidy)(struct caid_client *client, bool all);
    /* There is no such thread: on one that leaves the client. Gives back all that it can without
     * waiting. May drop the lock, and call the driver. */
    void (*tidy_here)(struct caid_client *client);
    /* Waits until nothing uses what was closed, and ends it. Not under the lock. */
    void (*reap)(struct caid_client *client, struct reaped_queue *closed);

    /* ---- news for the program ---- */

    /* Whether caid_client_dispatch() has something to tell: then the client's fd is raised. */
    bool (*has_news)(const struct caid_client *client);
    /* Calls back for what has come by now; drops the lock meanwhile. Returns r, or, where that
     * is 0, what the feature has failed with. */
    int (*deliver)(struct caid_client *client, int r, struct caid_error *error);

    /* ---- ends ---- */

    /* The daemon has hung up. Whether there will be another one: the connection has not ended. */
    bool (*hung_up)(struct caid_client *client);

    /* The client has come back to another daemon: says what it has of the one that was (resume.h).
     * Of what else that was yet to be told, nothing is. */
    void (*take_inventory)(struct caid_client *client, struct inventory *inventory);
    /* That lease could not be had again; its array may have been closed since. */
    void (*lost_lease)(struct caid_client *client, uint64_t lease);
    /* The connection has ended: there is nobody to send anything to. Calls in flight fail next. */
    void (*lost)(struct caid_client *client);
    /* Nothing runs in this CUDA context any more. Not under the lock. */
    void (*context_died)(struct caid_client *client, CUcontext context);
    /* Nobody uses the client any more, and nobody has the lock: gives back what the feature
     * still has. Sets client->keeps where the GPU may go on using some of it; features after it
     * see that. */
    void (*deinit)(struct caid_client *client);
    /* The same in a child after fork(), which frees host memory only. */
    void (*abandon)(struct caid_client *client);
};

/* Calls that hook of every feature that has it. */
#define FEATURES_DO(client, hook, ...)                                        \
    do                                                                        \
        for (const struct feature *const *f_ = (client)->features; *f_; f_++) \
            if ((*f_)->hook)                                                  \
                (*f_)->hook(__VA_ARGS__);                                     \
    while (0)
