/* SPDX-License-Identifier: Apache-2.0 */
/*
 * The fd of a reader that is readable while its next get would give a frame, or an error
 * (caid_channel_get_fd()). It is an eventfd of this process alone, which a thread of the reader's
 * raises: nobody else has anything to write there.
 *
 * The thread looks at what a get would find (get_due()), under channel->lock, and sleeps until that
 * may have changed: on the producer's page until that submits, for a pause while the GPU is to
 * store, or until it is kicked: by gets, ends, answers to JOIN, and the channel's end. It takes no
 * frame and asks the program nothing. After a get or an end, whoever made that lowers the fd where
 * there is nothing more.
 *
 * Life: fd and thread are made by the first caid_channel_get_fd(), and end with the channel, which
 * joins the thread.
 */
#pragma once

#include <pthread.h>
#include <stdatomic.h>
#include <stdbool.h>
#include <stdint.h>

struct caid_channel;
struct page;

struct ready {
    atomic_int fd; /* -1: nobody has asked for it. Set under channel->lock */
    _Atomic uint32_t kicks;

    /* The last get was for a stream, which does not wait until a frame is whole. */
    atomic_bool by_stream;

    /* Under channel->lock. */
    pthread_t thread;
    bool raised, ends;
    struct page *awaited; /* the thread sleeps until something is submitted there; or NULL */
};

void ready_init(struct ready *ready);
/* A get, or an end, is over. Not under channel->lock. */
void ready_got(struct caid_channel *channel, bool by_stream);
void ready_update(struct caid_channel *channel);
/* What the thread waits for may have come. Any thread, any lock. */
void ready_kick(struct caid_channel *channel);
/* Ends the thread and the fd, of which duplicates stay readable. Not under a lock. */
void ready_close(struct caid_channel *channel);
