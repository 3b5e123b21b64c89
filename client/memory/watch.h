/* SPDX-License-Identifier: Apache-2.0 */
/*
 * A watch on a name: a request that the daemon answers when the name's generation differs from the
 * one that it has sent last. It is in flight until then. The thread that reads the answer notes the
 * news. When the program has taken them (caid_watch_next(), or the callback of
 * caid_client_dispatch()), the next request is sent. So nothing is queued, and the latest news are
 * never missed.
 *
 * A watch of all names with a prefix has such a request, too, whose answer says that some have
 * changed. Then it looks: it sends the request again, and lists the names, by calls that nobody
 * waits for (known.h). It looks again when the program has been told all that the last look found.
 *
 * Made by caid_watch_new() or caid_watch_prefix(), ended by caid_watch_close(). After the end of
 * the connection only that is left to do. References, under the client's lock: the caller's, those
 * of the requests until they are over, and one of every thread that waits or calls back; the struct
 * is freed with the last. It has a reference to the client.
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
