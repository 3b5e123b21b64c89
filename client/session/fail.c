/* SPDX-License-Identifier: Apache-2.0 */
#include "fail.h"

#include <stdarg.h>
#include <stdio.h>
#include <string.h>

#include "text.h"

#define ERROR(name, number, err, text) \
    _Static_assert((int)CAID_ERR_##name == number, "caid.h and errors.def differ: " #name);
#include "errors.def"
#undef ERROR

/* Numbers that a daemon may send; those above are made here. */
#define WIRE_CODE_MAX 63

static size_t format(struct caid_error *error, const char *fmt, va_list args) PRINTF(2, 0);

/* Returns the message's length. */
static size_t
format(struct caid_error *error, const char *fmt, va_list args)
{
    int n = vsnprintf(error->message, sizeof(error->message), fmt, args);
    if (n < 0)
        error->message[0] = 0;
    text_trim(error->message);
    return strlen(error->message);
}

static void
append(struct caid_error *error, size_t at, const char *text)
{
    snprintf(error->message + at, sizeof(error->message) - at, ": %s", text);
    text_trim(error->message);
}

int
fail(struct caid_error *error, int32_t code, const char *fmt, ...)
{
    if (error) {
        va_list args;
        va_start(args, fmt);
        format(error, fmt, args);
        va_end(args);
        error->code = code;
        error->cuda_result = 0;
    }
    return -proto_error_errno((uint32_t)code);
}

int
fail_errno(struct caid_error *error, int err, const char *fmt, ...)
{
    if (error) {
        va_list args;
        char why[128];
        va_start(args, fmt);
        size_t n = format(error, fmt, args);
        va_end(args);
        append(error, n, strerror_r(err, why, sizeof(why)));
        error->code = CAID_ERR_SYSTEM;
        error->cuda_result = 0;
    }
    return -err;
}

static int32_t
driver_code(int r)
{
    switch (r) {
    case -ENOMEM: return CAID_ERR_NO_MEMORY;
    case -ENODEV: return CAID_ERR_DEVICE;
    case -ENOTSUP:
    case -ENOSYS: return CAID_ERR_UNSUPPORTED;
    default: return CAID_ERR_DRIVER;
    }
}

int
fail_driver(struct caid_error *error, int r, const struct drv_error *cause, const char *fmt,
            ...)
{
    int32_t code = driver_code(r);

    if (error) {
        va_list args;
        char why[128];
        va_start(args, fmt);
        size_t n = format(error, fmt, args);
        va_end(args);
        append(error, n, cause->message[0] ? cause->message : strerror_r(-r, why, sizeof(why)));
        error->code = code;
        error->cuda_result = cause->result;
    }
    return -proto_error_errno((uint32_t)code);
}

int
fail_wire(struct caid_error *error, const struct msg *reply)
{
    int n = reply->error_text.n < sizeof(error->message) ? (int)reply->error_text.n
                                                         : (int)sizeof(error->message);

    if (reply->error > WIRE_CODE_MAX)
        return fail(error, CAID_ERR_PROTOCOL, "the daemon sent an unknown error %u: %.*s",
                    reply->error, n, reply->error_text.p ? reply->error_text.p : "");
    if (error) {
        const char *text = proto_error_text(reply->error);
        if (n > 0)
            snprintf(error->message, sizeof(error->message), "%.*s", n, reply->error_text.p);
        else
            snprintf(error->message, sizeof(error->message), "%s", text ? text : "refused");
        text_trim(error->message);
        error->code = (int32_t)reply->error;
        error->cuda_result = reply->error_cuda;
    }
    return -proto_error_errno(reply->error);
}

bool
code_is_short(int32_t code)
{
    return code == CAID_ERR_NO_MEMORY || code == CAID_ERR_QUOTA || code == CAID_ERR_LIMIT;
}

int
fail_again(struct caid_error *error, const struct caid_error *earlier)
{
    if (error)
        *error = *earlier;
    return -proto_error_errno((uint32_t)earlier->code);
}
