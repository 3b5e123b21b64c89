/* SPDX-License-Identifier: Apache-2.0 */
/*
 * Names that move from one array to another, or away.
 */
#pragma once

#include "refusal.h"

struct array;
struct core;
struct user;

/* Takes the array's name away: records nothing, tells watchers. The array may be gone
 * afterwards. */
void array_unname(struct core *core, struct array *array);
/* Puts the array, which somebody holds, under a name of its pool, in place of what has it now; its
 * old name goes. metadata.p NULL: keeps its own. The bytes of both are charged to `user`. -ENOMEM
 * or REFUSED: nothing has changed. */
int array_publish(struct core *core, struct array *array, struct user *user,
                  struct msg_str name, struct msg_str metadata, struct refusal *r);
