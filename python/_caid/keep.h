/* SPDX-License-Identifier: Apache-2.0 */
/*
 * Keep: a reference to the object that has to live as long as a published part. That is the array
 * of another library whose memory the part is, since the library would use the memory again; it is
 * None for an Allocation, whose memory the arena keeps by itself. A keep is made before its part,
 * for caid_part_options.gone. It ends some time after gone() was called, or with its client, which
 * has a list of its keeps. As long as a client has keeps, caid/_memory/_releaser.py has the client
 * read what the daemon sends: so the arena, too, hears that the memory may be used again.
 *
 * gone() takes no GIL, since it may be called while the interpreter ends: it only puts the keep on
 * a list. libcaid calls it from caid_client_dispatch(), caid_client_dispatch_parts() and
 * caid_client_close(), which only this module calls; their callers drop the keeps of that list.
 */
#pragma once

#include "module.h"

struct keep;

/* The caller has entered the client. NULL with an exception set. */
struct keep *py_keep_new(struct client_object *client, PyObject *op);
/* gone() of caid_part_options; its userdata is the keep. */
void py_keep_gone(void *keep);
/* Undoes py_keep_new() where no part was made. NULL is allowed. */
void py_keep_free(struct keep *keep);

/* Drops the keeps whose parts are gone. An exception that is set stays. */
void py_keeps_drop(struct client_object *client);
/* Drops all kept objects of a client that is about to be closed and has no call under way, so
 * that their memory goes back before the connection ends. */
void py_keeps_let_go(struct client_object *client);
/* Frees the keeps of a closed client, which makes no more callbacks. */
void py_keeps_end(struct client_object *client);
int py_keeps_traverse(struct client_object *client, visitproc visit, void *arg);
