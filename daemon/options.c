/* SPDX-License-Identifier: Apache-2.0 */
#include "options.h"

#include <errno.h>
#include <fcntl.h>
#include <getopt.h>
#include <limits.h>
#include <stdio.h>
#include <stdlib.h>
#include <unistd.h>

#include "base/macros.h"
#include "value.h"

static const char usage[] =
    "Usage: caid [OPTION]...\n"
    "Own GPU memory and share it between processes as named arrays.\n"
    "\n"
    "  -f, --foreground        stay in the foreground, log to stderr\n"
    "  -s, --socket=PATH       listen on PATH\n"
    "  -d, --driver=DRIVER     auto, cuda, soft, or the path of a CUDA driver library\n"
    "  -c, --config=FILE       read FILE and FILE.d/*.conf, not /etc/caid/caid.conf\n"
    "  -l, --log-level=LEVEL   error, warning, notice, info or debug\n"
    "  -k, --keeper=PATH       keep memory over restarts by the caid-keeper that listens on PATH\n"
    "      --supervise         be keeper and parent: start the daemon again when it dies\n"
    "      --stop-fd=FD        stop when FD, which is inherited, is readable or hung up\n"
    "      --check-config      print the settings in force and exit: 1 where some are bad\n"
    "  -V, --version           print the version and exit\n"
    "  -h, --help              print this and exit\n"
    "\n"
    "See caid(8), caid.conf(5).\n";

enum {
    OPTION_CHECK_CONFIG = 256,
    OPTION_STOP_FD,
    OPTION_SUPERVISE
};

static const struct option long_options[] = {
    {"foreground", no_argument, NULL, 'f'},
    {"socket", required_argument, NULL, 's'},
    {"driver", required_argument, NULL, 'd'},
    {"config", required_argument, NULL, 'c'},
    {"log-level", required_argument, NULL, 'l'},
    {"keeper", required_argument, NULL, 'k'},
    {"supervise", no_argument, NULL, OPTION_SUPERVISE},
    {"stop-fd", required_argument, NULL, OPTION_STOP_FD},
    {"check-config", no_argument, NULL, OPTION_CHECK_CONFIG},
    {"version", no_argument, NULL, 'V'},
    {"help", no_argument, NULL, 'h'},
    {0},
};

static int
bad_usage(void)
{
    fputs("Try 'caid --help'.\n", stderr);
    return -EINVAL;
}

static int
parse_level(const char *text, int *ret)
{
    if (value_level.parse(text, ret) == 0)
        return 0;
    fprintf(stderr, "caid: --log-level=%s: not %s\n", text, value_level.expects);
    return bad_usage();
}

/* No child is to inherit the fd. */
static int
parse_stop_fd(int *ret)
{
    char *end;
    long fd = strtol(optarg, &end, 10);

    if (end == optarg || *end || fd <= STDERR_FILENO || fd > INT_MAX ||
        fcntl((int)fd, F_SETFD, FD_CLOEXEC) < 0) {
        fprintf(stderr, "caid: --stop-fd=%s: not an open file descriptor from 3 up\n", optarg);
        return bad_usage();
    }
    *ret = (int)fd;
    return 0;
}

/* An empty value is most often a script's unset variable. It is refused, not taken for a default.
 * */
static int
set_text(const char **field, const char *name)
{
    if (!*optarg) {
        fprintf(stderr, "caid: --%s: empty\n", name);
        return bad_usage();
    }
    *field = optarg;
    return 0;
}

static int
set_value(const char **field, const char *name, const struct value_type *type)
{
    _cleanup_free_ char *value = NULL;
    int r = type->parse(optarg, &value);

    if (r < 0) {
        fprintf(stderr, "caid: --%s=%s: not %s\n", name, optarg, type->expects);
        return bad_usage();
    }
    return set_text(field, name);
}

static int
parse_one(struct options *o, int option)
{
    switch (option) {
    case 'f': o->foreground = true; return 0;
    case 's': return set_value(&o->socket, "socket", &value_socket);
    case 'd': return set_value(&o->driver, "driver", &value_driver);
    case 'c': return set_text(&o->config, "config");
    case 'l': o->level = optarg; return parse_level(optarg, &o->log_level);
    case 'k': return set_text(&o->keeper, "keeper");
    case OPTION_SUPERVISE: o->supervise = true; return 0;
    case OPTION_STOP_FD: return parse_stop_fd(&o->stop_fd);
    case OPTION_CHECK_CONFIG: o->check_config = true; return 0;
    case 'V': puts("caid " CAID_VERSION); return 1;
    case 'h': fputs(usage, stdout); return 1;
    default: return bad_usage(); /* getopt has printed the reason */
    }
}

int
options_parse(struct options *ret, int argc, char *argv[])
{
    struct options o = {.log_level = -1, .stop_fd = -1};
    int option, r;

    while ((option = getopt_long(argc, argv, "fs:d:c:l:k:Vh", long_options, NULL)) >= 0) {
        r = parse_one(&o, option);
        if (r != 0)
            return r;
    }
    if (optind < argc) {
        fprintf(stderr, "caid: %s: no arguments are taken\n", argv[optind]);
        return bad_usage();
    }
    if (o.supervise && o.keeper) {
        fprintf(stderr, "caid: --keeper=%s: --supervise is its own keeper\n", o.keeper);
        return bad_usage();
    }
    *ret = o;
    return 0;
}
