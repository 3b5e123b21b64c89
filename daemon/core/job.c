/* SPDX-License-Identifier: Apache-2.0 */
/*
 * The driver makes as many calls at a time as the shell has threads for. Other calls wait, by uid,
 * and the uids take turns. So a uid that asks for thousands, or whose end gives back thousands of
 * blocks, delays another uid's next call by one call (I6).
 */
#include "job.h"

#include <assert.h>

#include "state.h"

RB_GENERATE_BY(jobs, job, node, id)

static void
jobs_run(struct core *core)
{
    struct user *user;
    struct job *job;

    while (!core->stopping && core->n_running < core->config.threads &&
           (user = TAILQ_FIRST(&core->turns))) {
        job = TAILQ_FIRST(&user->waiting);
        TAILQ_REMOVE(&user->waiting, job, of_user);
        TAILQ_REMOVE(&core->turns, user, turn);
        if (!TAILQ_EMPTY(&user->waiting))
            TAILQ_INSERT_TAIL(&core->turns, user, turn);
        core->n_running++;
        job->begun = true;
        entry_push(core, &job->entry);
    }
}

int
job_admit(const struct core *core, const struct conn *conn, struct refusal *r)
{
    if (core->stopping)
        return refuse(r, PROTO_ERR_SHUTDOWN, "the daemon is stopping");
    return user_check(conn->user, RES_JOBS, 1, r);
}

void
job_start(struct core *core, struct job *job, enum job_type type, struct user *user)
{
    job->id = ++core->next_job;
    job->type = type;
    job->user = user;
    job->conn = NULL;
    job->begun = false;
    job->entry.action.job = job->id;
    RB_INSERT(jobs, &core->jobs, job);
    core->n_jobs++;
    if (TAILQ_EMPTY(&user->waiting))
        TAILQ_INSERT_TAIL(&core->turns, user, turn);
    /* a release goes first: there is one at a time, and others may wait for it */
    if (type == JOB_RELEASE)
        TAILQ_INSERT_HEAD(&user->waiting, job, of_user);
    else
        TAILQ_INSERT_TAIL(&user->waiting, job, of_user);
    jobs_run(core);
}

void
job_start_for(struct core *core, struct job *job, enum job_type type, struct conn *conn,
              uint32_t request)
{
    job_start(core, job, type, conn->user);
    job->conn = conn;
    job->request = request;
    LIST_INSERT_HEAD(&conn->jobs, job, of_conn);
}

void
job_orphan(struct job *job)
{
    LIST_REMOVE(job, of_conn);
    job->conn = NULL;
}

static void
job_remove(struct core *core, struct job *job)
{
    if (job->conn)
        job_orphan(job);
    charge_deinit(&job->charge);
    RB_REMOVE(jobs, &core->jobs, job);
    core->n_jobs--;
}

bool
job_drop(struct core *core, struct job *job)
{
    struct user *user = job->user;

    if (job->begun)
        return false;
    TAILQ_REMOVE(&user->waiting, job, of_user);
    if (TAILQ_EMPTY(&user->waiting))
        TAILQ_REMOVE(&core->turns, user, turn);
    job_remove(core, job);
    return true;
}

void
job_end(struct core *core, struct job *job)
{
    job_remove(core, job);
    core->n_running--;
    jobs_run(core);
}

struct job *
job_find(struct core *core, uint64_t id, enum job_type type)
{
    struct job key = {.id = id}, *job = RB_FIND(jobs, &core->jobs, &key);

    assert(job && job->type == type); /* the shell reports each job once */
    return job;
}
