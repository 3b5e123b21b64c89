/* SPDX-License-Identifier: Apache-2.0 */
/* Finding the daemon, and the handshake with it: once, before anybody else has the client. */
#pragma once

#include <stddef.h>

#include "caid/caid.h"

struct caid_client;

/* Where the daemon's socket is. given, or NULL for what caid_connect_options says. ret_origin: "
 * (from $CAID_SOCKET)" or "", static. CAID_ERR_NO_DAEMON: a path that is too long. */
int connect_path(char *ret, size_t size, const char *given, const char **ret_origin,
                 struct caid_error *error);

struct attempts { /* to connect: all zero at first */
    uint64_t deadline_ns;
    uint64_t left; /* what was not back at the daemon, by its last answer; 0: it did not say */
    bool is_less;  /* than by the one before */
};

/* Connects a new client; the options have been read. On failure it is to be closed. */
int connect_client(struct caid_client *client, const struct caid_connect_options *options,
                   struct attempts *attempts, struct caid_error *error);
/* After that has failed: pauses, and says whether to try again, with another client. */
bool connect_pause(const struct attempts *attempts);
