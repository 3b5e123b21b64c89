/* SPDX-License-Identifier: Apache-2.0 */
#pragma once

/* Makes fork(2) leave the device memory with the parent. Once per process; 0 or -errno. */
int fork_watch(void);
