/* SPDX-License-Identifier: Apache-2.0 */
/*
 * What replies say, for tests to look at.
 */
#include <stdio.h>

#include "books.h"
#include "caid_test.h"

static void
copy(char *ret, size_t size, struct msg_str s)
{
    snprintf(ret, size, "%.*s", (int)s.n, s.p ? s.p : "");
}

#define COPY(ret, s) copy(ret, sizeof(ret), s)

static void
note_list(struct h_reply *reply, const struct msg_list_result *result)
{
    reply->n_entries = result->n_entries;
    reply->more = result->more;
    for (uint32_t i = 0; i < result->n_entries && i < ARRAY_SIZE(reply->names); i++) {
        COPY(reply->names[i], result->entries[i].name);
        reply->n_leases[i] = result->entries[i].leases;
        reply->entries[i] = result->entries[i];
    }
}

static void
note_lost(struct h_reply *reply, const struct msg_lost_result *result)
{
    reply->n_entries = result->n_names;
    reply->more = result->more;
    for (uint32_t i = 0; i < result->n_names && i < ARRAY_SIZE(reply->names); i++)
        COPY(reply->names[i], result->names[i].name);
    if (result->n_names)
        COPY(reply->text, result->names[0].why);
}

static void
note_holders(struct h_reply *reply, const struct msg_holder *holders, uint32_t n)
{
    for (uint32_t i = 0; i < n && i < ARRAY_SIZE(reply->holder_pids); i++) {
        reply->holder_pids[i] = holders[i].pid;
        reply->hung_up[i] = holders[i].hung_up;
        reply->holders[i] = holders[i];
    }
}

static void
note_show(struct h_reply *reply, const struct msg_details *result)
{
    reply->array = result->array;
    reply->block = result->block;
    reply->offset = result->offset;
    reply->generation = result->entries[0].generation;
    reply->n_leases[0] = result->entries[0].leases;
    reply->entries[0] = result->entries[0];
    reply->n_entries = result->n_holders;
    COPY(reply->metadata, result->metadata);
    note_holders(reply, result->holders, result->n_holders);
}

static void
note_unnamed(struct h_reply *reply, const struct msg_unnamed_result *result)
{
    reply->n_entries = result->n_arrays;
    reply->more = result->more;
    for (uint32_t i = 0; i < result->n_arrays && i < ARRAY_SIZE(reply->names); i++) {
        COPY(reply->names[i], result->arrays[i].entries[0].name);
        reply->n_leases[i] = result->arrays[i].entries[0].leases;
        reply->entries[i] = result->arrays[i].entries[0];
        reply->companion_of[i] = result->arrays[i].companion_of;
    }
    if (result->n_arrays) { /* what to go on after */
        const struct msg_details *last = &result->arrays[result->n_arrays - 1];
        reply->array = last->array;
        reply->block = last->block;
        reply->offset = last->offset + last->bytes;
        reply->generation = last->entries[0].generation;
        COPY(reply->metadata, last->entries[0].name);
        note_holders(reply, last->holders, last->n_holders);
    }
}

/* The names of each message that has some, as "a,b+3;", in the text; what is too long is cut. */
static void
note_messages(struct h_reply *reply, const struct msg_monitor_result *result)
{
    FILE *out = fmemopen(reply->text, sizeof(reply->text), "w");

    reply->n_entries = result->n_messages;
    reply->n_lost = result->lost;
    for (uint32_t i = 0; i < result->n_messages; i++) {
        const struct msg_message *m = &result->messages[i];
        for (uint32_t k = 0; k < m->names.n; k++)
            fprintf(out, "%s%.*s", k ? "," : "", (int)m->names.v[k].n, m->names.v[k].p);
        if (m->more_names)
            fprintf(out, "+%d", (int)m->more_names);
        if (m->names.n || m->more_names)
            fprintf(out, ";");
    }
    fclose(out);
}

