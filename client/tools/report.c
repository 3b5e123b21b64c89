/* SPDX-License-Identifier: Apache-2.0 */
#include "report.h"

#include <fnmatch.h>
#include <inttypes.h>
#include <stdarg.h>
#include <stdio.h>
#include <stdlib.h>

#include "format.h"
#include "session/query.h"

int
report_end(struct ctl *ctl, int status, const struct table *table)
{
    if (status != CTL_OK)
        return status;
    json_object_end(&ctl->out);
    if (!ctl->json)
        table_print(table, true);
    return CTL_OK;
}

struct caid_list_options
report_options(const struct ctl *ctl)
{
    return (struct caid_list_options){
        .struct_size = sizeof(struct caid_list_options),
        .pool = ctl->pool,
        .prefix = ctl->prefix,
        .all = ctl->all,
    };
}

/* Whether the pattern of the command line, if there is one, takes the name. */
static bool
is_listed(const struct ctl *ctl, const char *name)
{
    return !ctl->pattern || fnmatch(ctl->pattern, name, FNM_NOESCAPE) == 0;
}

static int
lost_row(const void *record, void *listing)
{
    const struct caid_lost *lost = record;

    return is_listed(((const struct listing *)listing)->ctl, lost->name)
               ? listing_add(record, listing)
               : 0;
}

int
report_query(struct ctl *ctl, const char *query, const char *headings, struct table *ret)
{
    const struct fields fields = record_fields(query_answer(query_find(query)), NULL, headings);
    const struct caid_list_options options = report_options(ctl);
    struct listing listing = {ctl, fields.v, ret};

    listing_begin(&listing, query);
    return listing_end(&listing,
                       query_run(query_find(query), ctl->client, &options,
                                 ctl->lost ? lost_row : listing_add, &listing, &ctl->error),
                       query);
}

/* ---- devices ---- */

struct device_row {
    struct caid_memory_info m;
    int32_t index;
};

static const struct field device_more[] = {
    FIELD(DEVICE, device_row, index, "index"),
    {0},
};

int
report_devices(struct ctl *ctl, const char *key, int32_t device, struct table *ret)
{
    const struct fields fields = record_fields(
        &answer_memory_info, device_more,
        "available= pending= quarantined= flushes= releases= index=DEVICE name total free used=CAID "
        "allocated pending_bytes=PENDING reserve pinned quarantined_bytes=QUARANTINED context blocks "
        "arrays uuid *");
    const struct caid_device *const *devices;
    int32_t n = caid_client_devices(ctl->client, &devices);
    int32_t first = device < 0 ? 0 : device, end = device < 0 ? n : device + 1;
    struct listing listing = {ctl, fields.v, ret};

    listing_begin(&listing, key);
    for (int32_t i = first; i < end; i++) {
        struct device_row row = {.m = CAID_INIT(row.m), .index = i};
        if (caid_memory_info(ctl->client, i, &row.m, &ctl->error) < 0)
            return ctl_failed(ctl, devices[i]->uuid);
        listing_add(&row, &listing);
    }
    return listing_end(&listing, 0, key);
}

/* ---- pools ---- */

struct pool_row {
    struct caid_pool p;
    double fragmentation;
};

static const struct field pool_more[] = {
    FIELD(RATIO, pool_row, fragmentation, "fragmentation"),
    {0},
};

static const char pools_by_access[] =
    "name=POOL uid=USER gid=GROUP mode legacy used quota names arrays";
static const char pools_by_memory[] =
    "uid= gid= mode= legacy= name=POOL used quota allocated pending reserve holes largest "
    "fragmentation=FRAGMENTED pinned blocks names arrays *";

double
report_fragmentation(const struct caid_pool *pool)
{
    return pool->holes > 0 ? 1.0 - (double)pool->largest / (double)pool->holes : 0.0;
}

static int
pool_row(const void *record, void *listing)
{
    const struct caid_pool *p = record;
    const struct pool_row row = {*p, report_fragmentation(p)};
    return listing_add(&row, listing);
}

void
report_pool(struct ctl *ctl, const struct caid_pool *p)
{
    const struct fields fields = record_fields(&answer_pool, pool_more, pools_by_access);

    pool_row(p, &(struct listing){.ctl = ctl, .fields = fields.v});
}

int
report_pools(struct ctl *ctl, const char *key, enum report_pools form, struct table *ret)
{
    const struct fields fields =
        record_fields(&answer_pool, pool_more,
                      form == POOLS_BY_ACCESS ? pools_by_access : pools_by_memory);
    struct listing listing = {ctl, fields.v, ret};

    listing_begin(&listing, key);
    return listing_end(&listing,
                       query_run(query_find("pools"), ctl->client, NULL, pool_row, &listing,
                                 &ctl->error),
                       "pools");
}

/* ---- users ---- */

int
report_users(struct ctl *ctl, struct table *ret)
{
    return report_query(
        ctl, "users",
        "uid=USER bytes=DEVICE pinned host arrays names leases brackets pages fds "
        "watches connections=CLIENTS jobs=CALLS pending deferred time_ns=TIME *",
        ret);
}

