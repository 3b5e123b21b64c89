/* SPDX-License-Identifier: Apache-2.0 */
/*
 * A daemon that breaks the protocol: whatever it sends becomes an error at the caller, ends the
 * connection where it must, and leaves no fd and no memory behind (CAID_TEST).
 */
#include <fcntl.h>
#include <poll.h>
#include <pthread.h>
#include <semaphore.h>
#include <stdlib.h>
#include <string.h>
#include <sys/mman.h>
#include <sys/socket.h>
#include <unistd.h>

#include "base/macros.h"
#include "caid/arena.h"
#include "caid/channel.h"
#include "caid/handoff.h"
#include "caid_test.h"
#include "daemon.h"
#include "fake.h"

#define BLOCK_SIZE (UINT64_C(1) << 21)
#define N_BLOCKS   200

static const struct msg_none nothing;

/* ---- replies to open, each with one thing wrong ---- */

struct answer {
    struct msg_array arrays[2];
    struct msg_block blocks[N_BLOCKS];
    struct msg_arrays_result result;
    size_t n_fds;
    int64_t shape[33], strides[33];
};

static void
answer_init(struct answer *a)
{
    *a = (struct answer){.shape = {4}, .strides = {4}, .n_fds = 1};
    a->arrays[0] = (struct msg_array){
        .lease = 11,
        .block = 13,
        .nbytes = 16,
        .typestr = MSG_STR("<f4"),
        .shape = {a->shape, 1},
        .generation = 1,
    };
    a->arrays[1] = a->arrays[0];
    a->arrays[1].lease = 21;
    a->blocks[0] = (struct msg_block){
        .block = 13,
        .size = BLOCK_SIZE,
        .device = MSG_STR(fake_uuid()),
        .kind = MSG_STR("device"),
    };
    a->blocks[1] = a->blocks[0];
    a->blocks[1].block = 14;
    a->result = (struct msg_arrays_result){
        .pool = MSG_STR("uid:0"),
        .arrays = a->arrays,
        .n_arrays = 1,
        .blocks = a->blocks,
        .n_blocks = 1,
    };
}

static const uint64_t handle[9];

static void
make_legacy(struct answer *a)
{
    a->blocks[0].kind = MSG_STR("legacy");
    a->blocks[0].handle = (struct msg_u64s){handle, 8};
    a->n_fds = 0;
}

/* Blocks of this kind need no fd: there may be more than fds in a packet. */
static void
make_many_blocks(struct answer *a)
{
    make_legacy(a);
    for (uint64_t i = 1; i < N_BLOCKS; i++) {
        a->blocks[i] = a->blocks[0];
        a->blocks[i].block += i;
    }
    a->result.n_blocks = N_BLOCKS;
}

static void
make_empty(struct answer *a)
{
    a->shape[0] = 0;
    a->arrays[0].nbytes = 0;
    a->arrays[0].block = 0;
    a->arrays[0].device = MSG_STR(fake_uuid());
    a->result.n_blocks = 0;
    a->n_fds = 0;
}

static void
make_dimensions(struct answer *a, uint32_t n, int64_t each, uint64_t nbytes)
{
    for (uint32_t i = 0; i < n; i++)
        a->shape[i] = each;
    a->arrays[0].shape.n = n;
    a->arrays[0].nbytes = nbytes;
    a->arrays[0].block = nbytes ? 13 : 0;
}

static void
make_strides(struct answer *a, int64_t stride, uint32_t n)
{
    a->strides[0] = stride;
    a->arrays[0].strides = (struct msg_i64s){a->strides, n};
}

