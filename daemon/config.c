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

#define BLOCK_UNIT (UINT64_C(2) << 20)   /* what drivers allocate in */
#define BLOCK_MAX  (UINT64_C(512) << 30) /* within SPACE_EXTENT_MAX of mem/space.h */

struct key {
    const char *section;
    const char *name;
    const struct value_type *type;
    size_t offset; /* in struct config, or in struct config_pool */
};

static const struct key config_keys[] = {
    {"daemon", "socket", &value_string, offsetof(struct config, socket)},
    {"daemon", "socket_mode", &value_file_mode, offsetof(struct config, socket_mode)},
    {"daemon", "driver", &value_string, offsetof(struct config, driver)},
    {"daemon", "log_level", &value_level, offsetof(struct config, log_level)},
    {"daemon", "hello_timeout", &value_duration, offsetof(struct config, hello_timeout_ns)},
    {"limits", "connections", &value_count, offsetof(struct config, limits.connections)},
    {"limits", "arrays", &value_count, offsetof(struct config, limits.arrays)},
    {"limits", "names", &value_count, offsetof(struct config, limits.names)},
    {"limits", "leases", &value_count, offsetof(struct config, limits.leases)},
    {"limits", "watches", &value_count, offsetof(struct config, limits.watches)},
    {"limits", "jobs", &value_count, offsetof(struct config, limits.jobs)},
    {"limits", "brackets", &value_count, offsetof(struct config, limits.brackets)},
    {"limits", "pages", &value_count, offsetof(struct config, limits.pages)},
    {"limits", "bytes", &value_size, offsetof(struct config, limits.bytes)},
    {"limits", "pinned_bytes", &value_size, offsetof(struct config, limits.pinned_bytes)},
    {"limits", "host_bytes", &value_size, offsetof(struct config, limits.host_bytes)},
    {"memory", "block_size", &value_size, offsetof(struct config, memory.block_size)},
    {"memory", "shared_max", &value_size, offsetof(struct config, memory.shared_max)},
    {"memory", "blocks", &value_count, offsetof(struct config, blocks)},
    {"memory", "reserve", &value_size, offsetof(struct config, memory.reserve)},
    {"memory", "max_pending_count", &value_number,
     offsetof(struct config, memory.pending_count)},
    {"memory", "max_pending_ratio", &value_ratio,
     offsetof(struct config, memory.pending_ratio)},
    {"memory", "max_pending_age", &value_duration,
     offsetof(struct config, memory.pending_age_ns)},
    {"handoff", "mode", &value_handoff, offsetof(struct config, handoff)},
    {"handoff", "spin_us", &value_count, offsetof(struct config, spin_us)},
    {"user-pools", "mode", &value_pool_mode, offsetof(struct config, user_mode)},
    {"user-pools", "quota", &value_size, offsetof(struct config, user_quota)},
};

static const struct key pool_keys[] = {
    {"pool", "owner", &value_user, offsetof(struct config_pool, uid)},
    {"pool", "group", &value_group, offsetof(struct config_pool, gid)},
    {"pool", "mode", &value_pool_mode, offsetof(struct config_pool, mode)},
    {"pool", "quota", &value_size, offsetof(struct config_pool, quota)},
};

/* Settings that the environment may set, as Numba's of such names do. */
static const struct {
    const char *variable;
    const struct value_type *type;
    size_t offset;
} variables[] = {
    {"CAID_MAX_PENDING_DEALLOCS_COUNT", &value_number,
     offsetof(struct config, memory.pending_count)},
    {"CAID_MAX_PENDING_DEALLOCS_RATIO", &value_ratio,
     offsetof(struct config, memory.pending_ratio)},
};

int
config_init(struct config *c)
{
    *c = (struct config){
        .socket_mode = 0666,
        .driver = strdup("auto"),
        .log_level = LOG_LEVEL_INFO,
        .hello_timeout_ns = 2 * NSEC_PER_SEC,
        .limits =
            {
                .connections = 4096,
                .arrays = 2000000,
                .names = 1000000,
                .leases = 1000000,
                .watches = 4096,
                .jobs = 4096,
                .brackets = 65536,
                .pages = 4096,
                .host_bytes = UINT64_C(1) << 30,
            },
        .memory =
            {
                .block_size = UINT64_C(32) << 20,
                .shared_max = UINT64_C(4) << 20,
                .reserve = UINT64_C(256) << 20,
                .pending_count = 10,
                .pending_ratio = 0.2,
                .pending_age_ns = 2 * NSEC_PER_SEC,
            },
        .blocks = 65536,
        .handoff = HANDOFF_AUTO,
        .spin_us = 1000,
        .user_mode = 0600,
    };
    return c->driver ? 0 : -ENOMEM;
}

