/* SPDX-License-Identifier: Apache-2.0 */
/* For LD_PRELOAD: a kernel before 6.5, which has no SO_PEERPIDFD. */
#define _GNU_SOURCE 1
#include <errno.h>
#include <sys/socket.h>
#include <sys/syscall.h>
#include <unistd.h>

#define PEERPIDFD 77

#pragma GCC visibility push(default)

int
getsockopt(int fd, int level, int option, void *value, socklen_t *n)
{
    if (level == SOL_SOCKET && option == PEERPIDFD) {
        errno = ENOPROTOOPT;
        return -1;
    }
    return (int)syscall(SYS_getsockopt, fd, level, option, value, n);
}