/* What is wrong, and how it is made so. 2^64 elements are none, when that is not checked. */
#define SPOILERS(X)                                                         \
    X(no_array, a->result.n_arrays = 0)                                     \
    X(more_arrays, a->result.n_arrays = 2)                                  \
    X(no_lease, a->arrays[0].lease = 0)                                     \
    X(no_block, a->result.n_blocks = 0, a->n_fds = 0)                       \
    X(unknown_block, a->arrays[0].block = 99)                               \
    X(block_for_nothing, a->shape[0] = 0, a->arrays[0].nbytes = 0)          \
    X(nowhere, make_empty(a), a->arrays[0].device.p = NULL)                 \
    X(offset_of_nothing, make_empty(a), a->arrays[0].offset = 1)            \
    X(bytes_without_block, a->arrays[0].block = 0)                          \
    X(unknown_device, a->arrays[0].device = MSG_STR("GPU-0"))               \
    X(block_device, a->blocks[0].device = MSG_STR("GPU-0"))                 \
    X(beyond, a->arrays[0].offset = BLOCK_SIZE - 12)                        \
    X(far_beyond, a->arrays[0].offset = UINT64_MAX - 4)                     \
    X(too_many_bytes, a->arrays[0].nbytes = 17)                             \
    X(negative, a->shape[0] = -4)                                           \
    X(bad_typestr, a->arrays[0].typestr = MSG_STR("<f"))                    \
    X(zero_itemsize, a->arrays[0].typestr = MSG_STR("|V0"))                 \
    X(block_id_zero, a->blocks[0].block = 0)                                \
    X(block_size_zero, a->blocks[0].size = 0)                               \
    X(block_size_huge, a->blocks[0].size = UINT64_MAX)                      \
    X(block_kind, a->blocks[0].kind = MSG_STR("video"))                     \
    X(no_handle, a->blocks[0].kind = MSG_STR("legacy"), a->n_fds = 0)       \
    X(short_handle, make_legacy(a), a->blocks[0].handle.n = 7)              \
    X(long_handle, make_legacy(a), a->blocks[0].handle.n = 9)               \
    X(handle_and_fd, make_legacy(a), a->n_fds = 1)                          \
    X(mapped_device, a->arrays[0].memory = MSG_STR("mapped"))               \
    X(other_memory, a->arrays[0].memory = MSG_STR("pinned"))                \
    X(managed, a->arrays[0].memory = MSG_STR("managed"))                    \
    X(nul_in_metadata, a->arrays[0].metadata = (struct msg_str){"x\0y", 3}) \
    X(fd_index, a->blocks[0].fd = 1)                                        \
    X(fd_index_huge, a->blocks[0].fd = UINT64_MAX)                          \
    X(no_fd, a->n_fds = 0)                                                  \
    X(extra_fd, a->n_fds = 2)                                               \
    X(same_fd_twice, a->result.n_blocks = 2, a->n_fds = 2)                  \
    X(many_blocks, make_many_blocks(a))                                     \
    X(block_of_nobody, make_legacy(a), a->blocks[0].block = 14)             \
    X(many_blocks_for_nothing, make_empty(a), make_many_blocks(a))          \
    X(too_many_dimensions, make_dimensions(a, 33, 1, 4))                    \
    X(overflowing_shape, make_dimensions(a, 2, INT64_C(1) << 32, 0))        \
    X(strides_beyond, make_strides(a, (int64_t)(BLOCK_SIZE / 3), 1))        \
    X(strides_before, make_strides(a, -4, 1))                               \
    X(strides_overflow, make_strides(a, INT64_MAX, 1))                      \
    X(strides_of_another_length, make_strides(a, 4, 2))                     \
    X(misaligned, a->arrays[0].offset = 2)                                  \
    X(misaligned_strides, make_strides(a, 6, 1))                            \
    X(nul_in_pool, a->result.pool = (struct msg_str){"x\0y", 3})

#define SPOILER(name, ...)             \
    static void name(struct answer *a) \
    {                                  \
        __VA_ARGS__;                   \
    }
SPOILERS(SPOILER)
#undef SPOILER

static const struct spoiler {
    const char *name;
    void (*spoil)(struct answer *a);
} spoilers[] = {

#define SPOILER(name, ...) {#name, name},
    SPOILERS(SPOILER)
#undef SPOILER
};

static void
send_answer(struct fake *fake, struct answer *a)
{
    int fds[2];

    for (size_t i = 0; i < a->n_fds; i++)
        fds[i] = memfd_create("block", MFD_CLOEXEC);
    fake_result(fake, MSG_OPEN, &a->result, fds, a->n_fds);
    for (size_t i = 0; i < a->n_fds; i++)
        close(fds[i]);
}

static void
script_spoiled(struct fake *fake)
{
    const struct spoiler *spoiler = fake->data;
    struct answer answer;

    answer_init(&answer);
    spoiler->spoil(&answer);
    if (fake_request(fake) == MSG_OPEN)
        send_answer(fake, &answer);
    fake_drain(fake);
}

CLIENT_TEST(hostile, replies_to_open)
{
    struct caid_array *array = NULL;
    struct fake fake;

    for (size_t i = 0; i < ARRAY_SIZE(spoilers); i++) {
        struct caid_client *client = fake_start(&fake, script_spoiled, &spoilers[i]);
        int r = caid_array_open(client, &array, "x", NULL, &error);
        cr_assert_eq(r, -EPROTO, "%s: %d", spoilers[i].name, r);
        cr_assert_eq(error.code, CAID_ERR_PROTOCOL, "%s: %s", spoilers[i].name, error.message);
        assert_failed(caid_client_ping(client, &error), CAID_ERR_PROTOCOL);
        cr_assert_null(array);
        fake_stop(&fake);
    }
}

