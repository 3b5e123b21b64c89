/* SPDX-License-Identifier: Apache-2.0 */
/*
 * A driver call. A job lives until its result is reported; one that has not begun, until nobody
 * waits for it any more.
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
    RB_ENTRY(job) node; /* core->jobs, from job_start() on */
    uint64_t id;
    enum job_type type;
    struct user *user; /* in whose turn it is made */
    /* MEMORY: its own; a block's job is charged to those who wait for it */
    struct charge charge;
    TAILQ_ENTRY(job) of_user; /* user->waiting, until it begins */
    bool begun;               /* it was */
    struct conn *conn;        /* who waits for the result, or NULL */
    LIST_ENTRY(job) of_conn;
    uint32_t request; /* the request to answer */
    struct entry entry;
};

RB_HEAD(jobs, job);

RB_PROTOTYPE(jobs, job, node, )

/* Whether another driver call may be made for conn. REFUSED. */
int job_admit(const struct core *core, const struct conn *conn, struct refusal *r);
/* Queues the job: its action comes in the user's turn. */
void job_start(struct core *core, struct job *job, enum job_type type, struct user *user);
/* Queues the job for a request of conn, after job_admit(). */
void job_start_for(struct core *core, struct job *job, enum job_type type, struct conn *conn,
                   uint32_t request);
/* Nobody waits for the job: it is taken back. false: it has begun. */
bool job_drop(struct core *core, struct job *job);
/* Nobody waits for a job that has begun. */
void job_orphan(struct job *job);
/* The result has come. The caller settles the user. */
void job_end(struct core *core, struct job *job);
struct job *job_find(struct core *core, uint64_t id, enum job_type type);
