/* SPDX-License-Identifier: Apache-2.0 */
/* The table of errors.def, looked up by number. */
#include <errno.h>
#include <stddef.h>

#include "msg.h"

const char *
proto_error_name(uint32_t code)
{
    switch (code) {
#define ERROR(name, number, err, text) \
    case number:                       \
        return #name;
#include "errors.def"
#undef ERROR
    default: return NULL;
    }
}

const char *
proto_error_text(uint32_t code)
{
    switch (code) {
#define ERROR(name, number, err, text) \
    case number:                       \
        return text;
#include "errors.def"
#undef ERROR
    default: return NULL;
    }
}

int
proto_error_errno(uint32_t code)
{
    switch (code) {
#define ERROR(name, number, err, text) \
    case number:                       \
        return err;
#include "errors.def"
#undef ERROR
    default: return EIO;
    }
}
