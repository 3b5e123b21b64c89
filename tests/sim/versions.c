/* SPDX-License-Identifier: Apache-2.0 */
/*
 * A publisher of versions: two sets of a part of an array each, made once, which have the name "v/"
 * in turn. One is written when the daemon has said that nobody has it. Others of its uid open the
 * member of the current one: no earlier one than was acknowledged before, and none that is being
 * written. What it holds it has again after a restart; else, and while it makes its sets, another
 * process makes others.
 */
#include "msg.h"
#include "sim.h"

#define N_SLOTS   2
#define ALL_MADE  (3 * N_SLOTS)
#define SET_NAME  "v/"
#define PART_NAME "v/x"

struct versions {
    uint32_t n_done; /* requests: three to make each set, then a publish and a vacate in turn */

    struct slot {
        uint64_t leases[2][2]; /* of the whole, of the set: lease, array */
        uint64_t block, part;
        bool is_written;
    } slots[N_SLOTS];
};

void
versions_new(struct remote *r)
{
    r->versions = calloc(1, sizeof(*r->versions));
}

/* Which a request is about: the next one is vacated before it is published. */
static struct slot *
slot_of(struct versions *v)
{
    uint32_t n = v->n_done - ALL_MADE;

    return &v->slots[v->n_done < ALL_MADE ? v->n_done / 3 : (n + 1) / 2 % N_SLOTS];
}

static enum msg_method
method_of(const struct versions *v)
{
    if (v->n_done < ALL_MADE)
        return v->n_done % 3 == 2 ? MSG_STAGE_PARTS : MSG_CREATE;
    return (v->n_done - ALL_MADE) % 2 ? MSG_VACATE : MSG_PUBLISH;
}

bool
versions_ask(struct remote *r)
{
    struct slot *slot = slot_of(r->versions);
    const int64_t bytes = r->versions->n_done % 3 ? 0 : 4096, part = 4000;
    const struct msg_member member = {.key = MSG_STR("x"),
                                      .typestr = MSG_STR("|u1"),
                                      .shape = {&part, 1}};
    const uint64_t whole = slot->leases[0][0], set = slot->leases[1][0];

    switch (method_of(r->versions)) {
    case MSG_STAGE_PARTS:
        return users_request(r, MSG_STAGE_PARTS,
                             &(struct msg_stage_parts_params){set, whole, &member, 1, false});
    case MSG_VACATE:
        return users_request(r, MSG_VACATE,
                             &(struct msg_vacate_params){.leases = {&set, 1},
                                                         .own = {&whole, 1}});
    case MSG_PUBLISH:
        slot->is_written = false;
        return users_request(r, MSG_PUBLISH,
                             &(struct msg_publish_params){.lease = set,
                                                          .name = MSG_STR(SET_NAME)});
    default:
        return users_request(r, MSG_CREATE,
                             &(struct msg_create_params){.typestr = MSG_STR("|u1"),
                                                         .shape = {&bytes, 1}});
    }
}

/* Nobody has it whose process is there. */
static void
check_vacant(const struct remote *publisher, const struct slot *slot)
{
    const struct remote *r;

    LIST_FOREACH(r, &remotes.all, link)
        SIM_CHECK(r->exited || !r->lease || r->array != slot->part,
                  "uid %u has a version that is vacant", publisher->user->uid);
}

static void
note(struct remote *r, struct msg *m)
{
    struct slot *slot = slot_of(r->versions);

    union {
        struct msg_arrays_result made;
        struct msg_stage_parts_result staged;
        struct msg_publish_result published;
        struct msg_vacate_result vacated;
    } result;
    enum msg_method method = method_of(r->versions);

    SIM_CHECK(msg_decode_result(m, method, &result) == 0, "a reply");
    if (method == MSG_CREATE) {
        uint64_t *lease = slot->leases[r->versions->n_done % 3];
        lease[0] = result.made.arrays[0].lease;
        lease[1] = result.made.arrays[0].array;
        if (result.made.arrays[0].block)
            slot->block = result.made.arrays[0].block;
    } else if (method == MSG_STAGE_PARTS) {
        slot->part = result.staged.part;
    } else if (method == MSG_PUBLISH) {
        SIM_CHECK(result.published.generation > r->user->generation, "a generation of before");
        r->user->generation = result.published.generation;
    } else {
        check_vacant(r, slot);
        slot->is_written = true;
    }
}

bool
versions_answered(struct remote *r, struct msg *m)
{
    if (m->error) {
        SIM_CHECK(r->versions->n_done < ALL_MADE, "a publisher is refused: %.*s",
                  (int)m->error_text.n, m->error_text.p);
        return false;
    }
    note(r, m);
    r->versions->n_done++;
    return true;
}

bool
versions_open(struct remote *r)
{
    const struct msg_str name = MSG_STR(PART_NAME);

    r->generation = r->user->generation;
    return users_request(r, MSG_OPEN,
                         &(struct msg_open_params){.names = {&name, 1}, .mode = MSG_STR("r")});
}

void
versions_opened(const struct remote *reader, uint32_t error, uint64_t generation,
                uint64_t array)
{
    const struct remote *r;

    SIM_CHECK(error != PROTO_ERR_NOT_FOUND || !reader->generation, "a version is lost");
    if (error)
        return;
    SIM_CHECK(generation >= reader->generation, "a version of before is current");
    LIST_FOREACH(r, &remotes.all, link)
        for (int i = 0; i < N_SLOTS && r->versions && !r->exited; i++)
            SIM_CHECK(!r->versions->slots[i].is_written || r->versions->slots[i].part != array,
                      "uid %u reads what is written", reader->user->uid);
}

bool
versions_are_made(const struct remote *r)
{
    return r->versions->n_done >= ALL_MADE;
}

uint32_t
versions_leases(const struct remote *r, uint64_t *ret_leases, uint64_t *ret_blocks)
{
    uint32_t n = 0;

    for (int i = 0; i < N_SLOTS; i++) {
        ret_blocks[i] = r->versions->slots[i].block;
        for (int j = 0; j < 2; j++) {
            ret_leases[n++] = r->versions->slots[i].leases[j][0];
            ret_leases[n++] = r->versions->slots[i].leases[j][1];
        }
    }
    return n;
}
