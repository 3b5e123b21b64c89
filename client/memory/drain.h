/* SPDX-License-Identifier: Apache-2.0 */
/*
 * Which GPU work may still use an array that is being closed, and waiting for it. Noted when
 * the array is closed, waited for later, on another thread. Work that can never end because its
 * context is dead, or gone, has ended. Where a context cannot be waited for (a stream in it
 * captures a graph while the client ends; the driver has no memory; ...), nobody knows: the
 * array is kept, leased and mapped, and the daemon gives its memory to nobody before the
 * process has exited.
 */
#pragma once

#include <stdbool.h>

#include "caid/caid.h"

#include "session/reaper.h"

struct caid_array;
struct caid_client;

/* Notes the contexts that may use the array: the primary one of the device that it is mapped
 * for (of every device, for pinned and managed memory), and the one that is current to this
 * thread. False: none is there. */
bool drain_note_contexts(struct caid_array *array);

/* Notes that only what is on this stream by now is to be waited for. */
int drain_note_stream(struct caid_array *array, uint64_t stream, struct caid_error *error);

/* Waits for what was noted of all of them, once per context, and frees managed memory; marks
 * those that are to be kept. No lock is held. */
void drain_arrays(struct caid_client *client, const struct reaped_queue *arrays);

/* Waits for all work of the array's contexts, or what is on the stream (not 0); fails when it
 * failed. */
int drain_writes(struct caid_array *array, uint64_t stream, struct caid_error *error);
