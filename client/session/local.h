/* SPDX-License-Identifier: Apache-2.0 */
/*
 * A client of no daemon: caid_driver_open(). It is a struct caid_client whose connection was
 * lost before it began, so that every call that needs the daemon fails with NO_DAEMON, and
 * whose devices are all that the driver has.
 */
#pragma once

#include "caid/caid.h"

struct caid_client;

/* Opens the driver for a new client, and lists its devices. driver: NULL or "" for what
 * $CAID_CUDA_DRIVER says. On failure the client is to be closed. */
int local_open(struct caid_client *client, const char *driver, struct caid_error *error);
