/* SPDX-License-Identifier: Apache-2.0 */
/*
 * Former connections: those of an earlier core, whose clients may resume. Each is restored as a
 * departed connection, with its holds and pages. When the same process connects and gives its token
 * (HELLO), the new connection takes the place of the former one (conn_take_over()), and the client
 * says what it has (RESUME). A client that hangs up before it has said all of it has said nothing,
 * and may resume again.
 *
 * The journal records neither leases nor what a bracket reads. Until clients have said what they
 * have, arrays are in doubt (struct doubts): by block, since whoever uses an array has its block,
 * and by pool where arrays have no bytes.
 *
 *   HOLDERS  A holder of the block, or a client that may read the pool, may still resume. Arrays
 *            without a name are kept, since the client may have them. Arrays that were being
 *            written cannot be read, since the writer may say that they are whole. Afterwards an
 *            array that no client has is freed, and one that no writer has completed is abandoned.
 *   STREAMS  The same, or streams of theirs have not yet stored what was submitted before the
 *            restart. Only brackets that were open then may write.
 *   PLACE    A holder lives that may use an old part. The part is kept, since its publisher writes
 *            to its place as soon as he hears that it is gone. A range that has been given up is
 *            set aside meanwhile (block->aside).
 *
 * A client that says nothing for 30 seconds is late; so is one that has not said all by a time in
 * which all arrays can be said. It is hung up on, and its connection is a departed one like any
 * other. That ends the doubts. What its process may have mapped is given to nobody until the
 * process has exited (I2). Streams have no deadline.
 */
#pragma once

#include "conn.h"

struct array;
struct core;
struct restore_array;

/* Arrays are found by their old numbers from now on, as long as they are being restored or there
 * are former connections. -ENOMEM. */
int formers_begin(struct core *core, const struct restore_array *arrays, size_t n);
/* All n arrays are restored: from now on each former connection has a deadline. */
void formers_wait(struct core *core, size_t n);
/* The client of this departed connection may resume. Its holds are restored afterwards. */
void former_new(struct core *core, struct conn *conn);
/* The process has exited, or is not waited for: what it had not said, and what its streams have not
 * stored, is lost. To be called before anything of it goes. */
void former_exit(struct conn *conn);
/* The client is about to give blocks back: it is done with what it was writing there before the
 * restart, unless its context has died. */
void former_forgets(struct conn *conn);
/* The process has exited, or has resumed and all that it had submitted has landed: the connection
 * is freed, or is like any other. */
void former_end(struct core *core, struct conn *conn);
/* The array is in doubt: it was being written by that connection, or, 0, it has no name.
 * -ENOMEM. */
int former_doubt(struct array *array, uint64_t writer);
/* The same, by several. -ENOMEM. */
int former_doubt_several(struct array *array, uint64_t writers);

/* Its client has not come back, and may. */
static inline bool
former_may_resume(const struct conn *conn)
{
    return conn->former && conn->departed && !conn->resumed && !conn->exited;
}

/* A former connection of that process may resume, and such connections take up all that the user
 * may have: a new one of the process may be let in, in place of the former. */
bool former_keeps_place(const struct core *core, const struct user *user, pid_t pid);
/* The former connection with that token, if it may resume and is of conn's process; or NULL. */
struct conn *former_find(const struct conn *conn, struct msg_u64s token);
/* The former connection was kicked: gives it up. Its client is told when it comes back, unless
 * there was a restart since. */
void former_kick(struct core *core, struct conn *conn, uid_t by);
/* Whether the connection that had that token was, and what its client is told then. */
bool former_was_kicked(const struct core *core, struct msg_u64s token, struct refusal *r);
void refuse_kicked(struct refusal *r, uid_t by);
/* Its client has come back with that token, and is resuming. */
void former_resume(struct core *core, struct conn *conn, const uint64_t token[static 2]);
/* The client has said something of what it has: its deadline is put off. */
void former_goes_on(const struct core *core, struct conn *conn);
/* What a resuming client says that it has. -ENOMEM; REFUSED: it cannot have that. Leases that are
 * gone are put into `lost`, which has room for all. */
int former_resume_leases(struct core *core, struct conn *conn, struct msg_u64s pairs,
                         bool readonly, uint64_t *lost, uint32_t *n_lost, struct refusal *r);
int former_resume_rest(struct core *core, struct conn *conn,
                       const struct msg_resume_params *params, struct refusal *r);
/* conn was writing the array, and says so. false: it was not. */
bool former_resume_write(struct conn *conn, struct array *array);
/* The array is in doubt again. */
void former_unresume_write(const struct conn *conn, struct array *array);
/* The client has said all that it has: the rest is given back. `leaves`: only its holds stay. */
void former_done(struct core *core, struct conn *conn, bool leaves);

/* Waits no longer for the client of a former connection, which is then like any other that has hung
 * up, or is to. What the client may have mapped stays set aside. */
void former_give_up(struct core *core, struct conn *conn);
/* The connection has hung up. If it was resuming, it may resume again. */
void former_hangup(struct conn *conn);
/* Looks which streams have stored all that was submitted, and which clients are late. */
void formers_look(struct core *core);
/* Settles some of the doubts that have ended. Returns whether more are left. */
bool doubts_settle(struct core *core);
/* Drops all doubts when the core ends. */
void formers_forget(struct core *core);
