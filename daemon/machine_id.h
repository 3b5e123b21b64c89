/* SPDX-License-Identifier: Apache-2.0 */
/*
 * An id by which clients see that they are on one machine, also in containers, which have machine
 * ids of their own. machine-id(5) itself must not be shown: the id is a hash of caid's application
 * id with the machine id as its key, as sd_id128_get_machine_app_specific(3) makes it. It proves
 * and permits nothing.
 */
#pragma once

#define MACHINE_ID_SIZE 33 /* 32 hexadecimal digits, terminated */

/* The configured id (NULL or "": none), else the machine's. Where the machine has none, or no
 * libsystemd: one that is good until its next boot. */
void machine_id_get(const char *configured, char ret[MACHINE_ID_SIZE]);
