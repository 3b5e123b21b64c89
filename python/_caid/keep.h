/* SPDX-License-Identifier: Apache-2.0 */
/*
 * Keep: what has to live as long as a part that was published: the array whose memory it is, as its
 * library would use that again; None for an Allocation, whose memory the arena keeps by itself.
 * Made before the part, for caid_part_options.gone; ends some time after that was called, or with
 * its client, which has it in a list. As long as there is one, caid/_memory/_releaser.py sees to
 * it that the client reads what the daemon tells: so the arena, too, hears that the memory may be
 * used again.
 *
 * gone() takes no GIL, as it may be called while the interpreter ends: it only notes the keep. It
 * is called by caid_client_dispatch(), caid_client_dispatch_parts() and caid_client_close(), which
 * this module alone calls: whoever did so drops what was noted.
 */
#pragma once

#include "module.h"

struct keep;

/* Of a client that is entered. NULL with an exception set. */
struct keep *py_keep_new(struct client_object *client, PyObject *op);
/* For caid_part_options: userdata is the keep. */
void py_keep_gone(void *keep);
/* There is no part. NULL is allowed. */
void py_keep_free(struct keep *keep);

/* Drops what is gone. An exception that is set stays. */
void py_keeps_drop(struct client_object *client);
/* Of a client that is about to be closed, without a call under way: drops all that is kept, so that
 * memory goes back before the connection ends. */
void py_keeps_let_go(struct client_object *client);
/* It is closed, and calls nothing back any more. */
void py_keeps_end(struct client_object *client);
int py_keeps_traverse(struct client_object *client, visitproc visit, void *arg);
