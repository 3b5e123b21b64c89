/* SPDX-License-Identifier: Apache-2.0 */
/*
 * A call that was given up. What its caller has is the caller's again at once: struct call, its
 * params, what it takes the reply into. In its place another call is in flight, on the heap, with
 * the same number, which owns what is needed to take the reply; when that has come, or the
 * connection has ended, its `end` gives back what was granted, and frees it. So each request in
 * flight has one call at any time, which is freed by whoever waits for it, or by its end.
 *
 * What has an effect and grants nothing (unlink, publish) has it all the same: its caller cannot
 * know. Where no thread of the program reads, the client's own does, now and then, as long as there
 * are such calls. No barrier waits for them (memory/block.c): blocks stay known here meanwhile.
 */
#pragma once

#include "call.h"
#include "standing.h"

extern const struct feature late_feature;

/* One that takes the reply by take, or NULL, and keeps nothing. NULL: no memory. */
struct call *late_new(int (*take)(struct caid_client *client, struct call *call,
                                  const void *result, struct call_fds *fds));

/* A call in flight that stands, and whose answer matters to others though nobody here waits for it:
 * it is looked for, too. Under lock. */
void late_look_for(struct caid_client *client, struct call *call);

/* Has a request sent that undoes what came late, as standing_ask(): it is looked for, too. */
bool late_ask(struct caid_client *client, struct standing *standing);

/* Puts another one in the place of a call that is in flight, which is over then, with that error.
 * Where there is no memory for it, the connection has ended. Under lock. */
void late_give_up(struct caid_client *client, struct call *call, const struct caid_error *why);
