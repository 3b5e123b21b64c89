/* SPDX-License-Identifier: Apache-2.0 */
#include "config.h"

#include <dirent.h>
#include <string.h>

#include "base/clock.h"
#include "base/log.h"
#include "base/macros.h"
#include "ini.h"
#include "proto_limits.h"
#include "value.h"

#define BLOCK_UNIT (UINT64_C(2) << 20)   /* drivers allocate in units of this */
#define BLOCK_MAX  (UINT64_C(512) << 30) /* within SPACE_EXTENT_MAX of mem/space.h */

struct key {
    const char *section;
    const char *name;
    const struct value_type *type;
    size_t offset;         /* in struct config, or in struct core_pool_config */
    const char *otherwise; /* NULL: 0, or none */
};

#define KEY(section, name, type, field, otherwise)                              \
    {                                                                           \
        section, name, &value_##type, offsetof(struct config, field), otherwise \
    }
#define POOL_KEY(name, type, field, otherwise)                                           \
    {                                                                                    \
        "pool", name, &value_##type, offsetof(struct core_pool_config, field), otherwise \
    }

static const struct key config_keys[] = {
    KEY("daemon", "socket", socket, start.socket, NULL),
    KEY("daemon", "socket_mode", file_mode, start.socket_mode, "0666"),
    KEY("daemon", "driver", driver, start.driver, "auto"),
    KEY("daemon", "log_level", level, log_level, "info"),
    KEY("daemon", "hello_timeout", duration, hello_timeout_ns, "2s"),
    KEY("daemon", "machine_id", machine, start.machine_id, NULL),
    KEY("limits", "connections", count, limits.connections, "4096"),
    KEY("limits", "arrays", count, limits.arrays, "2000000"),
    KEY("limits", "names", count, limits.names, "1000000"),
    KEY("limits", "leases", count, limits.leases, "1000000"),
    KEY("limits", "watches", count, limits.watches, "4096"),
    KEY("limits", "jobs", count, limits.jobs, "4096"),
    KEY("limits", "brackets", count, limits.brackets, "8192"),
    KEY("limits", "pages", count, limits.pages, "4096"),
    KEY("limits", "bytes", size, limits.bytes, NULL),
    KEY("limits", "pinned_bytes", size, limits.pinned_bytes, NULL),
    KEY("limits", "host_bytes", size, limits.host_bytes, "1G"),
    KEY("limits", "total_host_bytes", size, total_host_bytes, "2560M"),
    KEY("memory", "block_size", size, memory.block_size, "32M"),
    KEY("memory", "shared_max", size, memory.shared_max, "4M"),
    KEY("memory", "blocks", count, blocks, "65536"),
    KEY("memory", "reserve", size, memory.reserve, "256M"),
    KEY("memory", "max_pending_count", number, memory.pending_count, "10"),
    KEY("memory", "max_pending_ratio", ratio, memory.pending_ratio, "0.2"),
    KEY("memory", "max_pending_age", duration, memory.pending_age_ns, "2s"),
    KEY("memory", "rdma", auto_flag, start.rdma, "auto"),
    KEY("memory", "ticket_ttl", duration, ticket_ttl_ns, "10m"),
    KEY("memory", "ticket_age", age, ticket_age_ns, "none"),
    KEY("handoff", "mode", handoff, start.handoff, "auto"),
    KEY("handoff", "spin_us", number, spin_us, "1000"),
    KEY("user-pools", "mode", pool_mode, user_mode, "0600"),
    KEY("user-pools", "quota", size, user_quota, NULL),
    KEY("user-pools", "legacy", flag, user_legacy, NULL),
};

static const struct key pool_keys[] = {
    POOL_KEY("owner", user, uid, NULL),        POOL_KEY("group", group, gid, NULL),
    POOL_KEY("mode", pool_mode, mode, "0660"), POOL_KEY("quota", size, quota, NULL),
    POOL_KEY("legacy", flag, legacy, NULL),
};

/* Settings that the environment may set. Those of the queue have the names of Numba's. */
static const struct {
    const char *variable, *section, *key;
} variables[] = {
    {"CAID_SOCKET", "daemon", "socket"},
    {"CAID_CUDA_DRIVER", "daemon", "driver"},
    {"CAID_MACHINE_ID", "daemon", "machine_id"},
    {"CAID_MAX_PENDING_DEALLOCS_COUNT", "memory", "max_pending_count"},
    {"CAID_MAX_PENDING_DEALLOCS_RATIO", "memory", "max_pending_ratio"},
};

struct loader {
    struct config *config;
    bool bad[ARRAY_SIZE(config_keys)]; /* keys that were given a bad value */
};

static int
set_defaults(const struct key *keys, size_t n_keys, void *fields)
{
    int r = 0;

    for (size_t i = 0; r == 0 && i < n_keys; i++)
        if (keys[i].otherwise)
            r = keys[i].type->parse(keys[i].otherwise, (char *)fields + keys[i].offset);
    return r;
}

int
config_init(struct config *c)
{
    *c = (struct config){0};
    return set_defaults(config_keys, ARRAY_SIZE(config_keys), c);
}

