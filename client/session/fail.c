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

/* The highest code that a daemon may send; higher ones are made here. */
#define WIRE_CODE_MAX 63

/* why: appended to the text after ": "; or NULL. */
static void PRINTF(5, 0) fill(struct caid_error *error, int32_t code, int32_t cuda_result,
                              const char *why, const char *fmt, va_list args)
{
    if (!error)
        return;
    text_format(error->message, sizeof(error->message), fmt, args);
    size_t n = strlen(error->message);
    if (why)
        snprintf(error->message + n, sizeof(error->message) - n, ": %s", why);
    text_trim(error->message);
    error->code = code;
    error->cuda_result = cuda_result;
}

int
fail(struct caid_error *error, int32_t code, const char *fmt, ...)
{
    va_list args;

    va_start(args, fmt);
    fill(error, code, 0, NULL, fmt, args);
    va_end(args);
    return -proto_error_errno((uint32_t)code);
}

int
fail_errno(struct caid_error *error, int err, const char *fmt, ...)
{
    char why[128];
    va_list args;

    va_start(args, fmt);
    fill(error, CAID_ERR_SYSTEM, 0, strerror_r(err, why, sizeof(why)), fmt, args);
    va_end(args);
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
    char text[128];
    va_list args;

    const char *why = cause->message[0] ? cause->message : strerror_r(-r, text, sizeof(text));
    va_start(args, fmt);
    fill(error, code, cause->result, why, fmt, args);
    va_end(args);
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
