/* SPDX-License-Identifier: Apache-2.0 */
/*
 * framer SOCKET NAME put|get MODE: another process that produces in channel NAME, of 4 slots of 64
 * bytes of pinned memory, or reads it, and does what stdin says, a character each; it answers each
 * with itself on stdout.
 *
 *   p  puts a frame: each of its bytes, and of its info, is its sequence
 *   b  begins to put one
 *   g  gets the next frame, checks it, and ends it
 *   h  gets one, and holds it
 *   c  closes the channel
 *
 * Ends at end of file, or is killed. Exits 0, or 1 and says why.
 */
#include <string.h>
#include <unistd.h>

#include "program.h"

struct framer {
    struct caid_client *client;
    struct caid_channel *channel;
    struct caid_frame frame;
};

static unsigned char *
bytes_of(const struct framer *f)
{
    unsigned char *first = caid_array_get_info(caid_channel_array(f->channel))->host_ptr;

    return first + f->frame.offset;
}

static int
put(struct framer *f)
{
    MUST(caid_channel_begin(f->channel, 0, CAID_FOREVER, &f->frame, &error));
    memset(bytes_of(f), (int)f->frame.sequence, 64);
    memset(f->frame.info, (int)f->frame.sequence, sizeof(f->frame.info));
    return caid_channel_commit(f->channel, &f->frame, &error);
}

static int
get(struct framer *f)
{
    MUST(caid_channel_get(f->channel, 0, CAID_FOREVER, 0, &f->frame, &error));
    for (int i = 0; i < 64; i++)
        if (bytes_of(f)[i] != (unsigned char)f->frame.sequence ||
            f->frame.info[i] != (unsigned char)f->frame.sequence)
            errx(1, "frame %d has another's bytes", (int)f->frame.sequence);
    return 0;
}

static int
act(struct framer *f, char what)
{
    switch (what) {
    case 'p': return put(f);
    case 'b': return caid_channel_begin(f->channel, 0, CAID_FOREVER, &f->frame, &error);
    case 'h': return get(f);
    case 'g': return get(f) < 0 ? -1 : caid_channel_end(f->channel, &f->frame, 0, &error);
    case 'c':
        caid_channel_close(f->channel);
        f->channel = NULL;
        return 0;
    default: return -1;
    }
}

static int
run(struct framer *f)
{
    char what;

    while (read(STDIN_FILENO, &what, 1) == 1)
        if (act(f, what) < 0 || write(STDOUT_FILENO, &what, 1) != 1)
            return -1;
    return 0;
}

int
main(int argc, char **argv)
{
    const int64_t shape[] = {64};
    struct framer f = {0};

    if (argc != 5)
        return 1;
    f.client = program_connect(argv[1]);
    OPTIONS(caid_channel_options, options, .mode = argv[4], .typestr = "|u1", .shape = shape,
            .ndim = 1, .slots = 4, .memory = "pinned", .wait = true);
    if (strcmp(argv[3], "put") == 0)
        MUST(caid_channel_create(f.client, &f.channel, argv[2], &options, &error));
    else
        MUST(caid_channel_open(f.client, &f.channel, argv[2], &options, &error));
    if (write(STDOUT_FILENO, "!", 1) != 1)
        return 1;
    MUST(run(&f));
    caid_channel_close(f.channel);
    caid_client_close(f.client);
    return 0;
}
