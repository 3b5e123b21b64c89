/* SPDX-License-Identifier: Apache-2.0 */
/*
 * The core as the settings and the machine ask for it.
 */
#pragma once

#include "config.h"
#include "core.h"
#include "gpu.h"

/* id: of this daemon. What it has room for: pages of timelines, and fds of connections and blocks.
 * -errno. */
int core_setup(struct core **ret, const struct config *config, const struct gpu *gpu,
               const uint64_t id[2], uint32_t all_pages, uint32_t all_fds);
/* The same for a core that is there; -errno as core_reconfigure(). */
int core_set_up_anew(struct core *core, const struct config *config, uint32_t all_pages,
                     uint32_t all_fds);