/* ---- an answer in which nothing is wrong but the memory ---- */

static void
script_no_memory_behind(struct fake *fake)
{
    struct answer answer;

    answer_init(&answer);
    if (fake_request(fake) == MSG_OPEN)
        send_answer(fake, &answer); /* an empty memfd is no CUDA memory */
    fake_go_on(fake);
}

CLIENT_TEST(hostile, what_cannot_be_mapped_is_given_back)
{
    struct caid_array *array = NULL;
    struct fake fake;

    struct caid_client *client = fake_start(&fake, script_no_memory_behind, NULL);
    assert_failed(caid_array_open(client, &array, "x", NULL, &error), CAID_ERR_DRIVER);
    cr_assert_neq(error.cuda_result, 0);
    assert_ok(caid_client_ping(client, &error));
    fake_stop(&fake);
    cr_assert_eq(fake.n_closed, 1);
    cr_assert_eq(fake.closed[0], 11);
}

/* ---- a device that this process has not ---- */

static void
script_empty_array(struct fake *fake)
{
    struct answer answer;

    answer_init(&answer);
    make_empty(&answer);
    if (fake_request(fake) == MSG_OPEN)
        send_answer(fake, &answer);
    fake_drain(fake);
}

/* No CUDA library is needed for what has no memory. */
CAID_TEST(hostile, no_driver_for_no_bytes)
{
    struct caid_array *array;
    struct fake fake;

    setenv("CAID_CUDA_DRIVER", "/nonexistent/libcuda.so", 1);
    struct caid_client *client = fake_start(&fake, script_empty_array, NULL);
    assert_ok(caid_array_open(client, &array, "x", NULL, &error));
    cr_assert_eq(caid_array_get_info(array)->ptr, 0);
    caid_array_close(array);
    fake_stop(&fake);
}

CAID_TEST(hostile, a_driver_that_is_not_there)
{
    struct caid_array *array;
    struct fake fake;

    setenv("CAID_CUDA_DRIVER", "/nonexistent/libcuda.so", 1);
    struct caid_client *client = fake_start(&fake, script_no_memory_behind, NULL);
    assert_failed(caid_array_open(client, &array, "x", NULL, &error), CAID_ERR_DEVICE);
    cr_assert(strstr(error.message, "/nonexistent/libcuda.so"), "%s", error.message);
    assert_ok(caid_client_ping(client, &error));
    fake_stop(&fake);
    cr_assert_eq(fake.n_closed, 1);
}

/* ---- packets that are no answer ---- */

static void
script_other_id(struct fake *fake)
{
    fake_request(fake);
    fake->id += 7;
    fake_pong(fake);
    fake_drain(fake);
}

static void
script_garbage(struct fake *fake)
{
    fake_request(fake);
    fake_send(fake, "\xdd\xff\xff\xff\xff garbage", 13, NULL, 0);
    fake_drain(fake);
}

static void
script_request(struct fake *fake)
{
    struct msg_buf out = {0};

    fake_request(fake);
    msg_encode_request(&out, fake->id, MSG_PING, &nothing);
    fake_send(fake, out.data, out.n, NULL, 0);
    msg_buf_deinit(&out);
    fake_drain(fake);
}

static void
script_fd_with_ping(struct fake *fake)
{
    fake_request(fake);
    fake_result(fake, MSG_PING, &nothing, (int[]){0}, 1);
    fake_drain(fake);
}

CAID_TEST(hostile, what_is_no_answer)
{
    void (*const scripts[])(struct fake *) = {script_other_id, script_garbage, script_request,
                                              script_fd_with_ping};
    struct fake fake;

    for (size_t i = 0; i < ARRAY_SIZE(scripts); i++) {
        struct caid_client *client = fake_start(&fake, scripts[i], NULL);
        assert_failed(caid_client_ping(client, &error), CAID_ERR_PROTOCOL);
        assert_failed(caid_client_ping(client, &error), CAID_ERR_PROTOCOL);
        fake_stop(&fake);
    }
}

static void
script_unasked(struct fake *fake)
{
    fake->id = 1000;
    fake_pong(fake);
    fake_drain(fake);
}

CAID_TEST(hostile, an_answer_that_nobody_asked_for)
{
    struct fake fake;

    struct caid_client *client = fake_start(&fake, script_unasked, NULL);
    while (caid_client_dispatch(client, &error) == 0)
        usleep(1000);
    cr_assert_eq(error.code, CAID_ERR_PROTOCOL);
    fake_stop(&fake);
}

