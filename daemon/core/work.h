/* SPDX-License-Identifier: Apache-2.0 */
/*
 * What events have left to be done for users: brackets whose turn has come, watches and creates to
 * be answered, connections that have hung up. Their users take turns, a piece at a time, and an
 * event does so much of it at most: however much one of them has piled up, nobody waits for it
 * (I6).
 */
#pragma once

#include <stdbool.h>

struct core;

/* Some of it, all of it where that is little; or, `briefly`, a piece for each user. What is left
 * keeps core->busy from being empty. */
void work_run(struct core *core, bool briefly);
