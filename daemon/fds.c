/* SPDX-License-Identifier: Apache-2.0 */
#include "fds.h"

#include <fcntl.h>
#include <limits.h>
#include <string.h>
#include <sys/resource.h>
#include <sys/syscall.h>

#include "base/log.h"
#include "base/macros.h"

#define RESERVED 64 /* for blocks, the driver and the log */

uint32_t
fds_max(void)
{
    static uint32_t max; /* the kernel is asked once */
    struct rlimit limit;

    if (max == 0)
        max = getrlimit(RLIMIT_NOFILE, &limit) < 0 || limit.rlim_cur > FDS_MAX
                  ? FDS_MAX
                  : (uint32_t)limit.rlim_cur;
    return max;
}

void
fds_fill_standard(void)
{
    int fd;

    do
        fd = open("/dev/null", O_RDWR | O_CLOEXEC);
    while (fd >= 0 && fd <= STDERR_FILENO);
    fd_close(fd);
}

void
fds_close_others(int but)
{
    unsigned int first = STDERR_FILENO + 1;

    if (but >= 0) {
        syscall(SYS_close_range, first, but - 1, 0); /* an empty range is an error, ignored */
        first = (unsigned int)but + 1;
    }
    syscall(SYS_close_range, first, UINT_MAX, 0);
}

void
fds_prepare(void)
{
    struct rlimit limit;

    if (getrlimit(RLIMIT_NOFILE, &limit) < 0)
        return;
    limit.rlim_cur = limit.rlim_max < FDS_MAX ? limit.rlim_max : FDS_MAX;
    if (setrlimit(RLIMIT_NOFILE, &limit) < 0)
        log_warning("cannot raise the limit of open files: %s", strerror(errno));
    fd_close(fcntl(STDERR_FILENO, F_DUPFD_CLOEXEC, fds_max() - 1));
}

uint32_t
fds_shared(void)
{
    uint32_t kept = fds_max() / 2 + RESERVED + 2 * FDS_ACCEPT_MAX, least = 2 * FDS_ACCEPT_MAX;

    return fds_max() > kept + least ? fds_max() - kept : least;
}

/* The limit of fds that suffices for the next connections. The kernel gives out the lowest free
 * number, so that the fds in use are about as many. */
static uint32_t
count_needed(int any_fd)
{
    int lowest = fcntl(any_fd, F_DUPFD_CLOEXEC, 0);

    if (lowest < 0)
        return UINT32_MAX;
    close(lowest);
    return (uint32_t)lowest + 2 * FDS_ACCEPT_MAX + RESERVED;
}

bool
fds_are_short(int any_fd)
{
    return count_needed(any_fd) > fds_max();
}

int
fds_check(int any_fd)
{
    uint32_t needed = count_needed(any_fd);

    if (needed <= fds_max())
        return 0;
    if (needed == UINT32_MAX) /* all fds are in use: how many more are needed is not known */
        needed = fds_max() + 2 * FDS_ACCEPT_MAX + RESERVED;
    log_error("a limit of %u open files leaves none to clients: at least %u are needed "
              "(RLIMIT_NOFILE; ulimit -n, or LimitNOFILE= of a service)",
              fds_max(), needed);
    return -EMFILE;
}
