/* SPDX-License-Identifier: Apache-2.0 */
#include "done.h"

#include "conn.h"
#include "reply.h"
#include "state.h"

void
done_put(struct core *core, struct conn *conn, const struct done *done)
{
    uint32_t place = done->request % DONE_MAX;

    if (!conn->resumes)
        return;
    conn->done[place] = *done;
    persist_done(core, conn, place);
}

void
done_note(struct core *core, struct conn *conn, uint32_t request, enum msg_method method,
          uint64_t generation, uint64_t part)
{
    done_put(core, conn,
             &(struct done){.generation = generation,
                            .part = part,
                            .request = request,
                            .method = (uint16_t)method});
}

const struct done *
done_find(const struct conn *conn, uint32_t request, enum msg_method method)
{
    const struct done *done = &conn->done[request % DONE_MAX];

    return conn->resumed && done->method == method && done->request == request ? done : NULL;
}

bool
done_answer(struct core *core, struct conn *conn, const struct done *done)
{
    const struct msg_publish_part_result part = {done->generation, done->part};
    const struct msg_stage_parts_result staged = {done->part, done->generation};
    const struct msg_publish_result publish = {done->generation};
    const struct msg_none none = {};
    const void *result = &none;

    if (done->method == MSG_CREATE || done->method == MSG_TAKE)
        return false;
    if (done->method == MSG_PUBLISH_PART)
        result = &part;
    else if (done->method == MSG_STAGE_PARTS)
        result = &staged;
    else if (done->method == MSG_PUBLISH || done->method == MSG_RENAME)
        result = &publish;
    send_result(core, conn, done->request, (enum msg_method)done->method, result, NULL, 0);
    return true;
}