/* The first ones of a list of numbers. */
#define NOTE_NUMBERS(reply, field, result)                    \
    do {                                                      \
        (reply)->n_entries = (result)->n_##field;             \
        for (uint32_t i_ = 0; i_ < (result)->n_##field; i_++) \
            if (i_ < ARRAY_SIZE((reply)->field))              \
                (reply)->field[i_] = (result)->field[i_];     \
    } while (0)

union result {
    struct msg_arrays_result arrays;
    struct msg_list_result list;
    struct msg_hello_result hello;
    struct msg_resume_result resume;
    struct msg_status status;
    struct msg_details show;
    struct msg_pools_result pools;
    struct msg_memory_result memory;
    struct msg_publish_result publish;
    struct msg_publish_part_result publish_part;
    struct msg_stage_parts_result stage_parts;
    struct msg_vacate_result vacate;
    struct msg_join_result join;
    struct msg_members_result members;
    struct msg_channels_result channels;
    struct msg_parts_result parts;
    struct msg_watch_result watch;
    struct msg_flushed flush;
    struct msg_unnamed_result unnamed;
    struct msg_users_result users;
    struct msg_connections_result connections;
    struct msg_page_result page;
    struct msg_fences_result fences;
    struct msg_open_timeline_result open_timeline;
    struct msg_timelines_result timelines;
    struct msg_withdraw_result withdraw;
    struct msg_lost_result lost;
    struct msg_monitor_result monitor;
    struct msg_metrics_result metrics;
};

static void
note_timelines(struct h_reply *reply, const struct msg_timelines_result *result)
{
    NOTE_NUMBERS(reply, timelines, result);
    reply->more = result->more;
    for (uint32_t i = 0; i < result->n_timelines && i < ARRAY_SIZE(reply->names); i++)
        COPY(reply->names[i], result->timelines[i].name);
}

static void
note_parts(struct h_reply *reply, struct msg_u64s parts)
{
    reply->n_parts = parts.n;
    for (uint32_t i = 0; i < parts.n && i < H_PARTS; i++)
        reply->parts[i] = parts.v[i];
}

static void
note_memory(struct h_reply *reply, const struct msg_memory_result *result)
{
    reply->n_entries = result->n_devices;
    for (uint32_t i = 0; i < result->n_devices && i < H_DEVICES; i++)
        reply->memory[i] = result->devices[i];
}

static void
note_result(struct harness *h, const struct core_action *a, enum msg_method method,
            const union result *result)
{
    struct h_reply *reply = &h->replies[a->conn];

    switch (method) {
    case MSG_CREATE:
    case MSG_OPEN:
    case MSG_OPEN_COMPANION:
    case MSG_TAKE: books_arrays(h, a, method, &result->arrays, reply); break;
    case MSG_LIST: note_list(reply, &result->list); break;
    case MSG_SHOW: note_show(reply, &result->show); break;
    case MSG_RANGES:
    case MSG_UNNAMED: note_unnamed(reply, &result->unnamed); break;
    case MSG_MEMORY_INFO: note_memory(reply, &result->memory); break;
    case MSG_POOLS: NOTE_NUMBERS(reply, pools, &result->pools); break;
    case MSG_USERS:
        NOTE_NUMBERS(reply, users, &result->users);
        reply->more = result->users.more;
        break;
    case MSG_CONNECTIONS:
        NOTE_NUMBERS(reply, connections, &result->connections);
        reply->more = result->connections.more;
        reply->array = result->connections.after;
        break;
    case MSG_CHANNELS:
        NOTE_NUMBERS(reply, channels, &result->channels);
        reply->more = result->channels.more;
        break;
    case MSG_PUBLISH:
    case MSG_EXPIRE:
    case MSG_RENAME: reply->generation = result->publish.generation; break;
    case MSG_PUBLISH_PART:
        reply->generation = result->publish_part.generation;
        reply->array = result->publish_part.part;
        break;
    case MSG_STAGE_PARTS:
        reply->array = result->stage_parts.part;
        reply->layout = result->stage_parts.layout;
        break;
    case MSG_VACATE: reply->lease = result->vacate.lease; break;
    case MSG_PARTS: note_parts(reply, result->parts.parts); break;
    case MSG_RESUME: note_parts(reply, result->resume.lost); break;
    case MSG_HELLO: reply->resumed = result->hello.resumed; break;
    case MSG_WATCH: reply->generation = result->watch.generation; break;
    case MSG_FLUSH: reply->flush = result->flush; break;
    case MSG_PAGE: books_page(h, a, &result->page, reply); break;
    case MSG_JOIN: books_join(h, a, &result->join, reply); break;
    case MSG_MEMBERS: books_members(h, a, &result->members, reply); break;
    case MSG_BEGIN:
    case MSG_FENCES: books_fences(h, a, &result->fences, reply); break;
    case MSG_OPEN_TIMELINE: books_timeline(h, a, &result->open_timeline, reply); break;
    case MSG_TIMELINES: note_timelines(reply, &result->timelines); break;
    case MSG_WITHDRAW: reply->n_entries = (uint32_t)result->withdraw.n; break;
    case MSG_LOST: note_lost(reply, &result->lost); break;
    case MSG_METRICS:
        reply->n_entries = result->metrics.n_metrics;
        reply->more = result->metrics.more;
        break;
    case MSG_MONITOR: note_messages(reply, &result->monitor); break;
    case MSG_STATUS: reply->status = result->status; break;
    default: break;
    }
}

void
books_reply(struct harness *h, const struct core_action *a)
{
    struct h_reply *reply = &h->replies[a->conn];
    union result result;
    struct msg m;

    if (h->buried)
        return;
    cr_assert_leq(a->n_packet, PROTO_PACKET_MAX);
    cr_assert_leq(a->n_fds, PROTO_FDS_MAX);
    cr_assert_eq(msg_parse(&m, a->packet, a->n_packet), 0);
    cr_assert_eq(m.type, MSG_RESPONSE);
    *reply = (struct h_reply){.seen = true,
                              .id = m.id,
                              .error = m.error,
                              .left = m.error_left,
                              .n_fds = a->n_fds};
    copy(reply->text, sizeof(reply->text), m.error_text);
    for (size_t i = 0; i < a->n_fds && i < ARRAY_SIZE(reply->fds); i++)
        reply->fds[i] = a->fds[i];
    if (!m.error && m.id == h->asking.id && a->n_packet <= sizeof(h->asking.answer)) {
        h->done = h->asking;
        memcpy(h->done.answer, a->packet, h->done.n_answer = a->n_packet);
    }
    if (m.error)
        books_refused(h, a->conn, m.id);
    if (!m.error) {
        cr_assert_eq(h->asked_ids[m.id % H_ASKED], m.id, "an answer to what nobody asked");
        enum msg_method method = h->asked[m.id % H_ASKED];
        cr_assert_eq(msg_decode_result(&m, method, &result), 0);
        note_result(h, a, method, &result);
    }
    msg_deinit(&m);
    if (h->on_reply)
        h->on_reply(h, a->conn, reply);
}
