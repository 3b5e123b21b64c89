/* SPDX-License-Identifier: Apache-2.0 */
/*
 * The trace of calls: a line of text each, written when the call ends, in one write(2), so that
 * processes can share a file.
 *     PID TID SECONDS NAME(ARGUMENTS) = RESULT MICROSECONDS
 * SECONDS are of CLOCK_MONOTONIC, when the call began. Arguments are numbers; what was written to
 * where a pointer points is not shown, nor a structure that is passed by value.
 */
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
