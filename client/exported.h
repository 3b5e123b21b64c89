/* SPDX-License-Identifier: Apache-2.0 */
/* What the library exports is what its headers declare. All its files are compiled with this
 * before them. */
#pragma GCC visibility push(default)
#include "caid/caid.h"
#pragma GCC visibility pop
