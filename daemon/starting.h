/* SPDX-License-Identifier: Apache-2.0 */
/*
 * From the opened socket to the driver's answer, which may take long, or never come: the driver is
 * opened on a thread of its own, and clients are kept waiting at first. When it has failed once and
 * is asked again, or has not answered for 5 s, they are taken up: each one's hello is refused with
 * NOT_READY, which tells why, and its connection ends. Nobody is served: there is no core yet, and
 * the service manager has not been told READY=1.
 */
#pragma once

#include <signal.h>
#include <stdint.h>

#include "gpu.h"
#include "listen.h"
#include "notify.h"

struct starting_setup { /* all borrowed */
    const char *driver;
    int handoff;
    struct listener *listener;
    struct notify *notify;
    const sigset_t *stop; /* blocked */
    int stop_fd;          /* or -1 */
    uint64_t hello_timeout_ns;
};

/*
 * Fills ret. With "cuda" under a service manager the GPU's modules may still be on their way: asked
 * again, ever more rarely. Elsewhere somebody is there to read the reason, which is logged. A
 * signal of `stop`, or a stop_fd that is readable or hung up, ends the process here, with status 0:
 * a driver that hangs cannot be waited for.
 */
int starting_open_gpu(struct gpu *ret, const struct starting_setup *setup);
