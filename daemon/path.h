/* SPDX-License-Identifier: Apache-2.0 */
/*
 * Paths that stay right when the daemon changes its folder to "/".
 */
#pragma once

/* A relative path is made absolute by the current folder. -errno. */
int path_make_absolute(const char *path, char **ret);
