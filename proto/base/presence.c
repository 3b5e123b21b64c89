/* SPDX-License-Identifier: Apache-2.0 */
#include "base/presence.h"

#include <errno.h>
#include <fcntl.h>
#include <libgen.h>
#include <string.h>

#include "base/macros.h"

static int
open_folder(const char *socket_path)
{
    _cleanup_free_ char *path = strdup(socket_path);
    int fd = path ? open(dirname(path), O_RDONLY | O_DIRECTORY | O_CLOEXEC) : -1;

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