static void
script_hang_up(struct fake *fake)
{
    fake_request(fake);
}

CAID_TEST(hostile, hangs_up_instead_of_answering)
{
    struct fake fake;

    struct caid_client *client = fake_start(&fake, script_hang_up, NULL);
    assert_failed(caid_client_ping(client, &error), CAID_ERR_DISCONNECTED);
    fake_stop(&fake);
}

/* ---- refusals ---- */

struct refusal {
    uint32_t code;
    int cuda;
    int32_t seen; /* by the caller */
};

static void
script_refuse(struct fake *fake)
{
    const struct refusal *refusal = fake->data;

    fake_request(fake);
    fake_error(fake, refusal->code, "because", refusal->cuda);
    fake_drain(fake);
}

CAID_TEST(hostile, refusals_come_through)
{
    static const struct refusal refusals[] = {
        {PROTO_ERR_SHUTDOWN, 0, CAID_ERR_SHUTDOWN},
        {PROTO_ERR_DRIVER, 719, CAID_ERR_DRIVER},
        {40, 0, 40},                /* of a later daemon */
        {64, 0, CAID_ERR_PROTOCOL}, /* not the daemon's to say */
        {UINT32_MAX, 0, CAID_ERR_PROTOCOL},
    };
    struct fake fake;

    for (size_t i = 0; i < ARRAY_SIZE(refusals); i++) {
        struct caid_client *client = fake_start(&fake, script_refuse, &refusals[i]);
        assert_failed(caid_client_ping(client, &error), refusals[i].seen);
        cr_assert_eq(error.cuda_result, refusals[i].cuda);
        cr_assert(strstr(error.message, "because"));
        fake_stop(&fake);
    }
}

/* ---- lists ---- */

static void
script_endless_list(struct fake *fake)
{
    struct msg_list_result result = {.more = true};
    static const struct msg_entry none[1];

    result.entries = none;
    while (fake_request(fake) == MSG_LIST)
        fake_result(fake, MSG_LIST, &result, NULL, 0);
}

static int
count_entry(const struct caid_entry *entry, void *userdata)
{
    (void)entry;
    ++*(int *)userdata;
    return 0;
}

CAID_TEST(hostile, a_list_that_never_ends)
{
    struct fake fake;
    int n = 0;

    struct caid_client *client = fake_start(&fake, script_endless_list, NULL);
    assert_failed(caid_list(client, NULL, count_entry, &n, &error), CAID_ERR_PROTOCOL);
    cr_assert_eq(n, 0);
    fake_stop(&fake);
}

static void
script_same_entry(struct fake *fake)
{
    const struct msg_entry entry = {.pool = MSG_STR("p"), .name = MSG_STR("x")};
    const struct msg_list_result result = {.entries = &entry, .n_entries = 1, .more = true};

    while (fake_request(fake) == MSG_LIST)
        fake_result(fake, MSG_LIST, &result, NULL, 0);
}

/* Stops it at last. */
static int
count_to_ten(const struct caid_entry *entry, void *userdata)
{
    return count_entry(entry, userdata) == 0 && *(int *)userdata >= 10;
}

CAID_TEST(hostile, a_list_that_repeats_itself)
{
    struct fake fake;
    int n = 0;

    struct caid_client *client = fake_start(&fake, script_same_entry, NULL);
    assert_failed(caid_list(client, NULL, count_to_ten, &n, &error), CAID_ERR_PROTOCOL);
    cr_assert_eq(n, 1);
    fake_stop(&fake);
}

/* ---- replies with one thing wrong ---- */

static int
ask_memory(struct caid_client *client)
{
    struct caid_memory_info info = CAID_INIT(info);

    return caid_memory_info(client, 0, &info, &error);
}

static int
ignore_user(const struct caid_user *user UNUSED, void *userdata UNUSED)
{
    return 0;
}

static int
ask_users(struct caid_client *client)
{
    return caid_users(client, ignore_user, NULL, &error);
}

static int
ignore_details(const struct caid_details *details UNUSED, void *userdata UNUSED)
{
    return 0;
}

static int
ask_unnamed(struct caid_client *client)
{
    return caid_unnamed(client, NULL, ignore_details, NULL, &error);
}

static int
ignore_ticket(const struct caid_ticket *ticket UNUSED, void *userdata UNUSED)
{
    return 0;
}

static int
ask_tickets(struct caid_client *client)
{
    return caid_tickets(client, ignore_ticket, NULL, &error);
}

static int
count_connection(const struct caid_connection *connection UNUSED, void *userdata)
{
    ++*(int *)userdata;
    return 0;
}

