/* SPDX-License-Identifier: Apache-2.0 */
/* The command line of caid(8). */
#pragma once

#include <stdbool.h>

struct options { /* NULL, false or -1: not given; strings are argv's */
    const char *socket;
    const char *driver;
    const char *config;
    const char *keeper;
    const char *level; /* the text of log_level */
    int log_level;
    int stop_fd;
    bool foreground;
    bool supervise;
    bool check_config;
};

/* 0; 1: it has printed --help or --version, and the process is to exit with 0; -EINVAL, with the
 * reason on stderr. */
int options_parse(struct options *ret, int argc, char *argv[]);
