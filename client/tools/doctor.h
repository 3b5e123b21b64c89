/* SPDX-License-Identifier: Apache-2.0 */
/*
 * The checks of `caidctl doctor`. A check is a small function that looks at one thing and returns a
 * finding: fine, a warning (it works, but is slow or at risk), or a problem (it does not work). A
 * warning or a problem comes with a remedy. Each kind of finding has an id for programs, which
 * never changes.
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

/* The state that the checks look at, from doctor_init() to doctor_deinit(). Fields are NULL or 0
 * where no daemon answers, or this process has no driver. */
struct doctor {
    struct ctl *ctl; /* client NULL: no daemon answers; then error says why */
    bool silent;     /* a daemon has accepted, and not answered for DOCTOR_PATIENCE_S */

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

/* Calls fn for each finding, in order. device -1: it is not about a device. The finding is valid
 * during the call. */
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

/* The lists end with a check without a name. */
extern const struct check doctor_checks_first[];  /* always; the daemon, this process */
extern const struct check doctor_checks_device[]; /* for each of the daemon's devices */
extern const struct check doctor_checks_daemon[]; /* where a daemon answers: its state */
