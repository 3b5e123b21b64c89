/* SPDX-License-Identifier: Apache-2.0 */
/*
 * What `caidctl doctor` looks at. A check is a small function that looks at one thing and tells
 * what it found: fine, a warning (it works, and costs something or is at risk), or a problem
 * (something does not work), the last two with what to do about it. What can be told has an id, by
 * which programs know it; it stays as it is.
 */
#pragma once

#include <stdint.h>
#include <sys/stat.h>

#include "ctl.h"
#include "drv.h"

enum doctor_level {
    DOCTOR_OK,
    DOCTOR_WARNING,
    DOCTOR_PROBLEM,
    DOCTOR_N_LEVELS,
};

const char *doctor_level_name(enum doctor_level level); /* "ok", "warning", "problem" */

struct finding {
    enum doctor_level level;
    const char *id; /* static */
    char *found;
    char *remedy; /* NULL with ok */
};

/* What the checks look at, from doctor_init() to doctor_deinit(). What there is none of is NULL or
 * 0: a daemon may not answer, and this process may have no driver. */
struct doctor {
    struct ctl *ctl; /* client NULL: no daemon answers; then error says why */
    bool silent;     /* one has taken the connection, and said nothing for DOCTOR_PATIENCE_S */

    char socket[108];
    const char *origin; /* of that path: client/session/connect.h */
    int socket_error;   /* 0 or -errno: connect_path(), stat(2) or access(2) */
    struct stat socket_stat;

    struct caid_status status;
    const struct caid_device *const *devices; /* the daemon's */
    int32_t n_devices;

    struct drv *drv; /* this process's own */
    const char *driver_choice;
    struct drv_error driver_error;
};

#define DOCTOR_PATIENCE_S 5

/* Connects, and looks for a driver. */
void doctor_init(struct doctor *doctor, struct ctl *ctl);
void doctor_deinit(struct doctor *doctor);

/* Calls fn for each finding, in order; device -1: it is of none. The finding lives for the call. */
typedef void doctor_fn(const char *what, int32_t device, const struct finding *finding,
                       void *userdata);
void doctor_run(const struct doctor *doctor, doctor_fn *fn, void *userdata);

/* ---- for checks: each calls one of these, once; then finding_remedy() unless it is ok ---- */

void finding_set(struct finding *ret, enum doctor_level level, const char *id, const char *fmt,
                 ...) PRINTF(4, 5);
#define finding_ok(ret, ...)      finding_set(ret, DOCTOR_OK, __VA_ARGS__)
#define finding_warning(ret, ...) finding_set(ret, DOCTOR_WARNING, __VA_ARGS__)
#define finding_problem(ret, ...) finding_set(ret, DOCTOR_PROBLEM, __VA_ARGS__)
void finding_remedy(struct finding *ret, const char *fmt, ...) PRINTF(2, 3);

void finding_deinit(struct finding *finding);

/* The daemon did not answer a question: ctl->error. */
void finding_no_answer(struct finding *ret, const struct doctor *doctor);

/* ---- checks ---- */

struct check {
    const char *what;
    void (*look)(const struct doctor *doctor, int32_t device, struct finding *ret);
};

/* Ended by one without a name. */
extern const struct check doctor_checks_first[];  /* always; the daemon, this process */
extern const struct check doctor_checks_device[]; /* for each of the daemon's devices */
extern const struct check doctor_checks_daemon[]; /* where a daemon answers: its state */
