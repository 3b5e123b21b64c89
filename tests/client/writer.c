/* SPDX-License-Identifier: Apache-2.0 */
/*
 * writer SOCKET NAME HOW: another process, that dies while it writes an array. It begins to write
 * on a stream, and enqueues a copy there; with HOW "end" it ends the bracket, with "open" it does
 * not. Then it says "ready" and waits to be killed.
 */
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <unistd.h>

#include "caid/caid.h"

static int
failed(const char *what, const struct caid_error *error)
{
    fprintf(stderr, "writer: %s: %s\n", what, error->message);
    return 1;
}

static int
enqueue(struct caid_client *client, struct caid_array *array, const void *bytes,
        uint64_t stream, struct caid_error *error)
{
    const struct caid_array_info *info = caid_array_get_info(array);
    struct caid_copy copy = CAID_INIT(copy);

    copy.dst = info->ptr;
    copy.src = (uintptr_t)bytes;
    copy.src_on_host = true;
    copy.shape = info->shape;
    copy.ndim = info->ndim;
    copy.itemsize = (uint32_t)info->itemsize;
    copy.stream = stream;
    return caid_copy(client, &copy, error);
}

static int
write_on(struct caid_client *client, struct caid_array *array, uint64_t stream, const char *how)
{
    static const unsigned char bytes[1 << 16];
    struct caid_bracket *bracket;
    struct caid_error error;

    if (caid_array_begin(array, &bracket, CAID_BRACKET_WRITE, stream, CAID_FOREVER, &error) < 0)
        return failed("begin", &error);
    if (enqueue(client, array, bytes, stream, &error) < 0)
        return failed("copy", &error);
    if (strcmp(how, "end") == 0 && caid_bracket_end(bracket, &error) < 0)
        return failed("end", &error);
    puts("ready");
    fflush(stdout);
    for (;;)
        pause();
}

int
main(int argc, char **argv)
{
    struct caid_connect_options connect = CAID_INIT(connect);
    struct caid_open_options open = CAID_INIT(open);
    struct caid_client *client;
    struct caid_array *array;
    struct caid_error error;
    uint64_t stream;

    if (argc != 4)
        return 1;
    connect.socket = argv[1];
    open.mode = "rw";
    if (caid_connect(&client, &connect, &error) < 0)
        return failed("connect", &error);
    if (caid_array_open(client, &array, argv[2], &open, &error) < 0)
        return failed("open", &error);
    if (caid_stream_create(client, 0, CAID_STREAM_NON_BLOCKING, &stream, &error) < 0)
        return failed("stream", &error);
    return write_on(client, array, stream, argv[3]);
}
