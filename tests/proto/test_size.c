/* SPDX-License-Identifier: Apache-2.0 */
/* Rooms of records: exact where bytes are the limit, and a packet filled by them is within both. */
#include "caid_test.h"

#include "sample.h"

#define N_RANDOM   200
#define ITEM_SHARE (PROTO_PACKET_MAX / PROTO_ITEMS_MAX)

/* Objects in one that msgpack-c has read. */
static size_t
count_objects(const msgpack_object *o)
{
    size_t n = 1;

    for (uint32_t i = 0; o->type == MSGPACK_OBJECT_ARRAY && i < o->via.array.size; i++)
        n += count_objects(&o->via.array.ptr[i]);
    for (uint32_t i = 0; o->type == MSGPACK_OBJECT_MAP && i < o->via.map.size; i++)
        n += 1 + count_objects(&o->via.map.ptr[i].val);
    return n;
}

struct measure {
    size_t bytes, items;
};

static struct measure
measure(enum msg_method method, const void *result)
{
    _cleanup_(msg_buf_deinit) struct msg_buf b = {0};
    struct msg m;

    cr_assert_eq(msg_encode_result(&b, 1, method, result), 0);
    cr_assert_eq(msg_parse(&m, b.data, b.n), 0);
    size_t items = count_objects(&m.root);
    msg_deinit(&m);
    return (struct measure){b.n, items};
}

/* What a result has more than the same without its one record. */
static void
check_room(enum msg_method method, const void *with, const void *without, size_t room)
{
    struct measure a = measure(method, with), b = measure(method, without);
    size_t bytes = a.bytes - b.bytes, share = (a.items - b.items) * ITEM_SHARE;

    cr_assert_eq(room, bytes > share ? bytes : share, "%s", msg_method_name(method));
}

