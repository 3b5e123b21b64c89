/* SPDX-License-Identifier: Apache-2.0 */
/* The end of a bracket (access.h), and what is known of it then. */
#include <errno.h>

#include "access.h"
#include "array.h"
#include "client.h"
#include "lane.h"
#include "stream.h"

/* ---- the end ---- */

static void
send_end(struct caid_access *access, const struct msg_end_params *end)
{
    struct caid_client *client = access->client;

    pthread_mutex_lock(&client->lock);
    access_send_end(access, end);
    pthread_mutex_unlock(&client->lock);
}

/* Under the lane's lock from the signal until the end is on its way: the daemon takes no fence
 * that runs backwards. */
static int
signal_end(struct caid_access *access, bool abandon, struct caid_error *error)
{
    struct fence fence;

    lane_lock(access->lane);
    int r = lane_signal(access->client, access->lane, &fence, error);
    if (r == 0) {
        const struct msg_end_params end = {
            .page = fence.page->id,
            .slot = fence.slot,
            .value = fence.value,
            .abandon = abandon,
        };
        send_end(access, &end);
        fence_drop(&fence);
    }
    lane_unlock(access->lane);
    return r;
}

/* Whether the stream could be waited for: then there is nothing to signal. A capture would be
 * ended by that, and a stream of another thread's is not to be had. */
static bool
has_drained(struct caid_access *access, const struct caid_error *why)
{
    struct stream stream;

    if (why->code == CAID_ERR_INVALID || gpu_is_gone((CUresult)why->cuda_result) ||
        stream_enter_context(access->client, access->lane->handle, access->lane->context,
                             &stream, NULL) < 0)
        return false;
    CUresult result = stream.drv->cu.cuStreamSynchronize(stream.handle);
    stream_leave(&stream);
    return result == CUDA_SUCCESS;
}

/* Where no signal can be enqueued (there is no page for one more stream, say), the host waits for
 * the stream; where it cannot, nobody knows what was written. */
static int
finish(struct caid_access *access, bool abandon, struct caid_error *error)
{
    struct caid_error why = {0};

    if (!access->lane) {
        send_end(access, &(struct msg_end_params){.abandon = abandon});
        return 0;
    }
    if (signal_end(access, abandon, &why) == 0)
        return 0;
    bool drained = has_drained(access, &why);
    send_end(access, &(struct msg_end_params){.abandon = abandon || !drained});
    return drained ? 0 : fail_again(error, &why);
}

/* Takes it from others who might end it. Under the lock. */
static int
take_open(struct caid_access *access, struct caid_error *error)
{
    struct caid_client *client = access->client;

    if (client->lost.code != 0) { /* it was ended with the connection */
        if (access->state == ACCESS_OPEN)
            access_set_state(access, ACCESS_OVER);
        return fail_again(error, &client->lost);
    }
    if (access->state != ACCESS_OPEN)
        return fail(error, CAID_ERR_INVALID, "%s: the bracket has %s", access->names,
                    access->begun ? "ended" : "not begun");
    access_set_state(access, ACCESS_BUSY);
    return 0;
}

/* Entered; drops the lock meanwhile. */
static int
end(struct caid_access *access, bool abandon, struct caid_error *error)
{
    struct caid_client *client = access->client;

    int r = take_open(access, error);
    if (r < 0)
        return r;
    pthread_mutex_unlock(&client->lock);
    r = finish(access, abandon, error);
    pthread_mutex_lock(&client->lock);
    access_set_state(access, ACCESS_OVER);
    return r == 0 && client->lost.code != 0 ? fail_again(error, &client->lost) : r;
}

static int
access_end(struct caid_access *access, bool abandon, struct caid_error *error)
{
    if (!access)
        return fail(error, CAID_ERR_INVALID, "access is NULL");
    int r = client_check(access->client, error);
    if (r < 0)
        return r;
    client_enter_anyway(access->client);
    r = end(access, abandon, error);
    client_leave(access->client);
    return r;
}

int
caid_access_end(struct caid_access *access, struct caid_error *error)
{
    int r = access_end(access, false, error);
    return r < 0 ? r : caid_access_check(access, error);
}

int
caid_access_abandon(struct caid_access *access, struct caid_error *error)
{
    return access_end(access, true, error);
}

void
access_abandon(struct caid_access *access)
{
    if (access->state == ACCESS_OPEN)
        end(access, true, NULL);
    access_give_up(access);
}

void
caid_access_free(struct caid_access *access)
{
    if (!access)
        return;
    struct caid_client *client = access->client;
    if (fork_guard_crossed(&client->guard)) {
        free(access->fences);
        free(access);
        client_unref(client);
        return;
    }
    client_enter_anyway(client);
    access_abandon(access);
    pthread_mutex_unlock(&client->lock);
    access_let_go(access);
    pthread_mutex_lock(&client->lock);
    access_unref(access);
    client_leave(client);
}

/* ---- what it has read ---- */

/* Whether a fence is lost of what it read: 1. What cannot be is CAID_ERR_PROTOCOL. */
static int
look_for_loss(const struct caid_access *access, struct caid_error *error)
{
    enum fence_state state;

    for (size_t i = 0; i < access->n_fences; i++) {
        int r = fence_look(&access->fences[i], true, &state, error);
        if (r < 0)
            return r;
        if (state == FENCE_LOST && access->fences[i].data)
            return 1;
    }
    return 0;
}

/* Whether the bracket has begun, by now or before it ended: its fences change no more. */
static bool
has_begun(struct caid_access *access)
{
    struct caid_client *client = access->client;

    pthread_mutex_lock(&client->lock);
    bool begun = access->begun;
    pthread_mutex_unlock(&client->lock);
    return begun;
}

int
caid_access_check(struct caid_access *access, struct caid_error *error)
{
    if (!access)
        return fail(error, CAID_ERR_INVALID, "access is NULL");
    int r = client_check(access->client, error);
    if (r < 0)
        return r;
    if (!has_begun(access))
        return fail(error, CAID_ERR_INVALID, "%s: the bracket has not begun", access->names);
    r = look_for_loss(access, error);
    return r > 0 ? access_fail_abandoned(access, error) : r;
}

/* ---- abandoned arrays ---- */

int
caid_array_discard(struct caid_array *array, struct caid_error *error)
{
    if (!array)
        return fail(error, CAID_ERR_INVALID, "array is NULL");
    struct caid_client *client = array->client;
    int r = client_check(client, error);
    if (r == 0)
        r = access_check_array(array, true, error);
    if (r == 0)
        r = client_enter(client, error);
    if (r < 0)
        return r;

    struct msg_discard_params params = {.lease = array->lease};
    struct call call = {.method = MSG_DISCARD, .params = &params};
    r = call_run(client, &call, error);
    client_leave(client);
    return r;
}
