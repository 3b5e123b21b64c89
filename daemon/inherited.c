/* SPDX-License-Identifier: Apache-2.0 */
#include "inherited.h"

#include <inttypes.h>
#include <signal.h>
#include <sys/resource.h>

#include "base/log.h"
#include "base/macros.h"

void
inherited_prepare(void)
{
    static const int ignored[] = {SIGPIPE, SIGXFSZ, SIGTTOU, SIGXCPU};
    struct rlimit limit;

    for (size_t i = 0; i < ARRAY_SIZE(ignored); i++)
        signal(ignored[i], SIG_IGN);
    if (getrlimit(RLIMIT_CPU, &limit) == 0 && limit.rlim_max != RLIM_INFINITY)
        log_warning("%ju s of CPU time end this process (RLIMIT_CPU; ulimit -t, or LimitCPU= "
                    "of a service)",
                    (uintmax_t)limit.rlim_max);
}
