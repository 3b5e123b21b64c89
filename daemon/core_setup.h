/* SPDX-License-Identifier: Apache-2.0 */
/*
 * Makes the core by the settings and by what the machine has.
 */
#pragma once

#include "config.h"
#include "core.h"
#include "gpu.h"

/* id: this daemon's. all_pages, all_fds: how many pages of timelines, and how many fds of
 * connections and blocks, there is room for. -errno. */
int core_setup(struct core **ret, const struct config *config, const struct gpu *gpu,
               const uint64_t id[2], uint32_t all_pages, uint32_t all_fds);
/* Gives an existing core new settings; -errno as core_reconfigure(). */
int core_set_up_anew(struct core *core, const struct config *config, uint32_t all_pages,
                     uint32_t all_fds);
