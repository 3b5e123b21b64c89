/* SPDX-License-Identifier: Apache-2.0 */
/* Lines of the trace. */
#include "trace.h"

#include <fcntl.h>
#include <inttypes.h>
#include <stdio.h>
#include <string.h>

#include "base/clock.h"
#include "base/thread.h"
#include "errors.h"
#include "soft.h"

int
trace_expand(const char *path, char *ret, size_t size)
{
    size_t n = 0;
    for (; *path; path++) {
        bool pid = strncmp(path, "%p", 2) == 0;
        n += (size_t)(pid ? snprintf(ret + n, size - n, "%d", (int)getpid())
                          : snprintf(ret + n, size - n, "%c", *path));
        path += pid;
        if (n >= size)
            return -ENAMETOOLONG;
    }
    return 0;
}

int
trace_open(const char *path)
{
    char name[4096];
    int r = trace_expand(path, name, sizeof(name));
    if (r < 0)
        return r;
    int fd = open(name, O_WRONLY | O_CREAT | O_APPEND | O_CLOEXEC | O_NOCTTY, 0644);
    return fd < 0 ? -errno : fd;
}

/* The arguments as text, without a comma behind the last. */
static void
write_args(char *out, size_t size, const uintptr_t *args, size_t n_args)
{
    size_t n = 0;
    out[0] = '\0';
    for (size_t i = 0; i < n_args && n < size; i++)
        n += (size_t)snprintf(out + n, size - n, "%s%#" PRIxPTR, i ? ", " : "", args[i]);
}

void
trace_write(int fd, const struct call *call, int result, const uintptr_t *args, size_t n_args)
{
    uint64_t now = clock_now_ns(), start = call->start_ns;
    const char *name = *call->entry->base ? result_name(result) : NULL;
    char line[512], text[256], number[16];
    snprintf(number, sizeof(number), "%d", result);
    write_args(text, sizeof(text), args, n_args);
    int n = snprintf(line, sizeof(line),
                     "%d %d %" PRIu64 ".%06" PRIu64 " %s(%s) = %s %" PRIu64 "\n", (int)getpid(),
                     (int)thread_id(), start / NSEC_PER_SEC,
                     start % NSEC_PER_SEC / NSEC_PER_USEC, call->entry->name, text,
                     name ? name : number, (now - start) / NSEC_PER_USEC);
    /* A full disk must not change what the caller sees. */
    if (write(fd, line, (size_t)n) < 0)
        return;
}
