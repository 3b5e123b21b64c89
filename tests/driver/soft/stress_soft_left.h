/* SPDX-License-Identifier: Apache-2.0 */
/* What the software driver must not leave behind, asked of the kernel. Each prints what it
 * finds. */
#pragma once

#include <stdbool.h>
#include <sys/types.h>

/* Whether the process has a descriptor or a mapping of shared memory. */
bool left_in_process(pid_t pid);
/* Remembers the sockets that the process has now. */
void left_note_sockets(pid_t pid);
/* Whether one of these sockets is still there, or a file in shared memory. */
bool left_in_names(void);
/* Runs in a process of its own: ends it with 0 where no byte of the device is in use. */
_Noreturn void left_on_device(void);
