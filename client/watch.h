/* SPDX-License-Identifier: Apache-2.0 */
/*
 * A watch on a name: a request that the daemon answers when the name's generation is another
 * than the one told last. It stands (call.h) until then; whichever thread reads the answer
 * notes the news. When somebody has taken them (caid_watch_next(), or the callback of
 * caid_client_dispatch()), the next request is sent. So nothing is queued, and the latest is
 * never missed.
 *
 * Made by caid_watch_new(), ended by caid_watch_close(), or, when the connection ends, for all
 * but that. References, under the client's lock: the caller's, the request's while it stands,
 * and that of every thread that waits or calls back; the struct goes with the last one. It
 * holds the client.
 *
 * A request, or its cancellation, that the socket did not take, is sent by watch_flush().
 */
#pragma once

#include <stdbool.h>
#include <stdint.h>
#include <sys/queue.h>

#include "caid/caid.h"

struct caid_client;

TAILQ_HEAD(watch_list, caid_watch);

struct watch_table {          /* under the client's lock */
    struct watch_list all;    /* that are not closed */
    struct watch_list news;   /* that have something to tell to a callback */
    struct watch_list unsent; /* to be asked for again, or cancelled */
    int wake_fd;              /* wakes the one that reads for all; -1: no watch was made yet */
};

void watch_table_init(struct watch_table *table);
void watch_table_deinit(struct watch_table *table);

/* All of these under the client's lock. */
int watch_flush(struct caid_client *client); /* 0, -EAGAIN, -ENOMEM, ... as call_flush() */
bool watch_has_unsent(const struct caid_client *client);
bool watch_has_news(const struct caid_client *client);
/* Wakes one that waits for news, to read. */
void watch_read_on(struct caid_client *client);
/* Calls back whoever has news, with the lock dropped. Fails with what a watch was refused for.
 * */
int watch_deliver(struct caid_client *client, struct caid_error *error);