/* ---- arrays ---- */

const char *
report_uuid(const struct ctl *ctl, int32_t device)
{
    const struct caid_device *const *devices;
    int n = caid_client_devices(ctl->client, &devices);
    return device >= 0 && device < n ? devices[device]->uuid : NULL;
}

struct entry_row {
    struct caid_entry e;
    const char *uuid, *state;
    char *use;
};

static const struct field entry_more[] = {
    FIELD(TEXT, entry_row, uuid, "device_uuid"),
    FIELD(CELL, entry_row, use, "use"),
    FIELD(CELL, entry_row, state, "state"),
    {0},
};

#define ENTRY "name typestr=TYPE shape nbytes=SIZE memory leases "

static const char *
entry_headings(const struct ctl *ctl)
{
    if (ctl->long_)
        return "device_uuid= use= abandoned= ttl_ns= members= of_set= sets= pool " ENTRY
               "readers writers waiting state parts device generation uid=USER age_ns=AGE "
               "published_ns=PUBLISHED opened_ns=OPENED *";
    return ctl->all ? "pool " ENTRY "use" : ENTRY "use";
}

/* What tables are sorted by: of an entry, but for `held`, which is its holder's. */
static const struct sort_key {
    const char *name;
    size_t at;
} sort_keys[] = {
    {"size", offsetof(struct caid_entry, nbytes)},
    {"leases", offsetof(struct caid_entry, leases)},
    {"age", offsetof(struct caid_entry, age_ns)},
    {"published", offsetof(struct caid_entry, published_ns)},
    {"opened", offsetof(struct caid_entry, opened_ns)},
    {"held", SIZE_MAX},
};

static const struct sort_key *
find_sort_key(const char *name)
{
    for (size_t i = 0; i < ARRAY_SIZE(sort_keys); i++)
        if (strcmp(sort_keys[i].name, name) == 0)
            return &sort_keys[i];
    return NULL;
}

bool
report_can_sort(const char *by, bool has_holders)
{
    const struct sort_key *key = find_sort_key(by);

    return key && (has_holders || key->at != SIZE_MAX);
}

/* What has not been opened comes before what was long ago. held_ns: of the holder. */
static void
add_sort_key(const struct listing *listing, const struct caid_entry *e, uint64_t held_ns)
{
    const struct sort_key *key = listing->ctl->sort ? find_sort_key(listing->ctl->sort) : NULL;
    uint64_t value = held_ns;

    if (!key)
        return;
    if (key->at != SIZE_MAX)
        memcpy(&value, (const char *)e + key->at, sizeof(value));
    if (key->at == offsetof(struct caid_entry, opened_ns) && value == 0)
        value = UINT64_MAX;
    table_key(listing->table, value);
}

static int
entry_row(const void *record, void *userdata)
{
    const struct caid_entry *e = record;
    struct listing *listing = userdata;
    const struct ctl *ctl = listing->ctl;
    if (!is_listed(ctl, e->name))
        return 0;
    _cleanup_free_ char *use = report_use(e);
    const struct entry_row row = {.e = *e,
                                  .uuid = report_uuid(ctl, e->device),
                                  .state = e->abandoned ? "abandoned" : "-",
                                  .use = use};

    if (!ctl->json)
        add_sort_key(listing, e, 0);
    return listing_add(&row, listing);
}

int
report_entries(struct ctl *ctl, struct table *ret)
{
    const struct fields fields = record_fields(&answer_entry, entry_more, entry_headings(ctl));
    const struct caid_list_options options = report_options(ctl);
    struct listing listing = {ctl, fields.v, ret};

    listing_begin(&listing, "arrays");
    return listing_end(&listing,
                       query_run(query_find("list"), ctl->client, &options, entry_row, &listing,
                                 &ctl->error),
                       "list");
}

void
report_details(struct ctl *ctl, const struct caid_details *d)
{
    record_answer(&ctl->out, &answer_details, d);
    json_str(&ctl->out, "device_uuid", report_uuid(ctl, d->entry->device));
}

char *
report_use(const struct caid_entry *e)
{
    const struct {
        uint64_t n;
        const char *verb;
    } uses[] = {{e->readers, "read"}, {e->writers, "write"}, {e->waiting, "wait"}};

    char *text = NULL;
    size_t size;
    const char *between = "";

    FILE *out = open_memstream(&text, &size);
    if (!out)
        out_of_memory();
    for (size_t i = 0; i < ARRAY_SIZE(uses); i++) {
        if (uses[i].n == 0)
            continue;
        fprintf(out, "%s%" PRIu64 " %s", between, uses[i].n, uses[i].verb);
        between = ", ";
    }
    if (e->abandoned)
        fprintf(out, "%sabandoned", between);
    else if (!*between)
        fputs("-", out);
    if (fclose(out) != 0)
        out_of_memory();
    return text;
}

/* The holder's brackets, as in ", brackets: 1 read, 2 wait". */
static char *
holder_use(const struct caid_holder *holder)
{
    struct caid_entry as = {.readers = holder->reading,
                            .writers = holder->writing,
                            .waiting = holder->waiting};
    _cleanup_free_ char *use = report_use(&as);

    return use[0] == '-' ? format_text("%s", "") : format_text(", brackets: %s", use);
}

