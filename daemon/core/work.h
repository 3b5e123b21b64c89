/* SPDX-License-Identifier: Apache-2.0 */
/*
 * Work that events have left for users: to answer brackets whose turn has come, watches and
 * creates; to end departed connections. Users take turns, a piece at a time, and an event does a
 * limited number of pieces. However much one user has piled up, nobody waits for it (I6).
 */
#pragma once

#include <stdbool.h>

struct core;

/* Does some of the work: all if it is little; with `briefly`, one piece for each user. core->busy
 * has the users with work left. */
void work_run(struct core *core, bool briefly);
