/* SPDX-License-Identifier: Apache-2.0 */
#include "done.h"

#include "conn.h"
#include "reply.h"
#include "state.h"

void
done_note(struct core *core, struct conn *conn, uint32_t request, enum msg_method method,
          uint64_t generation, uint64_t part)
{
    if (!conn->resumes)
        return;
    conn->done[request % DONE_MAX] = (struct done){
        .generation = generation,
        .part = part,
        .request = request,
        .method = method,
    };
    persist_done(core, conn, request % DONE_MAX);
}

const struct done *
done_find(const struct conn *conn, uint32_t request, enum msg_method method)
{
    const struct done *done = &conn->done[request % DONE_MAX];

    return conn->returned && done->method == method && done->request == request ? done : NULL;
}

void
done_answer(struct core *core, struct conn *conn, const struct done *done)
{
    const struct msg_publish_part_result part = {done->generation, done->part};
    const struct msg_publish_result publish = {done->generation};
    const struct msg_none none = {};
    const void *result = &none;

    if (done->method == MSG_PUBLISH_PART)
        result = &part;
    else if (done->method == MSG_PUBLISH || done->method == MSG_RENAME)
        result = &publish;
    send_result(core, conn, done->request, (enum msg_method)done->method, result, NULL, 0);
}
