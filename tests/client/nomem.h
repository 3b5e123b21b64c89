/* SPDX-License-Identifier: Apache-2.0 */
/* Allocations of the library's that fail: the program is linked with --wrap of malloc() and its
 * like. */
#pragma once

extern int to_go; /* allocations until one fails; negative: none does */
