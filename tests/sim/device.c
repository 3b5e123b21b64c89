/* SPDX-License-Identifier: Apache-2.0 */
/* In the place of backing.c: no driver is called. There are no pages. */
#include <errno.h>
#include <stdio.h>

#include "backing.h"
#include "listen.h"
#include "shared_page.h"
#include "sim.h"

#define PERCENT_FAILING 1

uint64_t device_bytes;

int
backings_init(struct backings *b UNUSED, const struct gpu *gpu UNUSED)
{
    device_bytes = 0;
    return 0;
}

void
backings_deinit(struct backings *b UNUSED)
{
}

int
backing_create(struct backings *b UNUSED, enum core_kind kind, uint32_t number, uint64_t size,
               struct backing *ret, struct drv_error *err)
{
    int fd = sim_chance(PERCENT_FAILING) ? -1 : file_new(FILE_OTHER, NULL, 0);

    snprintf(err->message, sizeof(err->message), "it failed");
    if (fd < 0)
        return -EIO;
    *ret = (struct backing){.kind = kind, .device = number, .size = size, .fd = fd};
    device_bytes += size;
    return 0;
}

int
backing_release(struct backings *b UNUSED, struct backing *backing,
                struct drv_error *err UNUSED)
{
    device_bytes -= backing->size;
    backing->fd = fd_close(backing->fd);
    return 0;
}

int
backing_adopt(struct backings *b UNUSED, enum core_kind kind, uint32_t device, uint64_t size,
              int fd, struct backing *ret, struct drv_error *err UNUSED)
{
    *ret = (struct backing){.kind = kind, .device = device, .size = size, .fd = fd};
    device_bytes += size;
    return 0;
}

WRAPPED(int, shared_pages_init, struct shared_pages *pages, struct kept *kept,
        uint64_t max_fds UNUSED)
{
    *pages = (struct shared_pages){.dead = -1, .kept = kept};
    TAILQ_INIT(&pages->dying);
    return 0;
}

int
listener_start(struct listener *l UNUSED)
{
    return 0;
}

/* Where a stop takes too long. */
void
listener_deinit(struct listener *l UNUSED)
{
    sim_fail("stop", "the daemon does not come to its end");
}
