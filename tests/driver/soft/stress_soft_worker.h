/* SPDX-License-Identifier: Apache-2.0 */
/*
 * One process of stress_soft_processes: a thread for each lane, with a stream and an event of its
 * own, that runs the sessions it is ordered to. Ends in order when the supervisor hangs up, with
 * everything given back; a call that fails, a wrong byte, or anything left ends it with a line on
 * stderr.
 */
#pragma once

int worker_run(unsigned int n_lanes);
