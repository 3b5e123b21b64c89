/* SPDX-License-Identifier: Apache-2.0 */
#include "channels.h"

#include <stdlib.h>
#include <string.h>

#include "base/clock.h"
#include "format.h"
#include "record.h"

/* Two looks that are nearer to each other make no rate. */
#define APART_NS (50 * NSEC_PER_MSEC)

struct row {
    struct caid_channel_entry e;
    double rate;
};

static const struct field row_more[] = {
    FIELD(RATE, row, rate, "rate"),
    {0},
};

struct look {
    struct channels *was, now;
    struct listing *listing; /* NULL: nothing is printed */
    const char *name;
};

void
channels_deinit(struct channels *channels)
{
    free(channels->samples);
    *channels = (struct channels){0};
}

static const struct channel_sample *
sample_of(const struct channels *channels, uint64_t member)
{
    for (size_t i = 0; i < channels->n; i++)
        if (channels->samples[i].member == member)
            return &channels->samples[i];
    return NULL;
}

/* What it is now. Until some time has passed, the earlier sample stands. */
static struct channel_sample
sample_now(const struct channel_sample *was, const struct caid_channel_entry *e)
{
    struct channel_sample now = {e->member, e->sequence, clock_now_ns(), -1};

    if (!was || e->sequence < was->sequence)
        return now;
    if (now.at_ns - was->at_ns < APART_NS)
        return *was;
    now.rate =
        (double)(e->sequence - was->sequence) * NSEC_PER_SEC / (double)(now.at_ns - was->at_ns);
    return now;
}

static int
look_at(const struct caid_channel_entry *e, void *userdata)
{
    struct look *look = userdata;
    struct channels *now = &look->now;
    struct row row = {.e = *e};

    if (look->name && strcmp(e->name, look->name) != 0)
        return 0;
    now->samples = reallocarray(now->samples, now->n + 1, sizeof(now->samples[0]));
    if (!now->samples)
        out_of_memory();
    now->samples[now->n] = sample_now(sample_of(look->was, e->member), e);
    row.rate = now->samples[now->n++].rate;
    return look->listing ? listing_add(&row, look->listing) : 0;
}

static int
look_now(struct look *look, struct ctl *ctl, const struct caid_list_options *options)
{
    int r = caid_channels(ctl->client, options, look_at, look, &ctl->error);

    channels_deinit(look->was);
    *look->was = look->now;
    return r;
}

int
channels_report(struct channels *channels, struct ctl *ctl, const char *key,
                const struct caid_list_options *options, const char *name, struct table *ret)
{
    const struct fields fields =
        record_fields(&answer_channel_entry, row_more,
                      "pool name mode slots producer pid uid=USER client depth sequence rate "
                      "lag missed *");
    struct listing listing = {ctl, fields.v, ret};
    struct look look = {.was = channels, .listing = &listing, .name = name};

    listing_begin(&listing, key);
    return listing_end(&listing, look_now(&look, ctl, options), "channels");
}

int
channels_look(struct channels *channels, struct ctl *ctl,
              const struct caid_list_options *options, const char *name, size_t *ret_n)
{
    struct look look = {.was = channels, .name = name};

    if (look_now(&look, ctl, options) < 0)
        return ctl_failed(ctl, "channels");
    *ret_n = channels->n;
    return CTL_OK;
}
