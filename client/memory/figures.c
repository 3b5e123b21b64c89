/* SPDX-License-Identifier: Apache-2.0 */
/*
 * Calls about tickets, devices' memory and the deallocation queues. The client keeps no state for
 * them.
 */
#include <errno.h>

#include "block.h"
#include "session/answer.h"
#include "session/client.h"

/* ---- tickets ---- */

int
caid_withdraw(struct caid_client *client, const struct caid_withdraw_options *options,
              uint64_t *ret_n, struct caid_error *error)
{
    struct caid_withdraw_options opts;
    struct msg_withdraw_params params;
    struct msg_withdraw_result result = {0};
    uint64_t n = 0;

    int r = client_check(client, error);
    if (r == 0)
        r = options_read(&opts, sizeof(opts), options, error);
    if (r < 0)
        return r;
    do {
        _cleanup_reply_ struct reply reply = {0};
        params = (struct msg_withdraw_params){.pid = opts.pid,
                                              .gone = opts.gone,
                                              .uid = result.uid,
                                              .number = result.number};
        r = reply_get(&reply, client, MSG_WITHDRAW, &params, &result, error);
        if (r < 0)
            return r;
        if (result.more && (result.uid < params.uid ||
                            (result.uid == params.uid && result.number <= params.number)))
            return client_violated(client, "withdraw", error);
        n += result.n;
    } while (result.more);
    if (ret_n)
        *ret_n = n;
    return 0;
}

/* ---- memory ---- */

int
caid_memory_info(struct caid_client *client, int32_t device, struct caid_memory_info *ret,
                 struct caid_error *error)
{
    _cleanup_reply_ struct reply reply = {0};
    struct caid_memory_info info = {0};
    struct msg_memory_result result;
    const char *uuid;

    int r = client_check(client, error);
    if (r == 0)
        r = client_device_uuid(client, device, &uuid, error);
    if (r < 0)
        return r;
    struct msg_memory_params params = {.device = MSG_STR(uuid)};
    r = reply_get(&reply, client, MSG_MEMORY_INFO, &params, &result, error);
    if (r < 0)
        return r;
    if (result.n_devices != 1 || !msg_str_eq(result.devices[0].uuid, uuid))
        return client_violated(client, "memory_info", error);
    if (answer_fill(&answer_memory_info, client, &reply, &result.devices[0], &info) < 0)
        return client_violated(client, "memory_info", error);
    return result_write(ret, &info, sizeof(info), error);
}

/* ---- the deallocation queues ---- */

int
caid_flush(struct caid_client *client, int32_t device, struct caid_flushed *ret,
           struct caid_error *error)
{
    _cleanup_reply_ struct reply reply = {0};
    struct msg_flush_params params = {0};
    struct msg_flushed result;
    struct caid_flushed flushed;
    const char *uuid;

    int r = client_check(client, error);
    if (r == 0 && device != -1) {
        r = client_device_uuid(client, device, &uuid, error);
        if (r == 0)
            params.device = MSG_STR(uuid);
    }
    if (r == 0)
        r = block_drain(client, error); /* the flush is to include what is closed by now */
    if (r == 0)
        r = reply_get(&reply, client, MSG_FLUSH, &params, &result, error);
    if (r < 0 || !ret)
        return r;
    if (answer_fill(&answer_flushed, client, &reply, &result, &flushed) < 0)
        return client_violated(client, "flush", error);
    return result_write(ret, &flushed, sizeof(flushed), error);
}

int
caid_drain(struct caid_client *client, bool drain, struct caid_error *error)
{
    _cleanup_reply_ struct reply reply = {0};
    const struct msg_drain_params params = {.undo = !drain};
    struct msg_none result;

    return reply_get(&reply, client, MSG_DRAIN, &params, &result, error);
}

static const struct msg_defer_params defer_begin = {.begin = true},
                                     defer_end = {.begin = false};

static int
take_begin(struct caid_client *client, struct call *call UNUSED, const void *result UNUSED,
           struct call_fds *fds UNUSED)
{
    client->deferring++;
    resume_need(client);
    return 0;
}

static int
take_end(struct caid_client *client, struct call *call UNUSED, const void *result UNUSED,
         struct call_fds *fds UNUSED)
{
    client->deferring--;
    return 0;
}

/* A begin that was left is ended when the daemon has carried it out. */
static void
begin_over(struct caid_client *client, struct call *call)
{
    bool begun = call->take == take_begin && call->r == 0;

    call->params = &defer_end;
    call->take = take_end;
    if (!begun || !call_queue_late(client, call))
        free(call);
}

int
caid_defer_begin(struct caid_client *client, struct caid_error *error)
{
    struct call *call = call_new(sizeof(*call), MSG_DEFER, &defer_begin);

    if (call) {
        call->take = take_begin;
        call->over = begin_over;
    }
    return call_make(client, call, error);
}

int
caid_defer_end(struct caid_client *client, struct caid_error *error)
{
    struct call *call = call_new(sizeof(*call), MSG_DEFER, &defer_end);

    if (call)
        call->take = take_end;
    return call_make(client, call, error);
}
