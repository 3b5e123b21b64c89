/* SPDX-License-Identifier: Apache-2.0 */
#include "report.h"

#include <fnmatch.h>
#include <inttypes.h>
#include <search.h>
#include <stdarg.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

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
static uint64_t
sort_value(const char *by, const struct caid_entry *e, uint64_t held_ns)
{
    const struct sort_key *key = find_sort_key(by);
    uint64_t value = held_ns;

    if (key->at != SIZE_MAX)
        memcpy(&value, (const char *)e + key->at, sizeof(value));
    return key->at == offsetof(struct caid_entry, opened_ns) && value == 0 ? UINT64_MAX : value;
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

    if (ctl->sort)
        table_key(listing->table, sort_value(ctl->sort, e, 0));
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

/* A row for each process, since people look for processes here, and for all that it keeps of one
 * kind under one last name, or without any: a set's tensors, of which there are thousands, are one.
 * The first columns are the same in all that a row is of. */
static const struct column kept_columns[] = {
    {"PID", true},    {"USER", false},      {"CLIENT", false},    {"MODE", false},
    {"POOL", false},  {"LAST NAME", false}, {"GENERATION", true}, {"MEMORY", false},
    {"ARRAYS", true}, {"SIZE", true},       {"HELD", true},
};

#define KEPT_SAME 8

struct kept {
    char *cells[KEPT_SAME];
    uint64_t arrays, bytes;
    uint64_t held_ns; /* the longest; 0: not by a lease */
    uint64_t sort;    /* the largest, but of sizes the sum */
};

/* The userdata of a listing's callback. */
struct keeping {
    struct listing listing;
    void *tree; /* of the rows, for tsearch(3) */
    struct kept **rows;
    size_t n, capacity;
};

static int
compare_kept(const void *a, const void *b)
{
    const struct kept *x = a, *y = b;
    int c = 0;

    for (size_t i = 0; i < KEPT_SAME && c == 0; i++)
        c = strcmp(x->cells[i], y->cells[i]);
    return c;
}

static void
kept_free(void *userdata)
{
    struct kept *kept = userdata;

    for (size_t i = 0; i < KEPT_SAME; i++)
        free(kept->cells[i]);
    free(kept);
}

/* The row with these cells, which it takes. */
static struct kept *
get_kept(struct keeping *k, struct table *cells)
{
    struct kept *new = calloc(1, sizeof(*new)), **found;

    if (!new)
        out_of_memory();
    memcpy(new->cells, cells->cells, sizeof(new->cells));
    cells->n_cells = 0;
    found = tsearch(new, &k->tree, compare_kept);
    if (!found)
        out_of_memory();
    if (*found != new) {
        kept_free(new);
        return *found;
    }
    if (k->n == k->capacity) {
        k->capacity = k->capacity ? 2 * k->capacity : 32;
        k->rows = reallocarray(k->rows, k->capacity, sizeof(k->rows[0]));
        if (!k->rows)
            out_of_memory();
    }
    k->rows[k->n++] = new;
    return new;
}

/* Adds the array to the row that begins with these cells. */
static void
keep(struct keeping *k, struct table *cells, const struct caid_entry *e, uint64_t held_ns)
{
    const struct fields fields =
        record_fields(&answer_entry, NULL, "pool name=LAST_NAME generation memory");
    const struct ctl *ctl = k->listing.ctl;

    record_row(ctl, fields.v, e, cells);
    struct kept *kept = get_kept(k, cells);
    uint64_t sort = ctl->sort ? sort_value(ctl->sort, e, held_ns) : 0;
    kept->arrays++;
    kept->bytes += e->nbytes;
    kept->held_ns = held_ns > kept->held_ns ? held_ns : kept->held_ns;
    kept->sort = sort > kept->sort ? sort : kept->sort;
    if (ctl->sort && strcmp(ctl->sort, "size") == 0)
        kept->sort = kept->bytes;
}

static void PRINTF(4, 5) keep_otherwise(struct keeping *k, const struct caid_entry *e,
                                        const char *user, const char *fmt, ...)
{
    _cleanup_table_ struct table cells = {0};
    va_list args;

    va_start(args, fmt);
    _cleanup_free_ char *what = format_args(fmt, args);
    va_end(args);
    table_add(&cells, "-");
    table_add(&cells, "%s", user);
    table_add(&cells, "%s", what);
    table_add(&cells, "-");
    keep(k, &cells, e, 0);
}

/* What keeps the array beside the listed holders: holders that a packet had no room for, sets,
 * parts of it, and the array whose companion it is. Only its creator can publish the latter two. */
static void
keep_rest(struct keeping *k, const struct caid_details *d)
{
    const struct caid_entry *e = d->entry;
    _cleanup_free_ char *user = format_user(e->uid);

    if (d->n_holders < e->leases)
        keep_otherwise(k, e, "-", "%" PRIu64 " more", e->leases - d->n_holders);
    if (e->sets)
        keep_otherwise(k, e, "-", "%" PRIu64 " set%s", e->sets, e->sets > 1 ? "s" : "");
    if (e->parts)
        keep_otherwise(k, e, user, "%" PRIu64 " part%s", e->parts, e->parts > 1 ? "s" : "");
    if (d->companion_of)
        keep_otherwise(k, e, user, "array %" PRIu64, d->companion_of);
}

static int
details_json_row(const struct caid_details *d, void *userdata)
{
    const struct listing *listing = userdata;
    struct json *out = &listing->ctl->out;

    json_object(out, NULL);
    report_details(listing->ctl, d);
    json_object_end(out);
    return 0;
}

static int
keep_row(const struct caid_details *d, void *userdata)
{
    const struct fields fields = record_fields(&answer_holder, NULL, "pid uid=USER client");
    struct keeping *k = userdata;

    if (k->listing.ctl->json)
        return details_json_row(d, &k->listing);
    for (size_t i = 0; i < d->n_holders; i++) {
        const struct caid_holder *holder = d->holders[i];
        _cleanup_table_ struct table cells = {0};
        record_row(k->listing.ctl, fields.v, holder, &cells);
        table_add(&cells, "%s",
                  holder->sent       ? "sent"
                  : holder->hung_up  ? "gone"
                  : holder->readonly ? "r"
                                     : "rw");
        keep(k, &cells, d->entry, holder->age_ns);
    }
    keep_rest(k, d);
    return 0;
}

static void
add_kept(const struct keeping *k, const struct kept *kept, struct table *table)
{
    const struct ctl *ctl = k->listing.ctl;
    _cleanup_free_ char *bytes = format_bytes(kept->bytes, ctl->bytes);

    for (size_t i = 0; i < KEPT_SAME; i++)
        table_add(table, "%s", kept->cells[i]);
    table_add(table, "%" PRIu64, kept->arrays);
    table_add(table, "%s", bytes);
    if (kept->held_ns)
        table_add(table, "%.3f s", (double)kept->held_ns / 1e9);
    else
        table_add(table, "-");
    if (ctl->sort)
        table_key(table, kept->sort);
}

int
report_unnamed(struct ctl *ctl, const char *key, const char *pool, struct table *ret)
{
    struct keeping k = {.listing = {ctl, NULL, ret}};
    struct caid_list_options options = CAID_INIT(options);

    options.pool = pool;
    options.all = !pool;
    table_init(ret, kept_columns, ARRAY_SIZE(kept_columns));
    listing_begin(&k.listing, key);
    int status = listing_end(&k.listing,
                             caid_unnamed(ctl->client, &options, keep_row, &k, &ctl->error),
                             pool ? pool : "unnamed");
    for (size_t i = 0; i < k.n; i++)
        add_kept(&k, k.rows[i], ret);
    tdestroy(k.tree, kept_free);
    free(k.rows);
    return status;
}

int
report_ranges(struct ctl *ctl, const char *key, const struct caid_list_options *options)
{
    struct listing listing = {.ctl = ctl};

    listing_begin(&listing, key);
    return listing_end(&listing,
                       caid_ranges(ctl->client, options, details_json_row, &listing,
                                   &ctl->error),
                       key);
}
