/* SPDX-License-Identifier: Apache-2.0 */
#include "ledger.h"

#include <dirent.h>
#include <err.h>
#include <inttypes.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <unistd.h>

#include "base/macros.h"
#include "program.h"
#include "session/answer.h"

#define RSS_BOUND      (512 * 1024)
#define SETTLE_TRIES   1200
#define SETTLE_STEP_US 50000

/* The figures of a ledger: two of the kernel's, then those of these answers. */
enum {
    FDS,
    N_USERS,
    FIRST,
};

static const struct source {
    const char *name;
    const struct answer *answer;
} memory = {"memory", &answer_memory_info}, status = {"status", &answer_status},
  users = {"users", &answer_user};

/* Not those that only ever grow, or are cut now and then. */
static bool
is_figure(const struct answer_field *f)
{
    char name[32];

    snprintf(name, sizeof(name), " %s ", f->name);
    return (f->unit == UNIT_COUNT || f->unit == UNIT_BYTES) &&
           !strstr(" flushes releases opens begun restarts journal_bytes ", name);
}

/* Adds what an answer says to the figures from the i-th on; returns where the next ones are. */
static size_t
add(struct ledger *l, size_t i, const struct source *source, const void *answer)
{
    uint64_t value;

    for (const struct answer_field *f = source->answer->fields; f->unit != UNIT_END; f++) {
        if (!is_figure(f))
            continue;
        if (i == LEDGER_MAX)
            errx(1, "more figures than a ledger has room for");
        memcpy(&value, (const char *)answer + f->at, sizeof(value));
        l->figures[i++] += value;
    }
    return i;
}

/* ---- asking ---- */

static int
add_user(const struct caid_user *user, void *userdata)
{
    struct ledger *l = userdata;

    l->figures[N_USERS]++;
    add(l, l->of_users, &users, user);
    return 0;
}

pid_t
ledger_find_daemon(const char *socket)
{
    struct caid_client *client = program_connect(socket);
    OPTIONS(caid_status, s);

    MUST(caid_client_status(client, &s, &error));
    caid_client_close(client);
    return (pid_t)s.pid;
}

uint64_t
ledger_count_fds(pid_t pid)
{
    char path[32];
    uint64_t n = 0;

    snprintf(path, sizeof(path), "/proc/%d/fd", (int)pid);
    DIR *dir = opendir(path);
    if (!dir)
        err(1, "%s", path);
    while (readdir(dir))
        n++;
    closedir(dir);
    return n - 2; /* "." and ".." */
}

uint64_t
ledger_count_mappings(pid_t pid, const char *name)
{
    char path[32], line[512];
    uint64_t n = 0;

    snprintf(path, sizeof(path), "/proc/%d/maps", (int)pid);
    FILE *f = fopen(path, "re");
    if (!f)
        err(1, "%s", path);
    while (fgets(line, sizeof(line), f))
        n += strstr(line, name) != NULL;
    fclose(f);
    return n;
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
    const struct caid_device *const *devices;
    struct ledger l = {.idle = true};
    OPTIONS(caid_memory_info, m);
    OPTIONS(caid_status, s);

    for (int i = caid_client_devices(client, &devices) - 1; i >= 0; i--) {
        MUST(caid_memory_info(client, i, &m, &error));
        l.of_users = add(&l, FIRST, &memory, &m);
        l.idle = l.idle && m.free == m.total;
    }
    MUST(caid_client_status(client, &s, &error));
    l.of_users = add(&l, l.of_users, &status, &s);
    MUST(caid_users(client, add_user, &l, &error));
    l.figures[FDS] = ledger_count_fds(source->daemon);
    caid_client_close(client);
    l.daemon = source->daemon;
    l.rss = resident(source->daemon);
    l.leases = s.leases;
    l.jobs = s.jobs;
    l.idle = l.idle && s.connections == 1 && !s.blocks && !s.arrays && !s.leases && !s.jobs;
    return l;
}

/* ---- coming to rest ---- */

bool
ledger_is_same(const struct ledger *a, const struct ledger *b)
{
    return memcmp(a->figures, b->figures, sizeof(a->figures)) == 0;
}

struct ledger
ledger_settle(const struct ledger_source *source, const struct ledger *start)
{
    struct ledger l;

    for (int i = 0; i < SETTLE_TRIES; i++) {
        struct caid_client *client = program_connect(source->socket);
        MUST(caid_flush(client, -1, NULL, &error));
        caid_client_close(client);
        l = ledger_take(source);
        if (start ? ledger_is_same(&l, start) : l.idle)
            break;
        usleep(SETTLE_STEP_US);
    }
    return l;
}

static int
find_name(const struct caid_entry *entry, void *userdata)
{
    char **found = userdata;

    found[0] = strdup(entry->name);
    found[1] = strdup(entry->pool);
    return 1;
}

void
ledger_unlink_all(const struct ledger_source *source)
{
    OPTIONS(caid_list_options, options, .all = true);
    struct caid_client *client = program_connect(source->socket);
    char *found[2];

    while (MUST(caid_list(client, &options, find_name, found, &error)) > 0) {
        MUST(caid_unlink(client, found[0], found[1], &error));
        free(found[0]);
        free(found[1]);
    }
    caid_client_close(client);
}

/* ---- for people ---- */

static bool
print_row(const struct ledgers *l, const char *of, const char *what, size_t i)
{
    const struct ledger *all[] = {&l->start, &l->work, &l->half, &l->end};
    bool same = l->half.figures[i] == l->start.figures[i] &&
                l->end.figures[i] == l->start.figures[i];

    printf("%6s %-17s", of, what);
    for (size_t k = 0; k < ARRAY_SIZE(all); k++)
        printf(" %14" PRIu64, all[k]->figures[i]);
    printf("%s\n", same ? "" : "  LEAKED");
    return same;
}

bool
ledgers_check(const struct ledgers *l)
{
    const struct source *sources[] = {&memory, &status, &users};
    int64_t growth = (int64_t)(l->end.rss - l->half.rss);
    bool unbound = SANITIZED || l->end.daemon != l->half.daemon;
    size_t i = FIRST;
    bool same = true;

    printf("%-24s %14s %14s %14s %14s\n", "", "start", "at work", "half", "end");
    for (size_t k = 0; k < ARRAY_SIZE(sources); k++)
        for (const struct answer_field *f = sources[k]->answer->fields; f->unit; f++)
            if (is_figure(f))
                same = print_row(l, sources[k]->name, f->name, i++) && same;
    same = print_row(l, "", "open fds", FDS) && same;
    same = print_row(l, "", "users charged", N_USERS) && same;
    printf("%-24s %14" PRIu64 " %14" PRIu64 " %14" PRIu64 " %14" PRIu64
           ": the second half added %" PRId64 " (at most %d%s)\n",
           "resident bytes", l->start.rss, l->work.rss, l->half.rss, l->end.rss, growth,
           RSS_BOUND, unbound ? ", not held against a sanitizer or another process" : "");
    return same && (unbound || growth <= RSS_BOUND);
}