char *
report_holder(const struct caid_holder *holder)
{
    _cleanup_free_ char *user = format_user(holder->uid);
    _cleanup_free_ char *use = holder_use(holder);
    _cleanup_free_ char *process =
        holder->pid ? format_text("pid %" PRIu64, holder->pid)
                    : format_text("%s", "a process in another pid namespace");

    _cleanup_free_ char *age = format_duration(holder->age_ns);

    return format_text("%s of %s, %s for %s%s%s%s%s%s", process, user,
                       holder->readonly ? "r" : "rw", age, holder->client ? ", " : "",
                       holder->client ? holder->client : "",
                       holder->hung_up && !holder->sent ? ", hung up and not exited" : "",
                       holder->sent ? ", sent and not taken" : "", use);
}

/* ---- unnamed arrays ---- */

/* A row for each process, since people look for processes here. */
static const struct column unnamed_columns[] = {
    {"PID", true},   {"USER", false},      {"CLIENT", false},    {"MODE", false},
    {"POOL", false}, {"LAST NAME", false}, {"GENERATION", true}, {"MEMORY", false},
    {"SIZE", true},  {"HELD", true},
};

static void
add_entry(const struct listing *listing, const struct caid_entry *e, uint64_t held_ns)
{
    const struct fields fields =
        record_fields(&answer_entry, NULL, "pool name=LAST_NAME generation memory nbytes=SIZE");

    record_row(listing->ctl, fields.v, e, listing->table);
    if (held_ns)
        table_add(listing->table, "%.3f s", (double)held_ns / 1e9);
    else
        table_add(listing->table, "-");
    add_sort_key(listing, e, held_ns);
}

/* Adds a row: who keeps the array, then the array itself. */
static void PRINTF(4, 5)
    unnamed_other(const struct listing *listing, const struct caid_entry *e, const char *user,
                  const char *fmt, ...)
{
    va_list args;

    va_start(args, fmt);
    _cleanup_free_ char *what = format_args(fmt, args);
    va_end(args);
    table_add(listing->table, "-");
    table_add(listing->table, "%s", user);
    table_add(listing->table, "%s", what);
    table_add(listing->table, "-");
    add_entry(listing, e, 0);
}

/* Adds rows for what keeps the array beside the listed holders: holders that a packet had no room
 * for, sets, parts of it, and the array whose companion it is. Only its creator can publish the
 * latter two. */
static void
unnamed_rest(const struct listing *listing, const struct caid_details *d)
{
    const struct caid_entry *e = d->entry;
    _cleanup_free_ char *user = format_user(e->uid);

    if (d->n_holders < e->leases)
        unnamed_other(listing, e, "-", "%" PRIu64 " more", e->leases - d->n_holders);
    if (e->sets)
        unnamed_other(listing, e, "-", "%" PRIu64 " set%s", e->sets, e->sets > 1 ? "s" : "");
    if (e->parts)
        unnamed_other(listing, e, user, "%" PRIu64 " part%s", e->parts,
                      e->parts > 1 ? "s" : "");
    if (d->companion_of)
        unnamed_other(listing, e, user, "array %" PRIu64, d->companion_of);
}

static int
unnamed_row(const struct caid_details *d, void *userdata)
{
    const struct listing *listing = userdata;
    struct json *out = &listing->ctl->out;
    const struct fields fields = record_fields(&answer_holder, NULL, "pid uid=USER client");

    if (listing->ctl->json) {
        json_object(out, NULL);
        report_details(listing->ctl, d);
        json_object_end(out);
        return 0;
    }
    for (size_t i = 0; i < d->n_holders; i++) {
        const struct caid_holder *holder = d->holders[i];
        record_row(listing->ctl, fields.v, holder, listing->table);
        table_add(listing->table, "%s",
                  holder->sent       ? "sent"
                  : holder->hung_up  ? "gone"
                  : holder->readonly ? "r"
                                     : "rw");
        add_entry(listing, d->entry, holder->age_ns);
    }
    unnamed_rest(listing, d);
    return 0;
}

int
report_unnamed(struct ctl *ctl, const char *key, const char *pool, struct table *ret)
{
    struct listing listing = {ctl, NULL, ret};
    struct caid_list_options options = CAID_INIT(options);

    options.pool = pool;
    options.all = !pool;
    table_init(ret, unnamed_columns, ARRAY_SIZE(unnamed_columns));
    listing_begin(&listing, key);
    return listing_end(&listing,
                       caid_unnamed(ctl->client, &options, unnamed_row, &listing, &ctl->error),
                       pool ? pool : "unnamed");
}

int
report_ranges(struct ctl *ctl, const char *key, const struct caid_list_options *options)
{
    struct listing listing = {.ctl = ctl};

    listing_begin(&listing, key);
    return listing_end(&listing,
                       caid_ranges(ctl->client, options, unnamed_row, &listing, &ctl->error),
                       key);
}
