/* SPDX-License-Identifier: Apache-2.0 */
/*
 * Signals and waits of a stream by each kind of hand-off (enum handoff): stream memory operations,
 * the host, inter-process events. Its only state is a slot's event, which belongs to the page
 * (page.h). All calls are under the lane's lock, with the stream's context current.
 */
#pragma once

#include <stdint.h>

#include "caid/caid.h"

#include "lane.h"
#include "session/stream.h"

/* Enqueues the store of a value, and stores that it is submitted. */
int enqueue_signal(struct caid_client *client, struct lane *lane, const struct stream *stream,
                   struct page *page, uint32_t slot, uint64_t value, struct caid_error *error);
/* Enqueues a wait. 1: the stream cannot wait; the host has to. */
int enqueue_wait(struct caid_client *client, struct lane *lane, const struct stream *stream,
                 const struct fence *fence, struct caid_error *error);
