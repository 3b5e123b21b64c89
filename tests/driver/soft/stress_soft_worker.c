/* SPDX-License-Identifier: Apache-2.0 */
#include "stress_soft_worker.h"

#include <inttypes.h>
#include <stdio.h>
#include <string.h>
#include <sys/eventfd.h>

#include "stress_soft_session.h"

static void *
lane_run(void *arg)
{
    struct lane *lane = arg;
    struct order order;
    int link;
    MUST(cuCtxSetCurrent(lane->context));
    MUST(cuStreamCreate(&lane->stream, CU_STREAM_NON_BLOCKING));
    MUST(cuEventCreate(&lane->event, CU_EVENT_DISABLE_TIMING));
    while (wire_receive(lane->orders, &order, sizeof(order), &link)) {
        struct report report = {session_run(lane, &order, link)};
        fd_close(link);
        if (!wire_send(lane->orders, &report, sizeof(report), -1))
            break;
    }
    MUST(cuEventDestroy_v2(lane->event));
    MUST(cuStreamDestroy_v2(lane->stream));
    return NULL;
}

static void
lane_start(struct lane *lane, CUcontext context, int orders)
{
    lane->context = context;
    lane->orders = orders;
    lane->finished = eventfd(0, EFD_CLOEXEC);
    if (lane->finished < 0 || pthread_create(&lane->thread, NULL, lane_run, lane) != 0)
        wire_die("a lane cannot start");
}

static void
lane_join(struct lane *lane)
{
    pthread_join(lane->thread, NULL);
    fd_close(lane->finished);
    fd_close(lane->orders);
}

/* What the driver still counts: the primary context and the default pool stay, and nothing else. */
static void
check_live(void)
{
    char text[1024], name[64], *rest = text, *line;
    uint64_t n;
    if (cu.caid_softcuda_control("live", text, sizeof(text)) < 0)
        wire_die("live");
    while ((line = strsep(&rest, "\n")) && *line) {
        if (sscanf(line, "%63s %" SCNu64, name, &n) != 2)
            wire_die(line);
        bool stays = strcmp(name, "contexts") == 0 || strcmp(name, "pools") == 0;
        if (n <= (stays ? 1 : 0))
            continue;
        fprintf(stderr, "process %d: left over: %s\n", (int)getpid(), line);
        abort();
    }
}

int
worker_run(unsigned int n_lanes)
{
    _cleanup_free_ struct lane *lanes = calloc(n_lanes, sizeof(*lanes));
    if (!lanes)
        wire_die("calloc");
    CUcontext context = soft_start_context();
    for (unsigned int i = 0; i < n_lanes; i++)
        lane_start(&lanes[i], context, FIRST_LANE + (int)i);
    for (unsigned int i = 0; i < n_lanes; i++)
        lane_join(&lanes[i]);
    check_live();
    MUST(cuDevicePrimaryCtxRelease_v2(0));
    return 0;
}
