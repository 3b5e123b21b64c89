/* SPDX-License-Identifier: Apache-2.0 */
/*
 * The producer that a reader knows: one, or none. It is the one that the daemon has named in its
 * answer to JOIN, and stays until the next answer is taken up, which a get asks for when this one
 * has closed, or has died and the reader was told so. All is under channel->lock:
 *
 * view, producer  where it writes, and its page; NULL: there is none.
 * told            its death has been told of: from then on it counts as one that has closed.
 * asked           what was announced when the present JOIN was made.
 *
 * The last frame of a "latest" that has closed is not secured by an announcement: the next producer
 * may have looked before. It is safe if JOIN is answered that there was none yet, and was made
 * after the announcement: whoever comes then looks at that. The answer may come after the call that
 * has made JOIN, and announced; the next call takes it for its own announcement, if that is of the
 * same frame by the same place, and so has never ceased to stand.
 */
#include "port.h"
#include "session/client.h"

/* Another thread asks for the next producer. */
#define TURN_NS NSEC_PER_MSEC

/* The one before has ended: its frames that were not got are with the next one, or nowhere. Takes
 * the reference. */
static void
replace(struct caid_channel *channel, struct page *page, uint64_t counted)
{
    if (channel->producer != page)
        channel->told = false;
    if (channel->producer)
        page_unref(channel->producer);
    channel->producer = page;
    channel->view.slot = page ? &page->slots[PAGE_SLOT] : NULL;
    channel->view.table = page ? channel_table_of(page->slots) : NULL;
    channel->asked = (struct announced){0};
    if (channel->since || !counted)
        return;
    channel->since = counted;
    channel->let_go = counted - 1;
    if (!channel->latest)
        channel->next = counted;
}

static enum answer
answer_of(const struct caid_channel *channel)
{
    const struct page *known = channel->producer;

    if (channel->joined)
        return channel->joined == known ? ANSWER_SAME : ANSWER_OTHER;
    return known && channel->former == known->id ? ANSWER_SAFE : ANSWER_OTHER;
}

/* Where there is none, but the last frame of this one is another than the one that was announced
 * before JOIN was made, this one stays, to be looked at again. */
static enum answer
take_answer(struct caid_channel *channel, const struct announced *last, bool asked)
{
    pthread_mutex_lock(&channel->lock);
    pthread_mutex_lock(&channel->client->lock);
    enum answer answer = answer_of(channel);
    struct page *page = channel->joined;
    uint64_t counted = channel->counted;
    channel->joined = NULL;
    channel->is_answered = false;
    pthread_mutex_unlock(&channel->client->lock);
    if (answer == ANSWER_SAFE && last &&
        !(asked && core_is_newest(&channel->view, last->host, last->word)))
        answer = ANSWER_OTHER;
    else
        replace(channel, page, counted);
    pthread_mutex_unlock(&channel->lock);
    return answer;
}

void
producer_take_answer(struct caid_channel *channel)
{
    take_answer(channel, NULL, false);
}

/* Whether JOIN, which is still to be made or answered, is younger than this announcement. */
static bool
is_asked(struct caid_channel *channel, const struct announced *last)
{
    struct announced *asked = &channel->asked;

    pthread_mutex_lock(&channel->lock);
    pthread_mutex_lock(&channel->client->lock);
    if (channel->join.state == CALL_IDLE && !channel->is_answered)
        *asked = *last;
    pthread_mutex_unlock(&channel->client->lock);
    bool same = last->producer == channel->producer && asked->place == last->place &&
                asked->word == last->word;
    pthread_mutex_unlock(&channel->lock);
    return same;
}

int
producer_ask(struct caid_channel *channel, const struct announced *last, uint64_t deadline_ns,
             enum answer *ret, struct caid_error *error)
{
    *ret = ANSWER_SAME;
    if (atomic_exchange(&channel->rejoining, true)) {
        clock_pause_ns(TURN_NS);
        return 0;
    }
    bool asked = last && is_asked(channel, last);
    int r = member_join(channel, !last, deadline_ns, error);
    if (r == 0)
        *ret = take_answer(channel, last, asked);
    atomic_store(&channel->rejoining, false);
    return r;
}

enum core_step
producer_next(const struct caid_channel *channel, bool host, uint64_t *ret_wanted)
{
    enum core_step step = core_next(&channel->view, host, channel->next, ret_wanted);

    return step == CORE_DEAD && channel->told ? CORE_CLOSED : step;
}

int
producer_tell_death(struct caid_channel *channel, const struct page *producer,
                    struct caid_error *error)
{
    if (producer == channel->producer) {
        channel->told = true;
        channel->doubts = (struct doubts){0};
    }
    return fail(error, CAID_ERR_ABANDONED, "channel \"%s\": its producer has died",
                channel_name(channel));
}
