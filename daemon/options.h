/* SPDX-License-Identifier: Apache-2.0 */
/* The command line of caid(8). */
#pragma once

#include <stdbool.h>

struct options { /* what was not given is NULL, false or -1; strings are argv's */
    const char *socket;
    const char *driver;
    const char *config;
    const char *keeper;
    const char *level; /* that log_level was parsed from */
    int log_level;
    int stop_fd;
    bool foreground;
    bool supervise;
    bool check_config;
};

/* 0; 1 when all is said and the process ends well (--help, --version); -EINVAL, reported on
 * stderr. */
int options_parse(struct options *ret, int argc, char *argv[]);
