/* SPDX-License-Identifier: Apache-2.0 */
/*
 * A connection that speaks the protocol without libcaid: what is sent is the caller's choice, and
 * what comes may be left unread. A function that fails ends the process.
 */
#pragma once

#include "msg.h"

struct wire {
    int sock;
    struct msg_buf out;
    uint64_t lease; /* that the caller has by it */
};

/* Answers are counted there from now on. */
void wire_count(_Atomic uint64_t *answers);

/* Connects, and says hello. */
void wire_init(struct wire *ret, const char *path);
/* The same; false: it is refused. */
bool wire_open(struct wire *ret, const char *path);
void wire_deinit(struct wire *w);

/* Encodes a request or a notification into w->out and sends it. */
void wire_send(struct wire *w, enum msg_method method, const void *params);
/* What was sent last, once more. false: the daemon has ended the connection. */
bool wire_repeat(const struct wire *w);
/* The next packet, in a buffer that all share; fds that come with it are dropped. Its length, 0:
 * the daemon has ended the connection, or refuses in the same way. */
size_t wire_receive(const struct wire *w);
/* The same, parsed, into *ret unless that is NULL: valid until the next one. The error's number, 0
 * for none. */
uint32_t wire_answer(const struct wire *w, enum msg_method method, void *ret);
/* wire_send(), and its answer, into *ret unless that is NULL: valid until the next one. */
void wire_call(struct wire *w, enum msg_method method, const void *params, void *ret);
/* The same, where it may be refused: the error's number, 0 for none. */
uint32_t wire_try(struct wire *w, enum msg_method method, const void *params, void *ret);
/* The same as wire_call(), and the fd that comes with it. */
int wire_call_fd(struct wire *w, enum msg_method method, const void *params, void *ret);
