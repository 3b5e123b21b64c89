/* SPDX-License-Identifier: Apache-2.0 */
/*
 * Commands for tests: from within the process by caid_softcuda_control(), from outside on a
 * SOCK_SEQPACKET socket at CAID_SOFTCUDA_CONTROL, one packet there and one back, for the same user
 * and for root. A path, in which "%p" stands for the process, or "@NAME" for an abstract address.
 *
 *     calls [FUNCTION]      how often each function was called, "NAME COUNT" a line; a FUNCTION
 *                           without its suffix stands for all of its forms: one COUNT
 *     live                  what there is: "KIND COUNT" a line
 *     reset                 counts calls from 0 again
 *     fail RULES            adds rules; see fault.h
 *     clear                 ends all rules
 *     fault DEVICE RESULT   faults a device, as a kernel's stray store does
 *     vanish DEVICE         takes a device off the bus
 *     delay US [SEED]       what CAID_SOFTCUDA_DELAY_US and _JITTER_SEED say, for operations that
 *                           start from now on
 *
 * The reply is text, empty where there is nothing to tell, or "error: ...".
 */
#pragma once

#include <stddef.h>

#include "serve.h"

/* 0 or -errno. */
int control_start(struct server *server, const char *where);
