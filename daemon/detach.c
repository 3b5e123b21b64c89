/* SPDX-License-Identifier: Apache-2.0 */
#include "detach.h"

#include <fcntl.h>
#include <string.h>
#include <sys/types.h>

#include "base/log.h"
#include "base/macros.h"

/* The daemon writes one byte when it is ready. Where it dies before, the pipe ends. */
static _Noreturn void
await_daemon(int fd)
{
    ssize_t n;
    char byte;

    do {
        n = read(fd, &byte, 1);
    } while (n < 0 && errno == EINTR);
    _exit(n == 1 ? EXIT_SUCCESS : EXIT_FAILURE);
}

int
detach_start(int *ret_fd)
{
    int fds[2];
    pid_t pid;

    if (pipe2(fds, O_CLOEXEC) < 0)
        return -errno;
    pid = fork();
    if (pid != 0)
        fds[1] = fd_close(fds[1]);
    if (pid < 0) {
        int r = -errno;
        fd_close(fds[0]);
        return r;
    }
    if (pid > 0)
        await_daemon(fds[0]);

    fd_close(fds[0]);
    /* In a session of its own, and not its leader, so that no terminal becomes its own again. */
    setsid();
    pid = fork();
    if (pid < 0)
        log_error("cannot fork: %s", strerror(errno));
    if (pid != 0)
        _exit(pid < 0 ? EXIT_FAILURE : EXIT_SUCCESS);
    *ret_fd = fds[1];
    return 0;
}

void
detach_ready(int fd_consume)
{
    _cleanup_fd_ int ready = fd_consume, null = open("/dev/null", O_RDWR | O_CLOEXEC);
    ssize_t n UNUSED;

    log_to_syslog();
    if (chdir("/") < 0)
        log_warning("cannot leave the current folder: %s", strerror(errno));
    for (int fd = STDIN_FILENO; null >= 0 && fd <= STDERR_FILENO; fd++)
        dup2(null, fd);
    n = write(ready, "", 1);
}
