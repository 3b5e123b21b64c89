/* SPDX-License-Identifier: Apache-2.0 */
/*
 * Fuzzes what a hostile peer reaches first: parses the input and decodes it as every message.
 * What decodes must mean the same after it was encoded and decoded again.
 */
#include "sample.h"

int LLVMFuzzerTestOneInput(const uint8_t *data, size_t size);

/* Records are small: none is larger than this, which check_again() makes sure of. */
union value {
    uint64_t words[64];
};

static void
require(bool condition)
{
    if (!condition)
        abort();
}

static int
encode_again(struct msg_buf *b, const struct msg *m, enum msg_method method, const void *value)
{
    switch (m->type) {
    case MSG_REQUEST: return msg_encode_request(b, m->id, method, value);
    case MSG_NOTIFY: return msg_encode_notify(b, method, value);
    default: return msg_encode_result(b, m->id, method, value);
    }
}

static int
decode(struct msg *m, enum msg_method method, union value *ret)
{
    m->method = method;
    if (m->type == MSG_RESPONSE)
        return msg_decode_result(m, method, ret);
    return msg_decode_params(m, ret);
}

static void
check_again(struct msg *m, enum msg_method method)
{
    const struct method *entry = &proto_methods[method];
    const struct record *record = m->type == MSG_RESPONSE ? entry->result : entry->params;
    _cleanup_(msg_buf_deinit) struct msg_buf b = {0};
    union value value, again;
    struct msg m2;

    require(!record || record->size <= sizeof(value));
    if (decode(m, method, &value) < 0)
        return;
    if (msg_method_is_request(method) != (m->type != MSG_NOTIFY))
        return; /* decodes, but is never sent that way */
    require(encode_again(&b, m, method, &value) == 0);
    require(msg_parse(&m2, b.data, b.n) == 0);
    require(decode(&m2, method, &again) == 0);
    require(sample_equal(record, &value, &again));
    msg_deinit(&m2);
}

int
LLVMFuzzerTestOneInput(const uint8_t *data, size_t size)
{
    struct msg m;

    if (msg_parse(&m, data, size) < 0)
        return 0;
    for (uint32_t i = 0; i < MSG_N_METHODS; i++)
        check_again(&m, (enum msg_method)i);
    msg_deinit(&m);
    return 0;
}
