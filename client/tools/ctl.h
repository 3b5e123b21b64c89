/* SPDX-License-Identifier: Apache-2.0 */
/*
 * What the verbs of caidctl share: the options, the connection, and how they report. A verb is
 * called with the arguments that follow its name and returns the exit status: 0, 1 for what went
 * wrong here (usage, no daemon), 2 for what the daemon refused. It prints its result at the end,
 * or writes it to `out`, which goes to stdout when it is a whole document.
 */
#pragma once

#include <stdbool.h>
#include <stdint.h>

#include "caid/caid.h"

#include "base/macros.h"
#include "json.h"

enum ctl_exit {
    CTL_OK = 0,
    CTL_LOCAL = 1,
    CTL_REFUSED = 2
};

struct ctl {
    const char *socket; /* --socket, or NULL */
    const char *pool;   /* --pool, or NULL */
    const char *device; /* --device, or NULL */
    const char *prefix; /* --prefix, or NULL */
    const char *uid;    /* --uid, or NULL */
    const char *method; /* --method, or NULL */
    const char *svg;    /* --svg, or NULL */
    const char *delay;  /* --delay, or NULL */
    const char *pid;    /* --pid, or NULL */
    bool json, bytes, all, long_, unnamed, tickets, gone, ignore_missing, lost, force, undo;
    uint32_t count; /* --count, or 0 */
    bool is_quiet;  /* nothing is complained of */

    struct caid_client *client; /* NULL for a verb that needs none */
    struct caid_error error;
    struct json out;
};

/* "caidctl: WHAT: WHY" on stderr, controls escaped. */
void ctl_complain(const char *what, const char *why);

/* ctl->client. Negative: ctl->error. */
int ctl_connect(struct ctl *ctl);

/* The status to exit with after ctl->error; and with a complaint about what failed. */
int ctl_status(const struct ctl *ctl);
int ctl_failed(const struct ctl *ctl, const char *what);

/* The index of a device that was given as index or UUID; -1 after a complaint. */
int32_t ctl_device(const struct ctl *ctl, const char *text);

/* A number up to max, and nothing else. */
bool ctl_number(const char *text, unsigned long max, unsigned long *ret);

/* load and save become a program of the Python package's. Returns CTL_OK where it is another verb,
 * or CTL_LOCAL after a complaint. */
int verbs_weights(int argc, char **argv);

int verb_status(struct ctl *ctl, int argc, char **argv);
int verb_info(struct ctl *ctl, int argc, char **argv);
int verb_monitor(struct ctl *ctl, int argc, char **argv);
int verb_drain(struct ctl *ctl, int argc, char **argv);
int verb_flush(struct ctl *ctl, int argc, char **argv);
int verb_ping(struct ctl *ctl, int argc, char **argv);
int verb_version(struct ctl *ctl, int argc, char **argv);
int verb_list(struct ctl *ctl, int argc, char **argv);
int verb_show(struct ctl *ctl, int argc, char **argv);
int verb_map(struct ctl *ctl, int argc, char **argv);
int verb_top(struct ctl *ctl, int argc, char **argv);
int verb_pools(struct ctl *ctl, int argc, char **argv);
int verb_users(struct ctl *ctl, int argc, char **argv);
int verb_timelines(struct ctl *ctl, int argc, char **argv);
int verb_doctor(struct ctl *ctl, int argc, char **argv);
int verb_unlink(struct ctl *ctl, int argc, char **argv);
int verb_withdraw(struct ctl *ctl, int argc, char **argv);
/* show --tickets */
int show_tickets(struct ctl *ctl);
