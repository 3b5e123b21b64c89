/* SPDX-License-Identifier: Apache-2.0 */
#include "base/presence.h"

#include <errno.h>
#include <fcntl.h>
#include <string.h>
#include <sys/un.h>
#include <unistd.h>

#include "base/macros.h"

static int
open_folder(const char *socket_path)
{
    char path[sizeof(((struct sockaddr_un *)0)->sun_path)] = ".";
    const char *slash = strrchr(socket_path, '/');
    size_t n = slash == socket_path ? 1 : slash ? (size_t)(slash - socket_path) : 0;

    if (n >= sizeof(path))
        return -ENAMETOOLONG;
    if (n > 0) {
        memcpy(path, socket_path, n);
        path[n] = '\0';
    }
    int fd = open(path, O_RDONLY | O_DIRECTORY | O_CLOEXEC);
    return fd < 0 ? -errno : fd;
}

int
presence_take(const char *socket_path, int *ret_fd)
{
    struct flock lock = {.l_type = F_RDLCK, .l_whence = SEEK_SET};
    _cleanup_fd_ int fd = open_folder(socket_path);

    if (fd < 0)
        return fd;
    if (fcntl(fd, F_OFD_SETLK, &lock) < 0)
        return -errno;
    *ret_fd = TAKE_FD(fd);
    return 0;
}

bool
presence_is_taken(const char *socket_path)
{
    struct flock lock = {.l_type = F_WRLCK, .l_whence = SEEK_SET};
    _cleanup_fd_ int fd = open_folder(socket_path);

    return fd >= 0 && fcntl(fd, F_OFD_GETLK, &lock) == 0 && lock.l_type != F_UNLCK;
}
