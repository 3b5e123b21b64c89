/* SPDX-License-Identifier: Apache-2.0 */
/*
 * How libcaid reports errors: each function fills the caller's struct caid_error (NULL is allowed),
 * and returns -errno by the code (errors.def).
 */
#pragma once

#include <stdbool.h>

#include "caid/caid.h"

#include "base/macros.h"
#include "drv.h"
#include "msg.h"

int fail(struct caid_error *error, int32_t code, const char *fmt, ...) PRINTF(3, 4);

/* CAID_ERR_SYSTEM. Appends ": " and the text of err, which is positive. Returns -err. */
int fail_errno(struct caid_error *error, int err, const char *fmt, ...) PRINTF(3, 4);

/* A call of driver/ has failed with r. Its message is appended. */
int fail_driver(struct caid_error *error, int r, const struct drv_error *cause, const char *fmt,
                ...) PRINTF(4, 5);

/* A refusal by the daemon, with its text. */
int fail_wire(struct caid_error *error, const struct msg *reply);

/* Whether the code says that something is exhausted which the caller may be able to give back. */
bool code_is_short(int32_t code);

/* A copy of an error that was noted earlier. */
int fail_again(struct caid_error *error, const struct caid_error *earlier);
