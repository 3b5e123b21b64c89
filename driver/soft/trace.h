/* SPDX-License-Identifier: Apache-2.0 */
/* The trace of calls: a line of text each (README.md, "Observation"), written in one write(2), so
 * that processes can share a file. */
#pragma once

#include <stddef.h>
#include <stdint.h>

struct call;

/* Opens the file for appending; "%p" in path is the process. An fd, or -errno. */
int trace_open(const char *path);
void trace_write(int fd, const struct call *call, int result, const uintptr_t *args,
                 size_t n_args);
/* path with every "%p" replaced by the process's number. 0, or -ENAMETOOLONG. */
int trace_expand(const char *path, char *ret, size_t size);
