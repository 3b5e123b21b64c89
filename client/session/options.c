/* SPDX-License-Identifier: Apache-2.0 */
#include "options.h"

#include <string.h>

#include "base/clock.h"
#include "fail.h"
#include "text.h"

int
options_read(void *ret, size_t size, const void *options, struct caid_error *error)
{
    size_t given;

    memset(ret, 0, size);
    if (!options)
        return 0;
    memcpy(&given, options, sizeof(given));
    if (given < sizeof(given))
        return fail(error, CAID_ERR_INVALID, "struct_size of the options is %zu", given);
    memcpy(ret, options, given < size ? given : size);
    return 0;
}

int
result_write(void *ret, const void *result, size_t size, struct caid_error *error)
{
    size_t given;

    if (!ret)
        return fail(error, CAID_ERR_INVALID, "the result struct is NULL");
    memcpy(&given, ret, sizeof(given));
    if (given < sizeof(given))
        return fail(error, CAID_ERR_INVALID, "struct_size of the result is %zu", given);
    if (given > size)
        given = size;
    memcpy((char *)ret + sizeof(given), (const char *)result + sizeof(given),
           given - sizeof(given));
    return 0;
}

int
check_text(const char *what, const char *s, bool needed, struct caid_error *error)
{
    if (!s)
        return needed ? fail(error, CAID_ERR_INVALID, "%s is NULL", what) : 0;
    if (!text_is_utf8(s))
        return fail(error, CAID_ERR_INVALID, "%s is not UTF-8", what);
    return 0;
}

int
check_name(const char *name, struct caid_error *error)
{
    if (!name)
        return fail(error, CAID_ERR_INVALID_NAME, "the array's name is NULL");

    size_t n = strnlen(name, PROTO_NAME_MAX + 1);
    if (n == 0 || n > PROTO_NAME_MAX)
        return fail(error, CAID_ERR_INVALID_NAME, "a name has 1 to %d bytes, not %zu",
                    PROTO_NAME_MAX, strlen(name));
    if (!text_is_utf8(name))
        return fail(error, CAID_ERR_INVALID_NAME, "a name is UTF-8, which this one is not");
    return 0;
}

int
check_pool(const char *pool, struct caid_error *error)
{
    if (!pool)
        return 0;
    if (strnlen(pool, PROTO_POOL_MAX + 1) > PROTO_POOL_MAX)
        return fail(error, CAID_ERR_INVALID_NAME, "a pool's name has at most %d bytes, not %zu",
                    PROTO_POOL_MAX, strlen(pool));
    if (!text_is_utf8(pool))
        return fail(error, CAID_ERR_INVALID_NAME, "a pool's name is UTF-8");
    return 0;
}

int
check_metadata(const char *metadata, struct caid_error *error)
{
    if (metadata && strnlen(metadata, PROTO_METADATA_MAX + 1) > PROTO_METADATA_MAX)
        return fail(error, CAID_ERR_INVALID, "metadata has at most %d bytes, not %zu",
                    PROTO_METADATA_MAX, strlen(metadata));
    return check_text("metadata", metadata, false, error);
}

int
check_type(const char *typestr, const char *descr, const char *metadata,
           struct caid_error *error)
{
    int r = check_text("typestr", typestr, true, error);
    if (r == 0)
        r = check_text("descr", descr, false, error);
    return r < 0 ? r : check_metadata(metadata, error);
}

int
check_shape(uint32_t ndim, const int64_t *shape, struct caid_error *error)
{
    if (ndim > PROTO_NDIM_MAX)
        return fail(error, CAID_ERR_INVALID, "ndim %u: at most %d", ndim, PROTO_NDIM_MAX);
    if (ndim > 0 && !shape)
        return fail(error, CAID_ERR_INVALID, "shape is NULL, ndim is %u", ndim);
    return 0;
}

uint64_t
deadline_of(uint64_t timeout_ns)
{
    uint64_t deadline_ns;

    if (__builtin_add_overflow(clock_now_ns(), timeout_ns, &deadline_ns))
        return UINT64_MAX;
    return deadline_ns;
}
