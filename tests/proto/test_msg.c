/* SPDX-License-Identifier: Apache-2.0 */
/* Every message there and back, and every way in which its fields can be wrong. */
#include "caid_test.h"

#include "sample.h"

#define N_RANDOM 200

/* One direction of one method. */
struct leg {
    enum msg_method method;
    bool result;
};

static const struct record *
leg_record(struct leg leg)
{
    const struct method *method = &proto_methods[leg.method];
    return leg.result ? method->result : method->params;
}

static int
leg_encode(struct leg leg, struct msg_buf *b, const void *value)
{
    if (leg.result)
        return msg_encode_result(b, 7, leg.method, value);
    if (msg_method_is_request(leg.method))
        return msg_encode_request(b, 7, leg.method, value);
    return msg_encode_notify(b, leg.method, value);
}

/* value: of leg_record(leg)->size bytes; m stays open, since the value points into it. */
static int
leg_decode(struct leg leg, const void *packet, size_t n, struct msg *m, void *value)
{
    int r = msg_parse(m, packet, n);
    if (r < 0)
        return r;
    r = leg.result ? msg_decode_result(m, leg.method, value) : msg_decode_params(m, value);
    if (r < 0)
        msg_deinit(m);
    return r;
}

static void
for_each_leg(void (*check)(struct leg leg))
{
    for (uint32_t i = 0; i < MSG_N_METHODS; i++) {
        check((struct leg){(enum msg_method)i, false});
        if (msg_method_is_request((enum msg_method)i))
            check((struct leg){(enum msg_method)i, true});
    }
}

static void
check_envelope(struct leg leg, const struct msg *m)
{
    if (leg.result) {
        cr_assert_eq(m->type, MSG_RESPONSE);
        cr_assert_eq(m->error, 0);
    } else {
        cr_assert_eq(m->type, msg_method_is_request(leg.method) ? MSG_REQUEST : MSG_NOTIFY);
        cr_assert_eq(m->method, leg.method);
        cr_assert(msg_str_eq(m->method_name, msg_method_name(leg.method)));
    }
    if (m->type != MSG_NOTIFY)
        cr_assert_eq(m->id, 7);
}

static void
check_round_trip(struct leg leg, enum sample_mode mode, uint64_t seed)
{
    _cleanup_(sampler_deinit) struct sampler s;
    _cleanup_(msg_buf_deinit) struct msg_buf b = {0};
    _cleanup_(msg_deinit) struct msg m = {0};
    const struct record *record = leg_record(leg);

    sampler_init(&s, seed, mode);
    void *sent = sample_record(&s, record);
    _cleanup_free_ void *got = calloc(1, record->size + 1);
    cr_assert_eq(leg_encode(leg, &b, sent), 0);
    cr_assert_eq(leg_decode(leg, b.data, b.n, &m, got), 0, "%s", record->name);
    check_envelope(leg, &m);
    cr_assert(sample_equal(record, sent, got), "%s differs", record->name);
}

static void
round_trips(struct leg leg)
{
    check_round_trip(leg, SAMPLE_MINIMAL, 1);
    check_round_trip(leg, SAMPLE_FULL, 2);
    for (uint64_t seed = 0; seed < N_RANDOM; seed++)
        check_round_trip(leg, SAMPLE_RANDOM, seed);
}

CAID_TEST(msg, every_message_round_trips)
{
    for_each_leg(round_trips);
}

static void
mark_reached(const struct record *record, bool *reached)
{
    reached[record - proto_records] = true;
    for (uint32_t i = 0; i < record->n_fields; i++) {
        if (record->fields[i].of)
            mark_reached(record->fields[i].of, reached);
    }
}

CAID_TEST(msg, every_record_belongs_to_a_message)
{
    bool reached[N_RECORD_IDS] = {[RECORD_ID_error] = true};

    for (uint32_t i = 0; i < MSG_N_METHODS; i++) {
        mark_reached(proto_methods[i].params, reached);
        if (proto_methods[i].result)
            mark_reached(proto_methods[i].result, reached);
    }
    for (uint32_t i = 0; i < N_RECORD_IDS; i++)
        cr_assert(reached[i], "%s", proto_records[i].name);
}

/* ---- one change to one field of a packet ---- */

enum change {
    CHANGE_REMOVE,
    CHANGE_NIL,
    CHANGE_TRUE,
    CHANGE_ONE,
    CHANGE_MINUS_ONE,
    CHANGE_U64_MAX, /* too large for an I64 */
    CHANGE_STR,
    CHANGE_MAP,
    CHANGE_EMPTY_LIST,
    CHANGE_LIST_OF_NIL,
    CHANGE_LIST_OF_MINUS_ONE,
    CHANGE_LIST_OF_U64_MAX,
    CHANGE_LIST_OF_STR,
    N_CHANGES,
};

