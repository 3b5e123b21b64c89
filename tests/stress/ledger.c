/* SPDX-License-Identifier: Apache-2.0 */
#include "ledger.h"

#include <dirent.h>
#include <err.h>
#include <inttypes.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <unistd.h>

#include "program.h"

#define SETTLE_TRIES   200
#define SETTLE_STEP_US 50000

/* ---- what the daemon says ---- */

static void
take_memory(struct caid_client *client, struct ledger *l)
{
    OPTIONS(caid_memory_info, info);
    const struct caid_device *devices;
    int n = caid_client_devices(client, &devices);

    for (int i = 0; i < n; i++) {
        MUST(caid_memory_info(client, i, &info, &error));
        l->device_free += info.free;
        l->device_total += info.total;
        l->device_used += info.used;
        l->allocated += info.allocated;
        l->reserve += info.reserve;
        l->pinned += info.pinned;
        l->quarantined += info.quarantined;
    }
}

static void
take_status(struct caid_client *client, struct ledger *l)
{
    OPTIONS(caid_status, status);

    MUST(caid_client_status(client, &status, &error));
    l->release_errors = status.release_errors;
    l->contexts = status.contexts;
    l->pools = status.pools;
    l->blocks = status.blocks;
    l->arrays = status.arrays;
    l->names = status.names;
    l->leases = status.leases;
    l->watches = status.watches;
    l->brackets = status.brackets;
    l->pages = status.pages;
    l->timelines = status.timelines;
    l->pending = status.pending;
    l->jobs = status.jobs;
    l->connections = status.connections;
}

static int
add_user(const struct caid_user *user, void *userdata)
{
    struct ledger *l = userdata;

    l->users++;
    l->charged_connections += user->connections;
    l->charged_arrays += user->arrays;
    l->charged_names += user->names;
    l->charged_leases += user->leases;
    l->charged_watches += user->watches;
    l->charged_brackets += user->brackets;
    l->charged_pages += user->pages;
    l->charged_jobs += user->jobs;
    l->charged_bytes += user->bytes;
    l->charged_pinned += user->pinned;
    l->charged_host += user->host;
    l->deferred += user->deferred;
    return 0;
}

/* ---- what the kernel says ---- */

uint64_t
ledger_count_fds(const struct ledger_source *source)
{
    char path[32];
    uint64_t n = 0;

    snprintf(path, sizeof(path), "/proc/%d/fd", (int)source->daemon);
    DIR *dir = opendir(path);
    if (!dir)
        err(1, "%s", path);
    while (readdir(dir))
        n++;
    closedir(dir);
    return n - 2; /* "." and ".." */
}

static uint64_t
resident(pid_t pid)
{
    unsigned long pages = 0;
    char path[32];

    snprintf(path, sizeof(path), "/proc/%d/statm", (int)pid);
    FILE *f = fopen(path, "re");
    if (!f || fscanf(f, "%*u %lu", &pages) != 1)
        err(1, "%s", path);
    fclose(f);
    return (uint64_t)pages * (uint64_t)sysconf(_SC_PAGESIZE);
}

struct ledger
ledger_take(const struct ledger_source *source)
{
    struct caid_client *client = program_connect(source->socket);
    struct ledger l = {0};

    take_memory(client, &l);
    take_status(client, &l);
    MUST(caid_users(client, add_user, &l, &error));
    l.fds = ledger_count_fds(source);
    caid_client_close(client);
    l.rss = resident(source->daemon);
    return l;
}

/* ---- coming to rest ---- */

bool
ledger_is_same(const struct ledger *a, const struct ledger *b)
{
#define FIGURE(name, what)  \
    if (a->name != b->name) \
        return false;
    FIGURES(FIGURE)
#undef FIGURE
    return true;
}

static bool
is_idle(const struct ledger *l)
{
    return l->connections == 1 && !l->blocks && !l->arrays && !l->leases && !l->jobs &&
           l->device_free == l->device_total;
}

static void
flush(const struct ledger_source *source)
{
    struct caid_client *client = program_connect(source->socket);

    MUST(caid_flush(client, -1, NULL, &error));
    caid_client_close(client);
}

struct ledger
ledger_settle(const struct ledger_source *source, const struct ledger *start)
{
    struct ledger l;

    for (int i = 0; i < SETTLE_TRIES; i++) {
        flush(source);
        l = ledger_take(source);
        if (start ? ledger_is_same(&l, start) : is_idle(&l))
            break;
        usleep(SETTLE_STEP_US);
    }
    return l;
}

struct found {
    char *pool, *name;
};

static int
find_name(const struct caid_entry *entry, void *userdata)
{
    struct found *found = userdata;

    found->pool = strdup(entry->pool);
    found->name = strdup(entry->name);
    return 1;
}

void
ledger_unlink_all(const struct ledger_source *source)
{
    OPTIONS(caid_list_options, options, .all = true);
    struct caid_client *client = program_connect(source->socket);
    struct found found;
    int r;

    while ((r = caid_list(client, &options, find_name, &found, &error)) > 0) {
        MUST(caid_unlink(client, found.name, found.pool, &error));
        free(found.name);
        free(found.pool);
    }
    MUST(r);
    caid_client_close(client);
}

/* ---- for people ---- */

static bool
print_row(const char *what, uint64_t start, uint64_t work, uint64_t half, uint64_t end,
          bool must_match)
{
    bool same = !must_match || (half == start && end == start);

    printf("%-24s %14" PRIu64 " %14" PRIu64 " %14" PRIu64 " %14" PRIu64 "%s\n", what, start,
           work, half, end, same ? "" : "  LEAKED");
    return same;
}

bool
ledgers_check(const struct ledgers *l, uint64_t rss_bound)
{
    int64_t growth = (int64_t)(l->end.rss - l->half.rss);
    bool same = true;

    printf("%-24s %14s %14s %14s %14s\n", "", "start", "at work", "half", "end");
#define FIGURE(name, what)                                                                  \
    same = print_row(what, l->start.name, l->work.name, l->half.name, l->end.name, true) && \
           same;
    FIGURES(FIGURE)
#undef FIGURE
    print_row("resident bytes", l->start.rss, l->work.rss, l->half.rss, l->end.rss, false);
    printf("the second half added %" PRId64 " bytes to the daemon's memory (at most %" PRIu64
           "%s)\n",
           growth, rss_bound, SANITIZED ? ", not held against a sanitizer" : "");
    return same && (SANITIZED || growth <= (int64_t)rss_bound);
}