static int
ask_connections(struct caid_client *client)
{
    int n = 0;

    return caid_connections(client, count_connection, &n, &error);
}

static int
ask_withdraw(struct caid_client *client)
{
    return caid_withdraw(client, NULL, NULL, &error);
}

static int
ask_ranges(struct caid_client *client)
{
    return caid_ranges(client, NULL, ignore_details, NULL, &error);
}

static const struct msg_memory_info other_device = {.uuid = {"GPU-other", 9},
                                                    .name = {"other", 5}};
static const struct msg_user again[] = {{.uid = 5}, {.uid = 5}}, root = {.uid = 0},
                             large = {.uid = UINT64_C(1) << 32};
static const struct msg_ticket same[] = {{.number = 1}, {.number = 1}},
                               of_large = {.uid = UINT64_C(1) << 32};
static const struct msg_connection twice[] = {{.conn = 1}, {.conn = 1}}, fifth = {.conn = 5};
static const struct msg_entry no_entry[1];
static const struct msg_holder holder = {.pid = 1};
static const struct msg_details
    without_entry = {.array = 1, .entries = no_entry, .holders = &holder, .n_holders = 1},
    endless[1],
    outside = {.entries = no_entry,
               .n_entries = 1,
               .block_size = 10,
               .offset = UINT64_MAX,
               .bytes = 2,
               .state = {"free", 4}},
    stateless = {.entries = no_entry, .n_entries = 1, .block_size = 10, .bytes = 2};