static msgpack_object elements[] = {
    {.type = MSGPACK_OBJECT_NIL},
    {.type = MSGPACK_OBJECT_NEGATIVE_INTEGER, .via.i64 = -1},
    {.type = MSGPACK_OBJECT_POSITIVE_INTEGER, .via.u64 = UINT64_MAX},
    {.type = MSGPACK_OBJECT_STR, .via.str = {1, "x"}},
};

static const msgpack_object changed_values[N_CHANGES] = {
    [CHANGE_NIL] = {.type = MSGPACK_OBJECT_NIL},
    [CHANGE_TRUE] = {.type = MSGPACK_OBJECT_BOOLEAN, .via.boolean = true},
    [CHANGE_ONE] = {.type = MSGPACK_OBJECT_POSITIVE_INTEGER, .via.u64 = 1},
    [CHANGE_MINUS_ONE] = {.type = MSGPACK_OBJECT_NEGATIVE_INTEGER, .via.i64 = -1},
    [CHANGE_U64_MAX] = {.type = MSGPACK_OBJECT_POSITIVE_INTEGER, .via.u64 = UINT64_MAX},
    [CHANGE_STR] = {.type = MSGPACK_OBJECT_STR, .via.str = {1, "x"}},
    [CHANGE_MAP] = {.type = MSGPACK_OBJECT_MAP},
    [CHANGE_EMPTY_LIST] = {.type = MSGPACK_OBJECT_ARRAY},
    [CHANGE_LIST_OF_NIL] = {.type = MSGPACK_OBJECT_ARRAY, .via.array = {1, elements}},
    [CHANGE_LIST_OF_MINUS_ONE] = {.type = MSGPACK_OBJECT_ARRAY, .via.array = {1, elements + 1}},
    [CHANGE_LIST_OF_U64_MAX] = {.type = MSGPACK_OBJECT_ARRAY, .via.array = {1, elements + 2}},
    [CHANGE_LIST_OF_STR] = {.type = MSGPACK_OBJECT_ARRAY, .via.array = {1, elements + 3}},
};

#define BIT(change) (1U << (change))

/* The values that each type of field takes. */
static const unsigned allowed_changes[] = {
    [FIELD_BOOL] = BIT(CHANGE_TRUE),
    [FIELD_U64] = BIT(CHANGE_ONE) | BIT(CHANGE_U64_MAX),
    [FIELD_I64] = BIT(CHANGE_ONE) | BIT(CHANGE_MINUS_ONE),
    [FIELD_STR] = BIT(CHANGE_STR),
    [FIELD_I64S] = BIT(CHANGE_EMPTY_LIST) | BIT(CHANGE_LIST_OF_MINUS_ONE),
    [FIELD_U64S] = BIT(CHANGE_EMPTY_LIST) | BIT(CHANGE_LIST_OF_U64_MAX),
    [FIELD_STRS] = BIT(CHANGE_EMPTY_LIST) | BIT(CHANGE_LIST_OF_STR),
    [FIELD_RECORDS] = BIT(CHANGE_EMPTY_LIST),
};

static bool
change_is_allowed(enum change change, const struct field *f)
{
    if (change == CHANGE_REMOVE)
        return !f->required;
    return allowed_changes[f->type] & BIT(change);
}

/* Finds the countdown-th field of a map and what is nested in it, in the order of the packet. */
struct search {
    uint32_t countdown;
    msgpack_object *map;
    uint32_t at;
    const struct field *field;
};

static bool search_map(struct search *search, const struct record *record, msgpack_object *map);

static bool
search_nested(struct search *search, const struct field *f, msgpack_object *list)
{
    for (uint32_t i = 0; f->type == FIELD_RECORDS && i < list->via.array.size; i++) {
        if (search_map(search, f->of, &list->via.array.ptr[i]))
            return true;
    }
    return false;
}

static bool
search_map(struct search *search, const struct record *record, msgpack_object *map)
{
    for (uint32_t i = 0; i < map->via.map.size; i++) {
        const struct field *f =
            &record->fields[i]; /* full samples have every field, in order */
        if (search->countdown-- == 0) {
            search->map = map;
            search->at = i;
            search->field = f;
            return true;
        }
        if (search_nested(search, f, &map->via.map.ptr[i].val))
            return true;
    }
    return false;
}

static void
apply_change(const struct search *at, enum change change)
{
    msgpack_object_map *map = &at->map->via.map;

    if (change == CHANGE_REMOVE)
        map->ptr[at->at] = map->ptr[--map->size];
    else
        map->ptr[at->at].val = changed_values[change];
}

