/* SPDX-License-Identifier: Apache-2.0 */
/*
 * The options, the connection and the reporting that the verbs of caidctl share. A verb is called
 * with the arguments after its name, and returns the exit status. It prints its result at the end,
 * or writes it to `out`, which goes to stdout when the document is complete.
 */
#pragma once

#include <stdbool.h>
#include <stdint.h>

#include "caid/caid.h"

#include "base/macros.h"
#include "json.h"

enum ctl_exit {
    CTL_OK = 0,
    CTL_LOCAL = 1,  /* an error here: usage, no daemon */
    CTL_REFUSED = 2 /* a refusal by the daemon */
};

struct ctl {
    const char *socket;  /* --socket, or NULL */
    const char *pool;    /* --pool, or NULL */
    const char *device;  /* --device, or NULL */
    const char *prefix;  /* --prefix, or NULL */
    const char *pattern; /* what listed names match, or NULL */
    const char *uid;     /* --uid, or NULL */
    const char *method;  /* --method, or NULL */
    const char *svg;     /* --svg, or NULL */
    const char *delay;   /* --delay, or NULL */
    const char *sort;    /* --sort, or NULL */
    const char *pid;     /* --pid, or NULL */
    bool json, bytes, batch, all, long_, unnamed, tickets, gone, ignore_missing, lost, force,
        undo;
    uint32_t count;      /* --count, or 0 */
    uint64_t n_unlinked; /* names that unlink has removed */
    bool is_quiet;       /* ctl_failed() prints nothing */

    struct caid_client *client; /* NULL for a verb that needs none */
    struct caid_error error;
    struct json out;
};

/* "caidctl: WHAT: WHY" on stderr, controls escaped. */
void ctl_complain(const char *what, const char *why);

/* Sets ctl->client. < 0: ctl->error is filled. */
int ctl_connect(struct ctl *ctl);

/* The exit status for ctl->error. ctl_failed() also complains about `what`. */
int ctl_status(const struct ctl *ctl);
int ctl_failed(const struct ctl *ctl, const char *what);

/* The index of a device that was given as index or UUID; -1 after a complaint. */
int32_t ctl_device(const struct ctl *ctl, const char *text);

/* Whether text is a number up to max, and nothing else. */
bool ctl_number(const char *text, unsigned long max, unsigned long *ret);

/* Whether text is a number of seconds between two looks; complains if not. */
bool ctl_seconds(const char *text, double *ret);

/* For load, save, get and put, replaces this process by a program of the Python package. Returns
 * CTL_OK for another verb, CTL_LOCAL after a complaint. */
int verbs_package(int argc, char **argv);

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
int verb_stat(struct ctl *ctl, int argc, char **argv);
int verb_top(struct ctl *ctl, int argc, char **argv);
int verb_pools(struct ctl *ctl, int argc, char **argv);
int verb_users(struct ctl *ctl, int argc, char **argv);
int verb_timelines(struct ctl *ctl, int argc, char **argv);
int verb_channels(struct ctl *ctl, int argc, char **argv);
int verb_doctor(struct ctl *ctl, int argc, char **argv);
int verb_watch(struct ctl *ctl, int argc, char **argv);
int verb_unlink(struct ctl *ctl, int argc, char **argv);
int verb_connections(struct ctl *ctl, int argc, char **argv);
int verb_kick(struct ctl *ctl, int argc, char **argv);
int verb_withdraw(struct ctl *ctl, int argc, char **argv);
/* show --tickets */
int show_tickets(struct ctl *ctl);
