/* SPDX-License-Identifier: Apache-2.0 */
/*
 * Paths for later: a daemon that detaches goes to "/".
 */
#pragma once

/* path below the folder of now, where it is relative. -errno. */
int path_make_absolute(const char *path, char **ret);
