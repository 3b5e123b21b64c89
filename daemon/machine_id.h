/* SPDX-License-Identifier: Apache-2.0 */
/*
 * What tells clients that they are on one machine, in containers, too, which have machine ids of
 * their own: machine-id(5) itself is not to be shown, so it is hashed, keyed by itself, over an id
 * of caid's, as sd_id128_get_machine_app_specific(3) does that. It proves and permits nothing.
 */
#pragma once

#define MACHINE_ID_SIZE 33 /* 32 hexadecimal digits, terminated */

/* The one that is configured (NULL or "": none), else the machine's; where it has none, or no
 * libsystemd, one that is good until its next boot. */
void machine_id_get(const char *configured, char ret[MACHINE_ID_SIZE]);
