/* SPDX-License-Identifier: Apache-2.0 */
/*
 * The hooks of a feature of the library (arrays, brackets, watches, ...), which the session calls
 * when something happens: those of all features, in the order of features.c, the one file that
 * knows all of them. The session itself knows no feature. A hook may be NULL.
 *
 * Hooks are called under the client's lock, unless their comment says otherwise. A hook that drops
 * the lock, or calls the driver, says so; the others do neither.
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
    /* ---- sending what the socket did not take at once ---- */

    bool (*has_unsent)(const struct caid_client *client);
    /* Sends it, as far as the socket takes it. Returns as call_flush(). Sends nothing after the end
     * of the connection. */
    int (*flush)(struct caid_client *client);

    /* ---- work for the client's thread (reaper.h) ---- */

    /* When tidy() has something to do: a time, 0 for now, UINT64_MAX for never. */
    uint64_t (*due)(const struct caid_client *client);
    /* Does the work that is due by now. `all`: also gives back what could stay for a while. May
     * drop the lock, and call the driver. */
    void (*tidy)(struct caid_client *client, bool all);
    /* Where the client's thread cannot be had: called by a thread that leaves the client. Does what
     * is due, and gives back all that is possible without waiting. May drop the lock, and call the
     * driver. */
    void (*tidy_here)(struct caid_client *client);
    /* Waits until nothing uses the closed objects, and ends them. Not under the lock. */
    void (*reap)(struct caid_client *client, struct reaped_queue *closed);

    /* ---- news for the program ---- */

    /* Whether caid_client_dispatch() would call back: then the client's fd is raised. */
    bool (*has_news)(const struct caid_client *client);
    /* Calls back for the news so far; drops the lock meanwhile. Returns r or, if that is 0, the
     * feature's own failure. */
    int (*deliver)(struct caid_client *client, int r, struct caid_error *error);

    /* ---- exchanges of addresses ---- */

    /* Whether the feature has work under way that uses the array of the lease. */
    bool (*uses)(const struct caid_client *client, uint64_t lease);

    /* ---- ends ---- */

    /* The daemon has hung up. Returns whether the client waits for another daemon; then the
     * connection has not ended. */
    bool (*hung_up)(struct caid_client *client);

    /* The client has come back to another daemon. Adds to the inventory what the client has of the
     * earlier daemon (resume.h). Drops everything else that was still to be sent to that one. */
    void (*take_inventory)(struct caid_client *client, struct inventory *inventory);
    /* The next daemon does not have that lease. Its array may have been closed since. */
    void (*lost_lease)(struct caid_client *client, uint64_t lease);
    /* The connection has ended: nothing can be sent. Calls in flight fail after this. */
    void (*lost)(struct caid_client *client);
    /* Nothing runs in this CUDA context any more. Not under the lock. */
    void (*context_died)(struct caid_client *client, CUcontext context);
    /* Nobody uses the client any more, and nobody has the lock: gives back all that the feature
     * has. Sets client->keeps if the GPU may go on using some of it, for the features after it. */
    void (*deinit)(struct caid_client *client);
    /* The same in a child after fork(): frees host memory only. */
    void (*abandon)(struct caid_client *client);
};

/* Calls that hook of every feature that has it. */
#define FEATURES_DO(client, hook, ...)                                        \
    do                                                                        \
        for (const struct feature *const *f_ = (client)->features; *f_; f_++) \
            if ((*f_)->hook)                                                  \
                (*f_)->hook(__VA_ARGS__);                                     \
    while (0)
