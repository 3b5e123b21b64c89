/* SPDX-License-Identifier: Apache-2.0 */
/*
 * Makes and closes a client: the one file that knows all features of the library. The session and
 * the features' tables are one allocation, which lives as long as the session (session/client.h).
 */
#include <errno.h>
#include <stdlib.h>

#include "arena/arena.h"
#include "channel/port.h"
#include "handoff/bracket.h"
#include "handoff/lane.h"
#include "handoff/page.h"
#include "memory/array.h"
#include "memory/behind.h"
#include "memory/block.h"
#include "memory/lease.h"
#include "memory/part.h"
#include "memory/watch.h"
#include "session/client.h"
#include "session/connect.h"
#include "session/feature.h"
#include "session/gpu.h"
#include "session/resume.h"

DEFINE_CLEANUP(struct caid_client *, caid_client_close)

/* The order in which hooks are called. The end of a bracket is sent before its arrays and pages are
 * given up. Lanes, which wait for pages, end before these; both end before the blocks, which stay
 * if one of them keeps memory; the driver ends last. */
static const struct feature *const features[] = {
    &call_feature,  &resume_feature, &bracket_feature, &channel_feature, &lease_feature,
    &lane_feature,  &page_feature,   &arena_feature,   &behind_feature,  &array_feature,
    &block_feature, &watch_feature,  &part_feature,    &gpu_feature,     NULL,
};

struct whole {
    struct caid_client client; /* the first member: free() gets its address */
    struct bracket_table brackets;
    struct arena_list arenas;
    struct behind_table behinds;
    struct block_table blocks;
    struct channels channels;
    struct lane_table lanes;
    struct lease_table leases;
    struct page_table pages;
    struct part_table parts;
    struct watch_table watches;
};

struct caid_client *
client_new(void)
{
    struct whole *whole = calloc(1, sizeof(*whole));

    if (!whole)
        return NULL;
    struct caid_client *client = &whole->client;
    bracket_table_init(client->brackets = &whole->brackets);
    arena_list_init(client->arenas = &whole->arenas);
    behind_table_init(client->behinds = &whole->behinds);
    block_table_init(client->blocks = &whole->blocks);
    channels_init(client->channels = &whole->channels);
    lane_table_init(client->lanes = &whole->lanes);
    client->leases = &whole->leases;
    page_table_init(client->pages = &whole->pages);
    part_table_init(client->parts = &whole->parts);
    watch_table_init(client->watches = &whole->watches);
    client_init(client, features);
    return client;
}

int
caid_connect(struct caid_client **ret, const struct caid_connect_options *options,
             struct caid_error *error)
{
    struct caid_connect_options opts;

    if (!ret)
        return fail(error, CAID_ERR_INVALID, "the place for the client is NULL");
    int r = options_read(&opts, sizeof(opts), options, error);
    if (r < 0)
        return r;
    struct attempts attempts = {0};
    do {
        _cleanup_(caid_client_closep) struct caid_client *client = client_new();
        if (!client)
            return fail_errno(error, ENOMEM, "no memory for a client");
        r = connect_client(client, &opts, &attempts, error);
        if (r == 0)
            *ret = TAKE_PTR(client);
    } while (r < 0 && connect_pause(&attempts));
    return r;
}

void
caid_client_close(struct caid_client *client)
{
    if (!client)
        return;
    if (!fork_guard_crossed(&client->guard)) {
        client_enter_anyway(client);
        bracket_close(client);
        channels_close(client);
        pthread_mutex_unlock(&client->lock);
        lanes_close(client);
        pthread_mutex_lock(&client->lock);
        reaper_stop(client);
        behind_close(client);
        block_tidy(client,
                   true); /* tells the daemon that blocks are not mapped here any more */
        pages_close(client);
        call_flush_all(client); /* ends that are not sent would count as abandoned work */
        client_lose(client, CAID_ERR_CLOSED, "%s: the client is closed", client->socket);
        resume_stop(client);
        client->handle_closed = true;
        part_close_all(client);
        client_leave(client);
    }
    client_unref(client);
}
