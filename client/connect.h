/* SPDX-License-Identifier: Apache-2.0 */
/* Where the daemon's socket is: for caid_connect(), and for `caidctl doctor`. */
#pragma once

#include <stddef.h>

#include "caid/caid.h"

/* given, or NULL for what caid_connect_options says. ret_origin: " (from $CAID_SOCKET)" or "",
 * static. CAID_ERR_NO_DAEMON: a path that is too long. */
int connect_path(char *ret, size_t size, const char *given, const char **ret_origin,
                 struct caid_error *error);
