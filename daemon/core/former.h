/* SPDX-License-Identifier: Apache-2.0 */
/*
 * Connections of an earlier core whose clients come back. Each is restored as a departed one, with
 * its holds and pages. When the same process connects and knows its token (hello), it goes on as
 * that connection (conn_return()), and is told what the client has (resume). Should the client hang
 * up before it has told it all, it has told nothing, and is awaited as before.
 *
 * What a bracket reads, and which leases there are, is recorded nowhere. So it is in doubt (struct
 * doubts), by block, since who uses an array has its block, and for arrays without bytes by pool:
 *
 *   CLAIMS   As long as a holder of the block, or one that may read the pool, has not told what it
 *            has, nor exited, nor is late, an array without a name is kept, and one that was being
 *            written is not read: who wrote it may say that it is whole. What of that nobody has
 *            claimed by then goes, or is abandoned.
 *   STREAMS  Until then, and until their streams have stored what was submitted by the restart,
 *            nothing is written, but by brackets that were open.
 *   PLACE    As long as holders live that may use it, an old part is there, since its publisher
 *            writes where it was when he hears that it is gone. Else a range that has been given up
 *            is set aside meanwhile (block->aside).
 *
 * Who says nothing for 30 seconds is late, and who has not told it all by a time in which all
 * arrays can be told of: it is hung up, and a departed connection as any other. That ends doubts;
 * what it may have mapped is nobody's before its process has exited (I2). Streams may take their
 * time.
 */
#pragma once

#include "conn.h"

struct array;
struct core;
struct restore_array;

/* The arrays are found by their numbers, while they come back and there are former ones.
 * -ENOMEM. */
int formers_begin(struct core *core, const struct restore_array *arrays, size_t n);
/* All n arrays are back: from now on its time runs for each former one. */
void formers_wait(struct core *core, size_t n);
/* A departed one will come back. Its holds follow. */
void former_new(struct core *core, struct conn *conn);
/* Of a process that has exited, or come back, told it all and done it; the connection goes, or is
 * like any other. */
void former_end(struct core *core, struct conn *conn);
/* The array is in doubt: it was being written by that connection, or, 0, it has no name.
 * -ENOMEM. */
int former_doubt(struct array *array, uint64_t writer);

/* It can be taken up. */
static inline bool
former_is_awaited(const struct conn *conn)
{
    return conn->former && conn->departed && !conn->returned && !conn->exited;
}

/* One of that process is awaited, and the user's places are taken by them: others may come in
 * theirs. */
bool former_keeps_place(const struct core *core, const struct user *user, pid_t pid);
/* The one with that token, if its process is conn's; or NULL. */
struct conn *former_find(const struct conn *conn, struct msg_u64s token);
/* Its client has come back, by that token. */
void former_resume(struct core *core, struct conn *conn, const uint64_t token[static 2]);
/* It tells something of what it has: it is not late yet. */
void former_goes_on(const struct core *core, struct conn *conn);
/* While it resumes. -ENOMEM or REFUSED, where the client has not got what it says; a lease that
 * cannot be had any more is in `lost`, of which there is room for n. */
int former_claim_leases(struct core *core, struct conn *conn, struct msg_u64s pairs,
                        bool readonly, uint64_t *lost, uint32_t *n_lost, struct refusal *r);
int former_claim_rest(struct core *core, struct conn *conn,
                      const struct msg_resume_params *params, struct refusal *r);
/* The array's writer was conn, and is known. */
bool former_claim_write(struct conn *conn, struct array *array);
/* It is in doubt again. */
void former_unclaim_write(const struct conn *conn, struct array *array);
/* It has told it all: what it has not is given back. `leaves`: its holds alone stay. */
void former_done(struct core *core, struct conn *conn, bool leaves);

/* It hangs up: while it resumes, it is awaited again. */
void former_hangup(struct conn *conn);
/* Looks whether what streams were to store is stored, and who is late. */
void formers_look(struct core *core);
/* Some of what is in doubt no longer. Whether some is left. */
bool doubts_settle(struct core *core);
/* When the core ends. */
void formers_forget(struct core *core);
