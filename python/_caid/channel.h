/* SPDX-License-Identifier: Apache-2.0 */
/* Frame: what DLPack needs to know of it (channel.c). */
#pragma once

#include "module.h"

/* Counts a tensor of a Frame, which has a reference to it, too. -1 with ClosedError set where the
 * Frame has ended. */
int py_frame_export_begin(PyObject *frame);
/* The last one ends a Frame that was kept for it. An exception that is set stays. */
void py_frame_export_end(PyObject *frame);
