/* SPDX-License-Identifier: Apache-2.0 */
/*
 * Prints the packets of the worked example in docs/PROTOCOL.md, made by the real encoder, in the
 * form that stands there: a title, then the bytes as hexdump -C shows them.
 */
#include <ctype.h>
#include <stdio.h>

#include "msg.h"

#define EXAMPLE_DEVICE "GPU-3f2a9c1e-5b7d-4e80-9a61-d0c4b8e7f215"

#define BYTES_PER_LINE 16

static void
print_line(const uint8_t *bytes, size_t n, size_t offset)
{
    printf("%08zx ", offset);
    for (size_t i = 0; i < BYTES_PER_LINE; i++) {
        if (i % 8 == 0)
            printf(" ");
        if (i < n)
            printf("%02x ", bytes[i]);
        else
            printf("   ");
    }
    printf(" |");
    for (size_t i = 0; i < n; i++)
        printf("%c", isprint(bytes[i]) ? bytes[i] : '.');
    printf("|\n");
}

static void
print_packet(const char *title, int r, const struct msg_buf *b)
{
    if (r < 0)
        abort();
    printf("%s\n", title);
    for (size_t at = 0; at < b->n; at += BYTES_PER_LINE) {
        size_t left = b->n - at;
        print_line(b->data + at, left < BYTES_PER_LINE ? left : BYTES_PER_LINE, at);
    }
    printf("%08zx\n\n", b->n);
}

static void
print_hello(struct msg_buf *b)
{
    const struct msg_str kinds[] = {MSG_STR("device"), MSG_STR("legacy"), MSG_STR("pinned")};
    static const struct msg_str no_features[1];
    struct msg_hello_params params = {.version_min = 1, .version_max = 1};
    struct msg_device device = {.uuid = MSG_STR(EXAMPLE_DEVICE),
                                .name = MSG_STR("NVIDIA H200"),
                                .total = UINT64_C(150754820096),
                                .granularity = 2097152,
                                .handoff = MSG_STR("memops"),
                                .kinds = {kinds, 3},
                                .memops = true,
                                .readonly_host = true,
                                .persistence = MSG_STR("on"),
                                .compute_mode = MSG_STR("default"),
                                .pci = MSG_STR("0000:65:00.0")};
    struct msg_hello_result result = {.version = 1,
                                      .features = {no_features, 0},
                                      .server = MSG_STR("caid 0.1.0"),
                                      .driver = MSG_STR("cuda"),
                                      .pool = MSG_STR("uid:1000"),
                                      .devices = &device,
                                      .n_devices = 1,
                                      .packet_max = PROTO_PACKET_MAX,
                                      .fds_max = PROTO_FDS_MAX,
                                      .open_max = PROTO_OPEN_MAX};

    params.client = MSG_STR("trainer");
    print_packet("client: hello", msg_encode_request(b, 1, MSG_HELLO, &params), b);
    print_packet("daemon: the result of hello", msg_encode_result(b, 1, MSG_HELLO, &result), b);
}

static void
print_open(struct msg_buf *b)
{
    static const int64_t shape[] = {1024, 768};
    struct msg_str name = MSG_STR("weights");
    struct msg_open_params params = {.names = {&name, 1}, .mode = MSG_STR("r")};
    struct msg_array array = {.lease = 1,
                              .array = 3,
                              .block = 3,
                              .offset = 512,
                              .nbytes = 3145728,
                              .typestr = MSG_STR("<f4"),
                              .shape = {shape, 2},
                              .generation = 1};
    struct msg_block block = {.block = 3,
                              .size = 33554432,
                              .device = MSG_STR(EXAMPLE_DEVICE),
                              .kind = MSG_STR("device"),
                              .fd = 0};
    struct msg_arrays_result result = {.pool = MSG_STR("uid:1000"),
                                       .arrays = &array,
                                       .n_arrays = 1,
                                       .blocks = &block,
                                       .n_blocks = 1};

    print_packet("client: open", msg_encode_request(b, 2, MSG_OPEN, &params), b);
    print_packet("daemon: the result of open, with one fd",
                 msg_encode_result(b, 2, MSG_OPEN, &result), b);
}

static void
print_bracket(struct msg_buf *b)
{
    uint64_t lease = 1;
    struct msg_begin_params begin = {.bracket = 1, .read = {&lease, 1}, .thread = 4711};
    struct msg_fence fence = {.page = 7, .slot = 2, .value = 41, .data = true};
    struct msg_page page = {.page = 7, .size = 4096};
    struct msg_fences_result result = {.fences = &fence,
                                       .n_fences = 1,
                                       .pages = &page,
                                       .n_pages = 1};
    struct msg_page own = {.page = 9, .size = 4096};
    struct msg_page_result page_result = {.pages = &own, .n_pages = 1};
    struct msg_end_params end = {.bracket = 1, .page = 9, .slot = 0, .value = 1};

    print_packet("client: begin, to read", msg_encode_request(b, 3, MSG_BEGIN, &begin), b);
    print_packet("daemon: the result of begin, with one fd",
                 msg_encode_result(b, 3, MSG_BEGIN, &result), b);
    print_packet("client: page",
                 msg_encode_request(b, 4, MSG_PAGE, &(struct msg_page_params){}), b);
    print_packet("daemon: the result of page, with one fd",
                 msg_encode_result(b, 4, MSG_PAGE, &page_result), b);
    print_packet("client: end, not answered", msg_encode_notify(b, MSG_END, &end), b);
}

int
main(void)
{
    struct msg_buf b = {0};
    uint64_t lease = 1, block = 3;
    struct msg_close_params params = {.leases = {&lease, 1}, .forget = {&block, 1}};

    print_hello(&b);
    print_open(&b);
    print_bracket(&b);
    print_packet("client: open of a name that is not there",
                 msg_encode_request(&b, 5, MSG_OPEN,
                                    &(struct msg_open_params){.names = {(struct msg_str[]){
                                                                            MSG_STR("wieghts")},
                                                                        1},
                                                              .mode = MSG_STR("r")}),
                 &b);
    print_packet("daemon: the refusal",
                 msg_encode_error(&b, 5,
                                  &(struct msg_error){.code = PROTO_ERR_NOT_FOUND,
                                                      .text = MSG_STR("no array \"wieghts\"")}),
                 &b);
    print_packet("client: close, not answered", msg_encode_notify(&b, MSG_CLOSE, &params), &b);
    msg_buf_deinit(&b);
    return 0;
}
