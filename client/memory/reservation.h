/* SPDX-License-Identifier: Apache-2.0 */
/*
 * A range of addresses of this process in which blocks of device memory are mapped, one after
 * another, while it is in use: so that several processes have a block at the same address, which
 * each of them has reserved before something else lies there.
 *
 * Life: made by caid_reserve(). The caller has one reference, and each mapping in it one; the range
 * is freed with the last. A place in it is used once: what was unmapped leaves a hole.
 */
#pragma once

#include <stddef.h>

#include "caid/caid.h"

#include "cuda_abi.h"

/* A place of size bytes in the reservation that is in use, and a reference to that; NULL and 0
 * where none is. CAID_ERR_INVALID: there is no room. Not under the client's lock. */
int reservation_take(struct caid_client *client, size_t size, struct caid_reservation **ret,
                     CUdeviceptr *ret_at, struct caid_error *error);
/* NULL is allowed. */
void reservation_unref(struct caid_reservation *reservation);