#define ANSWER(what, ...)               \
    &(const struct msg_##what##_result) \
    {                                   \
        __VA_ARGS__                     \
    }

static const struct lie {
    int (*ask)(struct caid_client *client);
    struct fake_answer answer;
} lies[] = {
    {ask_memory, {MSG_MEMORY_INFO, ANSWER(memory, .devices = &other_device, .n_devices = 1)}},
    {ask_users, {MSG_USERS, ANSWER(users, .users = again, .n_users = 2)}},
    {ask_users, {MSG_USERS, ANSWER(users, .users = &root, .n_users = 0, .more = true)}},
    {ask_users, {MSG_USERS, ANSWER(users, .users = &large, .n_users = 1)}},
    {ask_tickets, {MSG_TICKETS, ANSWER(tickets, .tickets = same, .n_tickets = 2)}},
    {ask_tickets, {MSG_TICKETS, ANSWER(tickets, .tickets = &of_large, .n_tickets = 1)}},
    {ask_connections,
     {MSG_CONNECTIONS, ANSWER(connections, .connections = twice, .n_connections = 2)}},
    {ask_connections,
     {MSG_CONNECTIONS, ANSWER(connections, .connections = &fifth, .n_connections = 1,
                              .more = true, .after = 4)}},
    {ask_connections, {MSG_CONNECTIONS, ANSWER(connections, .more = true)}},
    {ask_withdraw, {MSG_WITHDRAW, ANSWER(withdraw, .more = true)}},
    {ask_unnamed, {MSG_UNNAMED, ANSWER(unnamed, .arrays = &without_entry, .n_arrays = 1)}},
    {ask_unnamed, {MSG_UNNAMED, ANSWER(unnamed, .arrays = endless, .more = true)}},
    {ask_ranges, {MSG_RANGES, ANSWER(unnamed, .arrays = &outside, .n_arrays = 1)}},
    {ask_ranges, {MSG_RANGES, ANSWER(unnamed, .arrays = &stateless, .n_arrays = 1)}},
};

CAID_TEST(hostile, lies)
{
    struct fake fake;

    for (size_t i = 0; i < ARRAY_SIZE(lies); i++) {
        assert_failed(lies[i].ask(fake_start(&fake, fake_answer, &lies[i].answer)),
                      CAID_ERR_PROTOCOL);
        fake_stop(&fake);
    }
}

/* Portions that have nothing for the caller. */
static void
script_sparse(struct fake *fake)
{
    const struct msg_connections_result results[] = {
        {.more = true, .after = 4},
        {.connections = &fifth, .n_connections = 1, .more = true, .after = 5},
        {.more = true, .after = 6},
        {.after = 7},
    };

    for (size_t i = 0; i < ARRAY_SIZE(results) && fake_request(fake) == MSG_CONNECTIONS; i++)
        fake_result(fake, MSG_CONNECTIONS, &results[i], NULL, 0);
    fake_drain(fake);
}

CAID_TEST(hostile, a_list_of_which_little_may_be_told)
{
    struct fake fake;
    int n = 0;

    assert_ok(
        caid_connections(fake_start(&fake, script_sparse, NULL), count_connection, &n, &error));
    cr_assert_eq(n, 1);
    fake_stop(&fake);
}

/* ---- the daemon ends the connection, and says why ---- */

static void
dismiss(struct fake *fake)
{
    const struct msg_error why = {.code = CAID_ERR_KICKED, .text = MSG_STR("for a reason")};
    struct msg_buf packet = {0};

    if (msg_encode_error(&packet, 0, &why) == 0)
        fake_send(fake, packet.data, packet.n, NULL, 0);
    msg_buf_deinit(&packet);
}

static void
script_dismiss(struct fake *fake)
{
    if (fake_request(fake) == MSG_PING)
        dismiss(fake);
    fake_drain(fake);
}

static void
assert_kicked(struct caid_client *client)
{
    assert_failed(caid_client_ping(client, &error), CAID_ERR_KICKED);
    cr_assert(strstr(error.message, ": for a reason"), "%s", error.message);
}

CAID_TEST(hostile, dismissed_while_it_waits)
{
    struct fake fake;
    struct caid_client *client = fake_start(&fake, script_dismiss, NULL);

    assert_kicked(client);
    assert_kicked(client);
    fake_stop(&fake);
}

/* What the client has sent is not read any more, so that its next recvmsg(2) is an error. */
static void
script_dismiss_unread(struct fake *fake)
{
    struct pollfd poll_fd = {.fd = fake->conn, .events = POLLIN};

    poll(&poll_fd, 1, -1);
    dismiss(fake);
}

CAID_TEST(hostile, dismissed_with_an_error_of_the_socket)
{
    struct fake fake;

    assert_kicked(fake_start(&fake, script_dismiss_unread, NULL));
    fake_stop(&fake);
}

/* Nothing can be sent any more, and nobody has read what was said. */
static void
script_dismiss_unheard(struct fake *fake)
{
    shutdown(fake->conn, SHUT_RD);
    dismiss(fake);
}

CAID_TEST(hostile, dismissed_before_it_sends)
{
    struct fake fake;
    struct caid_client *client = fake_start(&fake, script_dismiss_unheard, NULL);
    struct pollfd poll_fd = {.fd = caid_client_get_fd(client), .events = POLLIN};

    cr_assert_eq(poll(&poll_fd, 1, -1), 1);
    assert_kicked(client);
    fake_stop(&fake);
}

/* The client has come back, and is telling what it has. */
static void
script_dismiss_back(struct fake *fake)
{
    fake_hang_up(fake);
    if (fake_request(fake) == MSG_HELLO)
        dismiss(fake);
    fake_drain(fake);
}

CAID_TEST(hostile, dismissed_while_it_comes_back)
{
    struct fake fake;

    assert_kicked(fake_start_keeping(&fake, script_dismiss_back));
    fake_stop(&fake);
}

/* Names change all the time, and are gone whenever they are asked for. */
static void
script_restless(struct fake *fake)
{
    enum msg_method method;

    while ((method = fake_request(fake)) != MSG_UNKNOWN)
        if (method == MSG_CHANGES)
            fake_result(fake, method, &(struct msg_none){}, NULL, 0);
        else if (method == MSG_LIST)
            fake_result(fake, method, &(struct msg_list_result){0}, NULL, 0);
        else if (method == MSG_PING)
            fake_pong(fake);
}

CAID_TEST(hostile, a_prefix_under_which_nothing_rests)
{
    struct fake fake;
    struct caid_watch *watch;
    struct caid_change change;

    assert_ok(caid_watch_prefix(fake_start(&fake, script_restless, NULL), &watch, "x", NULL,
                                NULL, NULL, &error));
    assert_failed(caid_watch_next(watch, 1, &change, &error), CAID_ERR_TIMEOUT);
    caid_watch_close(watch);
    fake_stop(&fake);
}

static void
script_publish_zero(struct fake *fake)
{
    const struct msg_publish_result result = {.generation = 0};
    struct answer answer;

    answer_init(&answer);
    make_empty(&answer);
    if (fake_request(fake) == MSG_OPEN)
        send_answer(fake, &answer);
    if (fake_request(fake) == MSG_PUBLISH)
        fake_result(fake, MSG_PUBLISH, &result, NULL, 0);
    fake_drain(fake);
}

CAID_TEST(hostile, a_generation_that_is_none)
{
    struct caid_array *array;
    struct fake fake;

    struct caid_client *client = fake_start(&fake, script_publish_zero, NULL);
    assert_ok(caid_array_open(client, &array, "x", NULL, &error));
    assert_failed(caid_array_publish(array, "y", NULL, NULL, &error), CAID_ERR_PROTOCOL);
    cr_assert_str_eq(caid_array_get_info(array)->name, "x");
    caid_array_close(array);
    fake_stop(&fake);
}

/* A memfd that could be cut off under the feet of who uses it. */
static void
script_unsealed(struct fake *fake)
{
    struct answer answer;

    answer_init(&answer);
    answer.blocks[0].kind = MSG_STR("pinned");
    if (fake_request(fake) == MSG_OPEN)
        send_answer(fake, &answer);
    fake_drain(fake);
}

static void
script_too_small(struct fake *fake)
{
    struct answer answer;

    answer_init(&answer);
    answer.blocks[0].kind = MSG_STR("pinned");
    int fd = memfd_create("block", MFD_CLOEXEC | MFD_ALLOW_SEALING);
    if (ftruncate(fd, BLOCK_SIZE - 1) < 0 || fcntl(fd, F_ADD_SEALS, F_SEAL_SHRINK) < 0)
        abort();
    if (fake_request(fake) == MSG_OPEN)
        fake_result(fake, MSG_OPEN, &answer.result, &fd, 1);
    close(fd);
    fake_drain(fake);
}

static void
script_without_blocks(struct fake *fake)
{
    fake_request(fake);
    fake_error(fake, PROTO_ERR_UNKNOWN_METHOD, "block", 0);
    fake_go_on(fake);
}

CLIENT_TEST(hostile, a_daemon_that_is_too_old_to_suspend)
{
    struct fake fake;

    struct caid_client *client = fake_start(&fake, script_without_blocks, NULL);
    assert_failed(caid_client_suspend(client, 0, &error), CAID_ERR_UNKNOWN_METHOD);
    cr_assert(strstr(error.message, "too old"), "%s", error.message);
    assert_failed(caid_client_resume(client, NULL, NULL, &error), CAID_ERR_INVALID);
    assert_ok(caid_client_ping(client, &error));
    fake_stop(&fake);
}

/* ---- a client that is suspended while another thread waits for a page ---- */

struct held {
    sem_t asked, goes_on; /* for the page; the client is suspended */
    int (*make)(struct caid_client *client, struct caid_error *error);
    struct caid_client *client;
    struct caid_error error;
};

static void
held_init(struct held *held, int (*make)(struct caid_client *, struct caid_error *))
{
    *held = (struct held){.make = make};
    sem_init(&held->asked, 0, 0);
    sem_init(&held->goes_on, 0, 0);
}

/* What is asked for after the page, there is not. */
static void
answer_rest(struct fake *fake)
{
    enum msg_method method;

    while ((method = fake_request(fake)) != MSG_UNKNOWN)
        if (method == MSG_JOIN || method == MSG_TIMELINE || method == MSG_BLOCK)
            fake_error(fake, PROTO_ERR_NOT_FOUND, "none", 0);
}

/* The last request was for a page. */
static void
hold_page(struct fake *fake)
{
    const struct msg_page page = {.page = 77, .size = 8192};
    const struct msg_page_result result = {.pages = &page, .n_pages = 1};
    struct held *held = (struct held *)(uintptr_t)fake->data;
    uint32_t id = fake->id;
    int fd = memfd_create("page", MFD_CLOEXEC | MFD_ALLOW_SEALING);

    if (ftruncate(fd, 8192) < 0 || fcntl(fd, F_ADD_SEALS, F_SEAL_SHRINK) < 0)
        abort();
    sem_post(&held->asked);
    if (fake_request(fake) == MSG_BLOCK) /* by which it is seen whether the daemon is too old */
        fake_error(fake, PROTO_ERR_NOT_FOUND, "none", 0);
    sem_wait(&held->goes_on);
    fake->id = id;
    fake_result(fake, MSG_PAGE, &result, &fd, 1);
    close(fd);
    answer_rest(fake);
}

static void
script_channel(struct fake *fake)
{
    static const char metadata[] = "{\"caid.channel\":{\"version\":1,\"mode\":\"latest\"}}";
    struct answer answer;
    int fd = memfd_create("block", MFD_CLOEXEC | MFD_ALLOW_SEALING);

    if (ftruncate(fd, BLOCK_SIZE) < 0 || fcntl(fd, F_ADD_SEALS, F_SEAL_SHRINK) < 0)
        abort();
    answer_init(&answer);
    answer.blocks[0].kind = MSG_STR("pinned");
    answer.arrays[0].metadata = MSG_STR(metadata);
    if (fake_request(fake) == MSG_OPEN)
        fake_result(fake, MSG_OPEN, &answer.result, &fd, 1);
    close(fd);
    if (fake_request(fake) == MSG_PAGE)
        hold_page(fake);
}

static void
script_timeline(struct fake *fake)
{
    if (fake_request(fake) == MSG_PAGE)
        hold_page(fake);
}

static int
open_channel(struct caid_client *client, struct caid_error *ret)
{
    struct caid_channel *channel;

    return caid_channel_open(client, &channel, "c", NULL, ret);
}

static int
make_timeline(struct caid_client *client, struct caid_error *ret)
{
    struct caid_timeline *timeline;

    return caid_timeline_create(client, &timeline, "t", NULL, ret);
}

static void *
make_held(void *arg)
{
    struct held *held = arg;

    held->make(held->client, &held->error);
    return NULL;
}

/* What would have been in the way, had it been there. */
CLIENT_TEST(hostile, nothing_begins_in_a_client_that_is_suspended)
{
    static const struct {
        void (*script)(struct fake *fake);
        int (*make)(struct caid_client *client, struct caid_error *error);
    } cases[] = {{script_channel, open_channel}, {script_timeline, make_timeline}};
    struct held held;
    struct fake fake;
    pthread_t thread;

    for (size_t i = 0; i < ARRAY_SIZE(cases); i++) {
        held_init(&held, cases[i].make);
        held.client = fake_start(&fake, cases[i].script, &held);
        cr_assert_eq(pthread_create(&thread, NULL, make_held, &held), 0);
        sem_wait(&held.asked);
        assert_ok(caid_client_suspend(held.client, 0, &error));
        sem_post(&held.goes_on);
        pthread_join(thread, NULL);
        cr_assert_eq(held.error.code, CAID_ERR_NOT_READY, "%zu: %s", i, held.error.message);
        assert_ok(caid_client_resume(held.client, NULL, NULL, &error));
        assert_ok(caid_client_suspend(held.client, 0, &error));
        fake_stop(&fake);
    }
}

CLIENT_TEST(hostile, pinned_memory_that_is_not_safe)
{
    void (*const scripts[])(struct fake *) = {script_unsealed, script_too_small};
    struct caid_array *array = NULL;
    struct fake fake;

    for (size_t i = 0; i < ARRAY_SIZE(scripts); i++) {
        struct caid_client *client = fake_start(&fake, scripts[i], NULL);
        assert_failed(caid_array_open(client, &array, "x", NULL, &error), CAID_ERR_DRIVER);
        cr_assert_null(array);
        fake_stop(&fake);
        cr_assert_eq(fake.n_closed, 1);
    }
}

/* ---- an arena's memory ---- */

/* Answers each create with so many bytes of the same block. */
static void
script_lend(struct fake *fake)
{
    int fd = memfd_create("block", MFD_CLOEXEC | MFD_ALLOW_SEALING);
    struct answer answer;

    if (ftruncate(fd, BLOCK_SIZE) < 0 || fcntl(fd, F_ADD_SEALS, F_SEAL_SHRINK) < 0)
        abort();
    answer_init(&answer);
    answer.blocks[0].kind = MSG_STR("pinned");
    answer.arrays[0].typestr = MSG_STR("|u1");
    answer.arrays[0].nbytes = *(const uint64_t *)fake->data;
    answer.shape[0] = (int64_t)answer.arrays[0].nbytes;
    while (fake_request(fake) == MSG_CREATE) {
        fake_result(fake, MSG_CREATE, &answer.result, &fd, answer.result.n_blocks);
        answer.result.n_blocks = 0;
        answer.arrays[0].lease++;
    }
    close(fd);
}

/* What is not the arena's alone, or not as large as it is to be, is not handed out. */
CLIENT_TEST(hostile, memory_of_an_arena)
{
    static const uint64_t sizes[] = {BLOCK_SIZE, BLOCK_SIZE / 2, 1024};
    struct fake fake;

    for (size_t i = 0; i < ARRAY_SIZE(sizes); i++) {
        struct caid_client *client = fake_start(&fake, script_lend, &sizes[i]);
        OPTIONS(caid_arena_options, options, .block_size = BLOCK_SIZE);
        struct caid_arena *arena;
        uint64_t ptr = 0;
        assert_ok(caid_arena_new(client, &arena, &options, &error));
        if (i == 0)
            assert_ok(caid_arena_alloc(arena, BLOCK_SIZE / 2, 0, &ptr, &error));
        assert_failed(caid_arena_alloc(arena, BLOCK_SIZE, 0, &ptr, &error), CAID_ERR_PROTOCOL);
        caid_arena_close(arena);
        fake_stop(&fake);
    }
}
