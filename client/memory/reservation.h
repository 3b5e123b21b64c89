/* SPDX-License-Identifier: Apache-2.0 */
/*
 * A range of addresses of this process. While it is in use, blocks of device memory are mapped in
 * it, one behind the other. So several processes can have a block at the same address, if each of
 * them reserves the range before something else lies there.
 *
 * Life: made by caid_reserve(). The caller has one reference, and each mapping in it has one; the
 * range is freed with the last. An address in it is used once: an unmapped block leaves a hole.
 */
#pragma once

#include <stddef.h>

#include "caid/caid.h"

#include "cuda_abi.h"

/* Takes size bytes of the reservation that is in use, and a reference to it; NULL and 0 if none is
 * in use. CAID_ERR_INVALID: there is no room. Not under the client's lock. */
int reservation_take(struct caid_client *client, size_t size, struct caid_reservation **ret,
                     CUdeviceptr *ret_at, struct caid_error *error);
/* NULL is allowed. */
void reservation_unref(struct caid_reservation *reservation);
