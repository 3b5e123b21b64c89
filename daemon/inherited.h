/* SPDX-License-Identifier: Apache-2.0 */
/* Signals and limits that this process inherits, where they would end the daemon or block it. */
#pragma once

/* Call it before there are threads, when there is a log. Ignores signals whose cause is then an
 * error of the call: SIGPIPE (the reader of the log has gone), SIGXFSZ (RLIMIT_FSIZE, which counts
 * memfds, too), SIGTTOU (a log to a terminal, from the background), SIGXCPU (only the hard limit
 * ends the process; that limit is logged). */
void inherited_prepare(void);
