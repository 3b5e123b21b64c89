/* SPDX-License-Identifier: Apache-2.0 */
/*
 * signaller SOCKET NAME: another process that creates timeline NAME and does what stdin says, a
 * character each; it answers each with itself on stdout.
 *
 *   h  signals the next value from the host
 *   s  signals it from a stream, which comes to it late where CAID_SOFTCUDA_DELAY_US says so
 *   w  waits for that stream
 *   c  closes the timeline
 *   f  breaks its device (of the software driver), as a kernel that fails would
 *
 * Ends at end of file, or is killed. Exits 0, or 1 and says why.
 */
#include <unistd.h>

#include "cuda/local.h"
#include "program.h"

struct signaller {
    struct caid_client *client;
    struct caid_timeline *timeline;
    uint64_t stream, value;
};

static int
break_device(void)
{
    char path[512];

    if (caid_softcuda_path(path, sizeof(path)) < 0)
        return -1;
    program_control(path, "fault 0 LAUNCH_FAILED");
    return 0;
}

/* Work that comes late: a signal behind it does, too, however it is made. */
static void
work(int32_t result, void *userdata)
{
    (void)result;
    (void)userdata;
}

static int
signal_behind_work(struct signaller *s)
{
    int r = cuda_stream_add_callback(s->client, s->stream, 0, work, NULL, &error);
    return r < 0 ? r : caid_timeline_signal(s->timeline, s->stream, ++s->value, &error);
}

static int
act(struct signaller *s, char what)
{
    switch (what) {
    case 'h': return caid_timeline_signal(s->timeline, 0, ++s->value, &error);
    case 's': return signal_behind_work(s);
    case 'w': return caid_stream_synchronize(s->client, s->stream, 0, &error);
    case 'c':
        caid_timeline_close(s->timeline);
        s->timeline = NULL;
        return 0;
    case 'f': return break_device();
    default: return -1;
    }
}

static int
run(struct signaller *s)
{
    char what;

    while (read(STDIN_FILENO, &what, 1) == 1)
        if (act(s, what) < 0 || write(STDOUT_FILENO, &what, 1) != 1)
            return -1;
    return 0;
}

int
main(int argc, char **argv)
{
    struct signaller s = {0};

    if (argc != 3)
        return 1;
    s.client = program_connect(argv[1]);
    MUST(caid_timeline_create(s.client, &s.timeline, argv[2], NULL, &error));
    MUST(caid_stream_create(s.client, 0, CAID_STREAM_NON_BLOCKING, &s.stream, &error));
    MUST(run(&s));
    caid_timeline_close(s.timeline);
    caid_client_close(s.client);
    return 0;
}
