/* SPDX-License-Identifier: Apache-2.0 */
#include "interrupt.h"

#include <errno.h>
#include <sched.h>
#include <time.h>

#include "base/clock.h"
#include "base/macros.h"
#include "client.h"

#define LOOK_NS      (100 * NSEC_PER_MSEC)
#define SPIN_NS      (50 * NSEC_PER_USEC)
#define PAUSE_MIN_NS (10 * NSEC_PER_USEC)
#define PAUSE_MAX_NS (200 * NSEC_PER_USEC)

uint64_t
interrupt_look_by(const struct caid_client *client, uint64_t deadline_ns)
{
    return client->interrupted ? min_u64(deadline_ns, clock_now_ns() + LOOK_NS) : deadline_ns;
}

int
interrupt_ask(const struct caid_client *client, struct caid_error *error)
{
    if (!client->interrupted || client->interrupted(client->userdata) == 0)
        return 0;
    return fail(error, CAID_ERR_INTERRUPTED, "%s: interrupted by a signal", client->socket);
}

int
interrupt_pause(const struct caid_client *client, struct pauses *pauses, uint64_t deadline_ns,
                struct caid_error *error)
{
    uint64_t now = clock_now_ns();

    if (pauses->spin_end_ns == 0)
        *pauses = (struct pauses){now + SPIN_NS, now + LOOK_NS, PAUSE_MIN_NS};
    if (now < pauses->spin_end_ns) {
        sched_yield();
        return 0;
    }
    const struct timespec pause = {.tv_nsec = (long)min_u64(pauses->ns, deadline_ns - now)};
    bool signalled = nanosleep(&pause, NULL) < 0;
    pauses->ns = min_u64(pauses->ns * 2, PAUSE_MAX_NS);
    if (!signalled && now < pauses->look_ns)
        return 0;
    pauses->look_ns = now + LOOK_NS;
    return interrupt_ask(client, error);
}
