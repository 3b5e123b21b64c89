/* SPDX-License-Identifier: Apache-2.0 */
/*
 * A watch on a name: a request that the daemon answers when the name's generation differs from the
 * one that it has sent last. It is in flight until then. The thread that reads the answer notes the
 * news. When the program has taken them (caid_watch_next(), or the callback of
 * caid_client_dispatch()), the next request is sent. So nothing is queued, and the latest news are
 * never missed.
 *
 * Made by caid_watch_new(), ended by caid_watch_close(). After the end of the connection only that
 * is left to do. References, under the client's lock: the caller's, the request's until it is over,
 * and one of every thread that waits or calls back; the struct is freed with the last. It has a
 * reference to the client.
 */
#pragma once

#include <stdbool.h>
#include <stdint.h>
#include <sys/queue.h>

#include "caid/caid.h"

TAILQ_HEAD(watch_list, caid_watch);

struct watch_table {        /* under the client's lock */
    struct watch_list all;  /* not closed */
    struct watch_list news; /* with news for a callback */
};

extern const struct feature watch_feature;

void watch_table_init(struct watch_table *table);
