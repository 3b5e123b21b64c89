/* SPDX-License-Identifier: Apache-2.0 */
/*
 * Tells the service manager the server's state (notify.h), again and again while the manager's
 * queue is full, and feeds its watchdog as long as the loop turns.
 */
#pragma once

#include <uv.h>

#include "notify.h"

struct service {
    struct notify *notify;
    uv_timer_t retry, watchdog;
};

/* notify: borrowed. */
void service_init(struct service *s, uv_loop_t *loop, struct notify *notify);
/* state: as for notify_send(). */
void service_tell(struct service *s, const char *state);
/* Feeds the watchdog from now on, if the manager wants one. */
void service_watch(struct service *s);