/* Any sample of a record, in a list of a result, has the room that its function says. */
#define CHECK_RECORD(s, METHOD, result, record, list)                          \
    do {                                                                       \
        const struct msg_##record *value =                                     \
            sample_record((s), &proto_records[RECORD_ID_##record]);            \
        struct msg_##result with = {.list = value, .n_##list = 1};             \
        struct msg_##result without = {.list = value};                         \
        check_room(MSG_##METHOD, &with, &without, msg_##record##_size(value)); \
    } while (0)

CAID_TEST(size, rooms_are_exact)
{
    for (int mode = 0; mode < N_SAMPLE_MODES; mode++) {
        for (uint64_t seed = 0; seed < N_RANDOM; seed++) {
            _cleanup_(sampler_deinit) struct sampler s;
            sampler_init(&s, seed, (enum sample_mode)mode);
            CHECK_RECORD(&s, OPEN, arrays_result, block, blocks);
            CHECK_RECORD(&s, LIST, list_result, entry, entries);
            CHECK_RECORD(&s, SHOW, details, holder, holders);
            CHECK_RECORD(&s, UNNAMED, unnamed_result, details, arrays);
            CHECK_RECORD(&s, USERS, users_result, user, users);
            CHECK_RECORD(&s, POOLS, pools_result, pool, pools);
            CHECK_RECORD(&s, MEMORY_INFO, memory_result, memory_info, devices);
            CHECK_RECORD(&s, BEGIN, fences_result, fence, fences);
            CHECK_RECORD(&s, BEGIN, fences_result, page, pages);
            CHECK_RECORD(&s, TIMELINES, timelines_result, timeline_entry, timelines);
        }
    }
}

/* The lease is known only after it is known that the array fits. */
CAID_TEST(size, an_array_has_room_for_any_lease)
{
    for (uint64_t seed = 0; seed < N_RANDOM; seed++) {
        _cleanup_(sampler_deinit) struct sampler s;
        sampler_init(&s, seed, SAMPLE_RANDOM);
        struct msg_array *array = sample_record(&s, &proto_records[RECORD_ID_array]);
        struct msg_arrays_result with = {.arrays = array, .n_arrays = 1};
        struct msg_arrays_result without = {.arrays = array};

        array->lease = 0;
        size_t room = msg_array_size(array);
        array->lease = UINT64_MAX;
        check_room(MSG_OPEN, &with, &without, room);
    }
}

CAID_TEST(size, every_width_of_an_integer)
{
    static const int64_t edges[] = {0,         1,      127,    128,        255,
                                    256,       65535,  65536,  UINT32_MAX, INT64_C(1) << 32,
                                    INT64_MAX, -1,     -32,    -33,        -128,
                                    -129,      -32768, -32769, INT32_MIN,  INT64_C(-2147483649),
                                    INT64_MIN};

    for (size_t i = 0; i < ARRAY_SIZE(edges); i++) {
        struct msg_entry entry = {.shape = {&edges[i], 1}, .uid = (uint64_t)edges[i]};
        struct msg_list_result with = {.entries = &entry, .n_entries = 1};
        struct msg_list_result without = {.entries = &entry};
        entry.name = MSG_STR("long enough that the bytes, not the objects, are the limit here: "
                             "an entry has some twenty objects, thus eighty bytes at least");
        check_room(MSG_LIST, &with, &without, msg_entry_size(&entry));
    }
}

CAID_TEST(size, every_width_of_a_list)
{
    static const int64_t extents[PROTO_NDIM_MAX] = {INT64_MIN, INT64_MIN, INT64_MIN};
    struct msg_entry entry = {.name = MSG_STR("long enough that the bytes are the limit"),
                              .shape.v = extents};
    struct msg_list_result with = {.entries = &entry, .n_entries = 1};
    struct msg_list_result without = {.entries = &entry};

    entry.device = entry.typestr = entry.name;
    for (entry.shape.n = 0; entry.shape.n <= PROTO_NDIM_MAX; entry.shape.n++)
        check_room(MSG_LIST, &with, &without, msg_entry_size(&entry));
}

CAID_TEST(size, what_fits_into_no_packet_has_the_size_of_one)
{
    _cleanup_free_ char *text = calloc(1, PROTO_PACKET_MAX + 1);
    struct msg_entry entry = {.name = {text, PROTO_PACKET_MAX}};

    cr_assert_geq(msg_entry_size(&entry), PROTO_PACKET_MAX);
}

/* ---- filling packets ---- */

#define RESERVED 256 /* for the packet's other fields */

/* Packets that n arrays of one kind take, where as many go into each as there is room for. */
static uint32_t
count_packets(const struct msg_array *array, uint32_t n)
{
    _cleanup_free_ struct msg_array *arrays = calloc(n, sizeof(*arrays));
    struct msg_arrays_result result = {.pool = MSG_STR("uid:1000"), .arrays = arrays};
    uint32_t packets = 0;

    for (uint32_t at = 0; at < n; at += result.n_arrays, packets++) {
        size_t left = PROTO_PACKET_MAX - RESERVED;
        result.n_arrays = 0;
        while (at + result.n_arrays < n && left >= msg_array_size(array)) {
            left -= msg_array_size(array);
            arrays[result.n_arrays] = *array;
            arrays[result.n_arrays].lease = at + result.n_arrays;
            result.n_arrays++;
        }
        cr_assert_gt(result.n_arrays, 0);
        measure(MSG_OPEN, &result);
    }
    return packets;
}

CAID_TEST(size, ten_thousand_small_arrays_need_few_packets)
{
    static const int64_t shape = 16;
    struct msg_array array = {.block = 12,
                              .offset = UINT64_C(32) << 20,
                              .nbytes = 64,
                              .typestr = MSG_STR("<f4"),
                              .shape = {&shape, 1},
                              .generation = 100000};

    cr_assert_leq(count_packets(&array, 10000), 16);
}

CAID_TEST(size, many_small_objects_do_not_pass_their_limit)
{
    static const int64_t ones[PROTO_NDIM_MAX];
    struct msg_array array = {.typestr = MSG_STR("|u1"),
                              .shape = {ones, PROTO_NDIM_MAX},
                              .strides = {ones, PROTO_NDIM_MAX}};

    cr_assert_gt(count_packets(&array, 1000), 4, "objects are what fills these packets");
}
