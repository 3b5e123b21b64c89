/* SPDX-License-Identifier: Apache-2.0 */
/* Commands for tests: README.md, "Observation", has them all. */
#pragma once

#include <stddef.h>

#include "serve.h"

/* 0 or -errno. */
int control_start(struct server *server, const char *where);
