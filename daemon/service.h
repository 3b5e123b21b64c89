/* SPDX-License-Identifier: Apache-2.0 */
/*
 * The service manager, as the server tells it of its state: by notify.h, and again while the
 * manager's queue is full; and its watchdog, fed as long as the loop turns.
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
/* The watchdog, if the manager wants one, is fed from now on. */
void service_watch(struct service *s);
