/* SPDX-License-Identifier: Apache-2.0 */
/* Allocations that fail, of all that is linked into a program of caid_test_nomem(): not those of
 * shared libraries. */
#pragma once

#include <stdbool.h>

extern long nomem_countdown; /* the allocation that fails, from now on; 0: none, or it has */

/* Whether this allocation fails. A program may have one of its own. */
bool nomem_fails(void);
