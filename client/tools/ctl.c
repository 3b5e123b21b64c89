/* SPDX-License-Identifier: Apache-2.0 */
#include "ctl.h"

#include <errno.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include "format.h"

#define DELAY_MAX_S 3600

void
ctl_complain(const char *what, const char *why)
{
    _cleanup_free_ char *plain_what = format_plain(what);
    _cleanup_free_ char *plain_why = format_plain(why);

    fprintf(stderr, "caidctl: %s: %s\n", plain_what, plain_why);
}

/* An error of the connection, which the library reports itself, is not a refusal by the daemon. */
int
ctl_status(const struct ctl *ctl)
{
    int32_t code = ctl->error.code;

    if (code == CAID_ERR_TIMEOUT)
        return CTL_LOCAL;
    return code > CAID_ERR_PROTOCOL && code < CAID_ERR_NO_DAEMON ? CTL_REFUSED : CTL_LOCAL;
}

int
ctl_failed(const struct ctl *ctl, const char *what)
{
    if (!ctl->is_quiet)
        ctl_complain(what, ctl->error.message);
    return ctl_status(ctl);
}

int
ctl_connect(struct ctl *ctl)
{
    struct caid_connect_options options = CAID_INIT(options);

    options.socket = ctl->socket;
    options.name = "caidctl";
    return caid_connect(&ctl->client, &options, &ctl->error);
}

bool
ctl_number(const char *text, unsigned long max, unsigned long *ret)
{
    char *end;

    if (text[0] < '0' || text[0] > '9')
        return false;
    errno = 0;
    *ret = strtoul(text, &end, 10);
    return errno == 0 && *end == 0 && *ret <= max;
}

bool
ctl_seconds(const char *text, double *ret)
{
    char *end;
    double seconds = strtod(text, &end);

    if (end == text || *end || !(seconds >= 0.1 && seconds <= DELAY_MAX_S)) {
        ctl_complain(text, "not a number of seconds from 0.1 to 3600");
        return false;
    }
    *ret = seconds;
    return true;
}

int32_t
ctl_device(const struct ctl *ctl, const char *text)
{
    const struct caid_device *const *devices;
    int n = caid_client_devices(ctl->client, &devices);
    unsigned long index;
    int32_t found;

    if (n > 0 && ctl_number(text, (unsigned long)n - 1, &index))
        return (int32_t)index;
    if (caid_client_parse_device(ctl->client, text, &found, NULL) == 0)
        return found;
    ctl_complain(text, "no such device; see caidctl status");
    return -1;
}
