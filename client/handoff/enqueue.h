/* SPDX-License-Identifier: Apache-2.0 */
/*
 * How a stream signals and waits, by each of the ways of handing off (enum handoff): by stream
 * memory operations, by the host, by events of several processes. Keeps nothing but a slot's event,
 * which is the page's (page.h). All under the lane's lock, with the stream's context current.
 */
#pragma once

#include <stdint.h>

#include "caid/caid.h"

#include "lane.h"
#include "session/stream.h"

/* Enqueues the store of a value and tells that it is submitted. */
int enqueue_signal(struct caid_client *client, struct lane *lane, const struct stream *stream,
                   struct page *page, uint32_t slot, uint64_t value, struct caid_error *error);
/* Enqueues a wait. 1: it cannot be; the host has to wait. */
int enqueue_wait(struct caid_client *client, struct lane *lane, const struct stream *stream,
                 const struct fence *fence, struct caid_error *error);
