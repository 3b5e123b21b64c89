/* SPDX-License-Identifier: Apache-2.0 */
#include "path.h"

#include <stdio.h>
#include <string.h>
#include <unistd.h>

#include "base/macros.h"

int
path_make_absolute(const char *path, char **ret)
{
    _cleanup_free_ char *folder = NULL;

    if (*path == '/') {
        *ret = strdup(path);
        return *ret ? 0 : -ENOMEM;
    }
    folder = getcwd(NULL, 0);
    if (!folder)
        return -errno;
    return asprintf(ret, "%s/%s", folder, path) < 0 ? -ENOMEM : 0;
}