void
config_deinit(struct config *c)
{
    for (size_t i = 0; i < c->n_pools; i++)
        free((char *)(uintptr_t)c->pools[i].name);
    free(c->pools);
    free(c->start.socket);
    free(c->start.driver);
    free(c->start.machine_id);
    *c = (struct config){0};
}

const struct core_pool_config *
config_find_pool(const struct config *c, const char *name)
{
    for (size_t i = 0; i < c->n_pools; i++)
        if (strcmp(c->pools[i].name, name) == 0)
            return &c->pools[i];
    return NULL;
}

int
config_add_pool(struct config *c, const struct core_pool_config *pool)
{
    struct core_pool_config *pools = reallocarray(c->pools, c->n_pools + 1, sizeof(*pools));
    struct core_pool_config *p;

    if (!pools)
        return -ENOMEM;
    c->pools = pools;
    p = &pools[c->n_pools];
    *p = *pool;
    p->name = strdup(pool->name);
    if (!p->name)
        return -ENOMEM;
    c->n_pools++;
    return 0;
}

/* The pool of that name. A new one gets the defaults of a pool. */
static int
config_pool(struct config *c, const char *name, struct core_pool_config **ret)
{
    const struct core_pool_config *found = config_find_pool(c, name);
    struct core_pool_config made = {.name = name};
    int r = 0;

    if (!found) {
        r = set_defaults(pool_keys, ARRAY_SIZE(pool_keys), &made);
        if (r == 0)
            r = config_add_pool(c, &made);
        found = &c->pools[c->n_pools - 1];
    }
    if (r == 0)
        *ret = &c->pools[found - c->pools];
    return r;
}

static const struct key *
find_key(const struct key *keys, size_t n_keys, const char *section, const char *name)
{
    for (size_t i = 0; i < n_keys; i++)
        if (strcmp(keys[i].section, section) == 0 && strcmp(keys[i].name, name) == 0)
            return &keys[i];
    return NULL;
}

static int
set_key(const struct key *k, void *fields, const struct ini_line *line)
{
    int r = k ? k->type->parse(line->value, (char *)fields + k->offset) : 0;

    if (!k)
        log_warning("%s:%u: unknown key \"%s\" in [%s], ignored", line->file, line->number,
                    line->key, line->section);
    if (r == -EINVAL)
        log_error("%s:%u: %s = %s: not %s", line->file, line->number, line->key, line->value,
                  k->type->expects);
    return r;
}

static int
set_config_key(struct loader *l, const struct ini_line *line)
{
    const struct key *k =
        find_key(config_keys, ARRAY_SIZE(config_keys), line->section, line->key);
    int r = set_key(k, l->config, line);

    if (r < 0)
        l->bad[k - config_keys] = true;
    return r;
}

static int
on_pool_line(struct config *c, const struct ini_line *line)
{
    struct core_pool_config *p = NULL;
    int r;

    if (!core_pool_name_valid(line->name)) {
        if (line->key)
            return 0; /* reported at the header */
        log_error("%s:%u: a pool's name has 1 to %d letters, digits, \".\", \"_\" and \"-\"",
                  line->file, line->number, PROTO_POOL_MAX);
        return -EINVAL;
    }
    r = config_pool(c, line->name, &p);
    if (r < 0 || !line->key)
        return r;
    return set_key(find_key(pool_keys, ARRAY_SIZE(pool_keys), "pool", line->key), p, line);
}

static bool
section_is_known(const struct ini_line *line)
{
    if (line->name)
        return false;
    for (size_t i = 0; i < ARRAY_SIZE(config_keys); i++)
        if (strcmp(config_keys[i].section, line->section) == 0)
            return true;
    return false;
}

static int
on_line(void *userdata, const struct ini_line *line)
{
    struct loader *l = userdata;

    if (strcmp(line->section, "pool") == 0)
        return on_pool_line(l->config, line);
    if (section_is_known(line))
        return line->key ? set_config_key(l, line) : 0;
    if (!line->key)
        log_warning("%s:%u: unknown section [%s%s%s], ignored", line->file, line->number,
                    line->section, line->name ? " " : "", line->name ? line->name : "");
    return 0;
}

/* Returns 0 also if the file is absent and may be. */
static int
load_file(struct loader *l, const char *path, bool may_be_absent)
{
    int r = ini_read(path, on_line, l);

    if (r == -ENOENT && may_be_absent)
        return 0;
    if (r < 0 && r != -EINVAL)
        log_error("%s: %s", path, strerror(-r));
    return r;
}

static int
is_drop_in(const struct dirent *entry)
{
    const char *dot = strrchr(entry->d_name, '.');

    return entry->d_name[0] != '.' && dot && strcmp(dot, ".conf") == 0;
}

/* Not alphasort(3), which follows the locale. */
static int
compare_bytes(const struct dirent **a, const struct dirent **b)
{
    return strcmp((*a)->d_name, (*b)->d_name);
}

