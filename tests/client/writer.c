/* SPDX-License-Identifier: Apache-2.0 */
/*
 * writer SOCKET NAME HOW: another process, that dies while it writes an array. It begins to write
 * on a stream, and enqueues a copy there; with HOW "end" it ends the bracket, with "open" it does
 * not. Then it says "ready" and waits to be killed.
 */
#include <stdio.h>
#include <string.h>
#include <unistd.h>

#include "program.h"

int
main(int argc, char **argv)
{
    static const unsigned char bytes[1 << 16];
    OPTIONS(caid_open_options, open, .mode = "rw");
    struct caid_bracket *bracket;
    struct caid_array *array;
    uint64_t stream;

    if (argc != 4)
        return 1;
    struct caid_client *client = program_connect(argv[1]);
    MUST(caid_array_open(client, &array, argv[2], &open, &error));
    MUST(caid_stream_create(client, 0, CAID_STREAM_NON_BLOCKING, &stream, &error));
    MUST(caid_array_begin(array, &bracket, CAID_BRACKET_WRITE, stream, CAID_FOREVER, &error));
    const struct caid_array_info *info = caid_array_get_info(array);
    OPTIONS(caid_copy, copy, .dst = info->ptr, .src = (uintptr_t)bytes, .src_on_host = true,
            .shape = info->shape, .ndim = info->ndim, .itemsize = (uint32_t)info->itemsize,
            .stream = stream);
    MUST(caid_copy(client, &copy, &error));
    if (strcmp(argv[3], "end") == 0)
        MUST(caid_bracket_end(bracket, &error));
    puts("ready");
    fflush(stdout);
    for (;;)
        pause();
}
