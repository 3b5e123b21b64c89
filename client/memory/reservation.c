/* SPDX-License-Identifier: Apache-2.0 */
#include "reservation.h"

#include <inttypes.h>
#include <stdatomic.h>
#include <stdlib.h>

#include "block.h"
#include "session/client.h"

struct caid_reservation {
    struct caid_client *client; /* the caller's reservation has a reference to it */
    CUdeviceptr ptr;
    size_t size;
    size_t used; /* bytes, under the client's lock */
    atomic_uint n_refs;
};

int
reservation_take(struct caid_client *client, size_t size, struct caid_reservation **ret,
                 CUdeviceptr *ret_at, struct caid_error *error)
{
    pthread_mutex_lock(&client->lock);
    struct caid_reservation *in = client->blocks->reservation;
    size_t left = in ? in->size - in->used : SIZE_MAX;
    if (in && size <= left) {
        in->n_refs++;
        *ret = in;
        *ret_at = in->ptr + in->used;
        in->used += size;
    }
    pthread_mutex_unlock(&client->lock);
    if (size > left)
        return fail(error, CAID_ERR_INVALID,
                    "a block of %zu bytes does not fit the reservation, which has %zu left",
                    size, left);
    return 0;
}

void
reservation_unref(struct caid_reservation *reservation)
{
    if (!reservation || --reservation->n_refs > 0)
        return;
    struct caid_client *client = reservation->client;
    client->gpu.drv->cu.cuMemAddressFree(reservation->ptr, reservation->size);
    free(reservation);
}

static int
reserve(struct caid_client *client, uint64_t address, struct caid_reservation *r,
        struct caid_error *error)
{
    const struct drv *drv;

    int rc = gpu_driver(client, &drv, error);
    if (rc < 0)
        return rc;
    rc = gpu_result(drv, "cuMemAddressReserve",
                    drv->cu.cuMemAddressReserve(&r->ptr, r->size, 0, address, 0), "reserve",
                    error);
    if (rc < 0 || !address || r->ptr == address)
        return rc;
    drv->cu.cuMemAddressFree(r->ptr, r->size);
    return fail(error, CAID_ERR_INVALID,
                "%zu bytes at %#" PRIx64 " are not free in this process", r->size, address);
}

int
caid_reserve(struct caid_client *client, size_t size, uint64_t address,
             struct caid_reservation **ret, uint64_t *ret_address, struct caid_error *error)
{
    int r = client_check_given(client, ret && ret_address,
                               ret ? "place for the address" : "place for it", error);
    if (r < 0)
        return r;
    _cleanup_free_ struct caid_reservation *made = calloc(1, sizeof(*made));
    if (!made)
        return fail_errno(error, ENOMEM, "no memory for a reservation");
    made->client = client;
    made->size = ALIGN_UP(size, (size_t)2 << 20); /* the driver's granularity of blocks */
    made->n_refs = 1;
    r = reserve(client, address, made, error);
    if (r < 0)
        return r;
    client_ref(client);
    *ret_address = made->ptr;
    *ret = TAKE_PTR(made);
    return 0;
}

int
caid_reservation_use(struct caid_client *client, struct caid_reservation *reservation,
                     struct caid_error *error)
{
    int r = client_enter(client, error);
    if (r < 0)
        return r;
    if (reservation && client->blocks->reservation)
        r = fail(error, CAID_ERR_INVALID, "the client uses a reservation already");
    else
        client->blocks->reservation = reservation;
    client_leave(client);
    return r;
}

void
caid_reservation_free(struct caid_reservation *reservation)
{
    if (!reservation)
        return;
    struct caid_client *client = reservation->client;
    if (!fork_guard_crossed(&client->guard)) { /* in a child the addresses are the parent's */
        pthread_mutex_lock(&client->lock);
        if (client->blocks->reservation == reservation)
            client->blocks->reservation = NULL;
        pthread_mutex_unlock(&client->lock);
        reservation_unref(reservation);
    }
    client_unref(client);
}
