/* SPDX-License-Identifier: Apache-2.0 */
/* Finds the daemon, and does the handshake: once, before anybody else has the client. */
#pragma once

#include <stddef.h>

#include "caid/caid.h"

struct caid_client;

/* The path of the daemon's socket: `given`, or, if that is NULL, the default of
 * caid_connect_options. ret_origin: " (from $CAID_SOCKET)" or "", static. CAID_ERR_NO_DAEMON: the
 * path is too long. */
int connect_path(char *ret, size_t size, const char *given, const char **ret_origin,
                 struct caid_error *error);

struct attempts { /* to connect; all zero at first */
    uint64_t deadline_ns;
    uint64_t left; /* how much the daemon had still to restore; 0: unknown */
    bool is_less;  /* than at the attempt before */
};

/* Connects a new client; the options have been read. After a failure the caller has to close it. */
int connect_client(struct caid_client *client, const struct caid_connect_options *options,
                   struct attempts *attempts, struct caid_error *error);
/* After a failure: pauses, and returns whether to try again, with another client. */
bool connect_pause(const struct attempts *attempts);