void
config_deinit(struct config *c)
{
    for (size_t i = 0; i < c->n_pools; i++)
        free(c->pools[i].name);
    free(c->pools);
    free(c->socket);
    free(c->driver);
    *c = (struct config){0};
}

/* The pool of that name, made with the defaults of a pool where it is new. */
static int
config_pool(struct config *c, const char *name, struct config_pool **ret)
{
    struct config_pool *pools, *p;

    for (size_t i = 0; i < c->n_pools; i++)
        if (strcmp(c->pools[i].name, name) == 0) {
            *ret = &c->pools[i];
            return 0;
        }

    pools = reallocarray(c->pools, c->n_pools + 1, sizeof(*pools));
    if (!pools)
        return -ENOMEM;
    c->pools = pools;
    p = &pools[c->n_pools];
    *p = (struct config_pool){.name = strdup(name), .mode = 0660};
    if (!p->name)
        return -ENOMEM;
    c->n_pools++;
    *ret = p;
    return 0;
}

static int
set_key(const struct key *keys, size_t n_keys, void *fields, const struct ini_line *line)
{
    for (size_t i = 0; i < n_keys; i++) {
        const struct key *k = &keys[i];
        int r;

        if (strcmp(k->section, line->section) != 0 || strcmp(k->name, line->key) != 0)
            continue;
        r = k->type->parse(line->value, (char *)fields + k->offset);
        if (r == -EINVAL)
            log_error("%s:%u: %s = %s: not %s", line->file, line->number, line->key,
                      line->value, k->type->expects);
        return r;
    }
    log_warning("%s:%u: unknown key \"%s\" in [%s], ignored", line->file, line->number,
                line->key, line->section);
    return 0;
}

static int
on_pool_line(struct config *c, const struct ini_line *line)
{
    struct config_pool *p;
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
    return set_key(pool_keys, ARRAY_SIZE(pool_keys), p, line);
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
    struct config *c = userdata;

    if (strcmp(line->section, "pool") == 0)
        return on_pool_line(c, line);
    if (section_is_known(line))
        return line->key ? set_key(config_keys, ARRAY_SIZE(config_keys), c, line) : 0;
    if (!line->key)
        log_warning("%s:%u: unknown section [%s%s%s], ignored", line->file, line->number,
                    line->section, line->name ? " " : "", line->name ? line->name : "");
    return 0;
}

/* 0 also where the file is absent and may be. */
static int
load_file(struct config *c, const char *path, bool may_be_absent)
{
    int r = ini_read(path, on_line, c);

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
load_drop_in(struct config *c, const char *folder, const char *name)
{
    _cleanup_free_ char *path = NULL;

    if (asprintf(&path, "%s/%s", folder, name) < 0) {
        path = NULL;
        return -ENOMEM;
    }
    return load_file(c, path, false);
}

static int
load_folder(struct config *c, const char *folder)
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
        int r = load_drop_in(c, folder, entries[i]->d_name);
        if (r < 0 && !error)
            error = r;
        free(entries[i]);
    }
    free(entries);
    return error;
}

static int
load_environment(struct config *c)
{
    int error = 0;

    for (size_t i = 0; i < ARRAY_SIZE(variables); i++) {
        const char *text = getenv(variables[i].variable);
        int r = text && *text ? variables[i].type->parse(text, (char *)c + variables[i].offset)
                              : 0;
        if (r == -EINVAL)
            log_error("%s=%s: not %s", variables[i].variable, text, variables[i].type->expects);
        if (r < 0)
            error = r;
    }
    return error;
}

/* What no single value shows. */
static int
check(const struct config *c)
{
    const struct core_memory *m = &c->memory;

    if (m->block_size == 0 || m->block_size % BLOCK_UNIT || m->block_size > BLOCK_MAX) {
        log_error("[memory] block_size: not a multiple of 2M up to 512G");
        return -EINVAL;
    }
    if (m->shared_max > m->block_size) {
        log_error("[memory] shared_max: larger than block_size, where such arrays have to fit");
        return -EINVAL;
    }
    return 0;
}

static int
load_files(struct config *c, const char *path)
{
    _cleanup_free_ char *folder = NULL;
    const char *file = path ? path : CONFIG_DEFAULT_PATH;
    int r, r_folder;

    if (asprintf(&folder, "%s.d", file) < 0) {
        folder = NULL;
        return -ENOMEM;
    }
    r = load_file(c, file, path == NULL);
    r_folder = load_folder(c, folder);
    return r < 0 ? r : r_folder;
}

int
config_load(struct config *c, const char *path)
{
    int r_files = load_files(c, path), r_environment = load_environment(c);

    if (r_files < 0 || r_environment < 0)
        return r_files < 0 ? r_files : r_environment;
    return check(c);
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