static int
decode_object(struct leg leg, msgpack_object object)
{
    msgpack_sbuffer buffer;
    msgpack_packer packer;
    struct msg m;

    msgpack_sbuffer_init(&buffer);
    msgpack_packer_init(&packer, &buffer, msgpack_sbuffer_write);
    msgpack_pack_object(&packer, object);
    _cleanup_free_ void *value = malloc(leg_record(leg)->size + 1);
    int r = leg_decode(leg, buffer.data, buffer.size, &m, value);
    if (r == 0)
        msg_deinit(&m);
    msgpack_sbuffer_destroy(&buffer);
    return r;
}

/* A full packet of the leg, as a tree of objects that may be changed. */
static void
make_tree(struct leg leg, struct msg_buf *b, msgpack_unpacked *ret)
{
    _cleanup_(sampler_deinit) struct sampler s;

    sampler_init(&s, 5, SAMPLE_FULL);
    cr_assert_eq(leg_encode(leg, b, sample_record(&s, leg_record(leg))), 0);
    msgpack_unpacked_init(ret);
    cr_assert_eq(msgpack_unpack_next(ret, (const char *)b->data, b->n, NULL),
                 MSGPACK_UNPACK_SUCCESS);
}

static msgpack_object *
tree_body(msgpack_unpacked *tree)
{
    msgpack_object_array *envelope = &tree->data.via.array;
    return &envelope->ptr[envelope->size - 1];
}

/* Changes the n-th field of the leg's packet; false when it has fewer. */
static bool
check_change(struct leg leg, uint32_t n, enum change change)
{
    _cleanup_(msg_buf_deinit) struct msg_buf b = {0};
    _cleanup_(msgpack_unpacked_destroy) msgpack_unpacked tree;
    struct search search = {.countdown = n};

    make_tree(leg, &b, &tree);
    if (!search_map(&search, leg_record(leg), tree_body(&tree)))
        return false;
    apply_change(&search, change);
    cr_assert_eq(decode_object(leg, tree.data),
                 change_is_allowed(change, search.field) ? 0 : -EPROTO, "%s: %s, change %d",
                 msg_method_name(leg.method), search.field->key, change);
    return true;
}

static void
changes(struct leg leg)
{
    for (int change = 0; change < N_CHANGES; change++) {
        uint32_t n = 0;
        while (check_change(leg, n, (enum change)change))
            n++;
        cr_assert_geq(n, leg_record(leg)->n_fields);
    }
}

CAID_TEST(msg, every_field_missing_or_of_another_type)
{
    for_each_leg(changes);
}

static void
unknown_keys(struct leg leg)
{
    _cleanup_(msg_buf_deinit) struct msg_buf b = {0};
    _cleanup_(msgpack_unpacked_destroy) msgpack_unpacked tree;

    make_tree(leg, &b, &tree);
    msgpack_object_map *map = &tree_body(&tree)->via.map;
    uint32_t n = map->size;
    msgpack_object_kv more[PROTO_MAP_MAX] = {
        {.key = {.type = MSGPACK_OBJECT_STR, .via.str = {7, "unknown"}},
         .val = changed_values[CHANGE_LIST_OF_NIL]}};
    if (n > 0)
        memcpy(more + 1, map->ptr, n * sizeof(*more));
    map->ptr = more;
    map->size = n + 1;
    cr_assert_eq(decode_object(leg, tree.data), 0, "%s", msg_method_name(leg.method));
}

CAID_TEST(msg, unknown_keys_are_ignored)
{
    for_each_leg(unknown_keys);
}

static void
truncations(struct leg leg)
{
    _cleanup_(sampler_deinit) struct sampler s;
    _cleanup_(msg_buf_deinit) struct msg_buf b = {0};
    struct msg m;

    sampler_init(&s, 11, SAMPLE_FULL);
    cr_assert_eq(leg_encode(leg, &b, sample_record(&s, leg_record(leg))), 0);
    for (size_t n = 0; n < b.n; n++) {
        _cleanup_free_ uint8_t *cut = malloc(n ? n : 1); /* so that reading on would show */
        memcpy(cut, b.data, n);
        cr_assert_eq(msg_parse(&m, cut, n), -EPROTO, "cut at %zu", n);
    }
    _cleanup_free_ uint8_t *longer = calloc(1, b.n + 1);
    memcpy(longer, b.data, b.n);
    cr_assert_eq(msg_parse(&m, longer, b.n + 1), -EPROTO, "a byte too many");
}

CAID_TEST(msg, truncated_at_every_byte)
{
    for_each_leg(truncations);
}
