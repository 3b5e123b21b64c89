/* SPDX-License-Identifier: Apache-2.0 */
/* What this process has from whoever started it, and what would end it, or hold it up, for all. */
#pragma once

/* To be called before there are threads, and once there is a log. Signals that something to be
 * told of raises are ignored, so that it is an error of the call: SIGPIPE (a log reader that has
 * gone), SIGXFSZ (RLIMIT_FSIZE, which counts memfds too), SIGTTOU (a log to a terminal that is
 * another's), SIGXCPU (it is the hard limit that ends us; that one is logged). */
void inherited_prepare(void);
