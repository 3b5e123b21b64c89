/* SPDX-License-Identifier: Apache-2.0 */
/*
 * Who takes part in channels, each with its rate, which is known from the second of two looks on.
 * The numbers are the word of the processes whose pages have them.
 */
#pragma once

#include "ctl.h"
#include "table.h"

struct channel_sample {
    uint64_t member, sequence, at_ns;
    double rate; /* frames a second, as of the last two looks; below 0: not known */
};

struct channels { /* {0}: nobody has looked */
    struct channel_sample *samples;
    size_t n;
};

void channels_deinit(struct channels *channels);

/* A look at the channels that the options list, of this name alone (NULL: of all). As report.h has
 * it: into ctl->out, under key, or as rows into the table. Returns the exit status. */
int channels_report(struct channels *channels, struct ctl *ctl, const char *key,
                    const struct caid_list_options *options, const char *name,
                    struct table *ret);
/* Looks, and prints nothing. *ret_n: of how many members. */
int channels_look(struct channels *channels, struct ctl *ctl,
                  const struct caid_list_options *options, const char *name, size_t *ret_n);
