/* SPDX-License-Identifier: Apache-2.0 */
/*
 * Driver calls under way, and whose turn it is. A job lives until its result is reported, or until
 * nobody waits for it any more and it has not begun.
 */
#pragma once

#include "actions.h"
#include "user.h"

enum job_type {
    JOB_ALLOC,
    JOB_RELEASE,
    JOB_MEMORY
};

struct job {
    RB_ENTRY(job) node; /* core->jobs, while it is under way */
    uint64_t id;
    enum job_type type;
    struct user *user;        /* whose turn it takes */
    struct charge charge;     /* MEMORY: who waits for a block's is charged */
    TAILQ_ENTRY(job) of_user; /* user->waiting, until it is its turn */
    bool begun;               /* it was */
    struct conn *conn;        /* who waits for it, or NULL */
    LIST_ENTRY(job) of_conn;
    uint32_t request; /* id of the request to answer */
    struct entry entry;
};

RB_HEAD(jobs, job);

RB_PROTOTYPE(jobs, job, node, )

/* Whether a further driver call may be started for conn. */
int job_admit(const struct core *core, const struct conn *conn, struct refusal *r);
/* Its action comes when it is the user's turn. */
void job_start(struct core *core, struct job *job, enum job_type type, struct user *user);
/* The same for a request of conn, which waits for the result; job_admit() has been asked. */
void job_start_for(struct core *core, struct job *job, enum job_type type, struct conn *conn,
                   uint32_t request);
/* Nobody waits for it any more: it is not made, and out of everything; false: it has begun. */
bool job_drop(struct core *core, struct job *job);
/* Nobody waits for one that has begun. */
void job_orphan(struct job *job);
/* After its result came; the user is to be settled. */
void job_end(struct core *core, struct job *job);
struct job *job_find(struct core *core, uint64_t id, enum job_type type);
