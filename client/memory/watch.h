/* SPDX-License-Identifier: Apache-2.0 */
/*
 * A watch on a name: a request that the daemon answers when the name's generation is another than
 * the one told last. It is in flight until then; whichever thread reads the answer
 * notes the news. When somebody has taken them (caid_watch_next(), or the callback of
 * caid_client_dispatch()), the next request is sent. So nothing is queued, and the latest is never
 * missed.
 *
 * Made by caid_watch_new(), ended by caid_watch_close(), or, when the connection ends, for all
 * but that. References, under the client's lock: the caller's, the request's until it is over,
 * and that of every thread that waits or calls back; the struct goes with the last one. It
 * holds the client.
 */
#pragma once

#include <stdbool.h>
#include <stdint.h>
#include <sys/queue.h>

#include "caid/caid.h"

TAILQ_HEAD(watch_list, caid_watch);

struct watch_table {        /* under the client's lock */
    struct watch_list all;  /* that are not closed */
    struct watch_list news; /* that have something to tell to a callback */
};

extern const struct feature watch_feature;

void watch_table_init(struct watch_table *table);