static int
load_drop_in(struct loader *l, const char *folder, const char *name)
{
    _cleanup_free_ char *path = NULL;

    if (asprintf(&path, "%s/%s", folder, name) < 0) {
        path = NULL;
        return -ENOMEM;
    }
    return load_file(l, path, false);
}

static int
load_folder(struct loader *l, const char *folder)
{
    struct dirent **entries;
    int n = scandir(folder, &entries, is_drop_in, compare_bytes), error = 0;

    if (n < 0) {
        if (errno == ENOENT)
            return 0;
        error = -errno;
        log_error("%s: %s", folder, strerror(-error));
        return error;
    }
    for (int i = 0; i < n; i++) {
        int r = load_drop_in(l, folder, entries[i]->d_name);
        if (r < 0 && !error)
            error = r;
        free(entries[i]);
    }
    free(entries);
    return error;
}

static int
load_environment(struct loader *l)
{
    int error = 0;

    for (size_t i = 0; i < ARRAY_SIZE(variables); i++) {
        const struct key *k = find_key(config_keys, ARRAY_SIZE(config_keys),
                                       variables[i].section, variables[i].key);
        const char *text = getenv(variables[i].variable);
        int r = text && *text ? k->type->parse(text, (char *)l->config + k->offset) : 0;
        if (r == -EINVAL)
            log_error("%s=%s: not %s", variables[i].variable, text, k->type->expects);
        if (r < 0)
            error = r;
    }
    return error;
}

static bool
is_bad(const struct loader *l, const char *section, const char *name)
{
    return l->bad[find_key(config_keys, ARRAY_SIZE(config_keys), section, name) - config_keys];
}

/* Checks block_size and shared_max, but not one that has been found bad already. */
static int
check(const struct loader *l)
{
    const struct core_memory *m = &l->config->memory;
    int r = 0;

    if (is_bad(l, "memory", "block_size"))
        return 0;
    if (m->block_size == 0 || m->block_size % BLOCK_UNIT || m->block_size > BLOCK_MAX) {
        log_error("[memory] block_size: not a multiple of 2M up to 512G");
        r = -EINVAL;
    }
    if (m->shared_max > m->block_size && !is_bad(l, "memory", "shared_max")) {
        log_error("[memory] shared_max: larger than block_size, where such arrays have to fit");
        r = -EINVAL;
    }
    return r;
}

static int
load_files(struct loader *l, const char *path)
{
    _cleanup_free_ char *folder = NULL;
    const char *file = path ? path : CONFIG_DEFAULT_PATH;
    int r, r_folder;

    if (asprintf(&folder, "%s.d", file) < 0) {
        folder = NULL;
        return -ENOMEM;
    }
    r = load_file(l, file, path == NULL);
    r_folder = load_folder(l, folder);
    return r < 0 ? r : r_folder;
}

int
config_load(struct config *c, const char *path)
{
    struct loader l = {.config = c};
    int r_files = load_files(&l, path), r_environment = load_environment(&l);
    int r_check = check(&l);

    if (r_files < 0)
        return r_files;
    return r_environment < 0 ? r_environment : r_check;
}

static char *
value_text(const struct key *k, const struct config *c)
{
    char *text = NULL;
    size_t n;
    FILE *f = open_memstream(&text, &n);

    if (!f)
        return NULL;
    k->type->print(f, (const char *)c + k->offset);
    if (fclose(f) == 0)
        return text;
    free(text);
    return NULL;
}

int
config_compare_start(const struct config *now, const struct config *next)
{
    for (size_t i = 0; i < ARRAY_SIZE(config_keys); i++) {
        const struct key *k = &config_keys[i];
        if (k->offset >= sizeof(now->start)) /* start is the first member of a config */
            continue;
        _cleanup_free_ char *old = value_text(k, now);
        _cleanup_free_ char *new = value_text(k, next);
        if (!old || !new)
            return -ENOMEM;
        if (strcmp(old, new) != 0)
            log_warning("[%s] %s =%s is kept:%s needs a restart", k->section, k->name,
                        *old ? old : " (none)", *new ? new : " (none)");
    }
    return 0;
}

void
config_exchange(struct config *now, struct config *next)
{
    struct config before = *now;

    *now = *next;
    now->start = before.start;
    before.start = next->start;
    *next = before;
}

static void
print_keys(FILE *f, const struct key *keys, size_t n_keys, const void *fields)
{
    const char *section = NULL;

    for (size_t i = 0; i < n_keys; i++) {
        const struct key *k = &keys[i];

        if (strcmp(k->section, "pool") != 0 && (!section || strcmp(section, k->section) != 0))
            fprintf(f, "[%s]\n", k->section);
        section = k->section;
        fprintf(f, "%s =", k->name);
        k->type->print(f, (const char *)fields + k->offset);
        fputc('\n', f);
    }
}

void
config_print(const struct config *c, FILE *f)
{
    print_keys(f, config_keys, ARRAY_SIZE(config_keys), c);
    for (size_t i = 0; i < c->n_pools; i++) {
        fprintf(f, "[pool \"%s\"]\n", c->pools[i].name);
        print_keys(f, pool_keys, ARRAY_SIZE(pool_keys), &c->pools[i]);
    }
}
