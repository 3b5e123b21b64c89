/* SPDX-License-Identifier: Apache-2.0 */
/*
 * The daemon's settings, caid.conf(5): defaults, then one file, then the drop-ins beside it in byte
 * order of their names, then the environment for the few that have a variable. A later value wins.
 * Settings are read at the start and by each reload (reload.h), and do not change in between.
 */
#pragma once

#include <stdint.h>
#include <stdio.h>
#include <sys/types.h>

#include "core.h"

#define CONFIG_DEFAULT_PATH "/etc/caid/caid.conf"

struct config {
    struct config_start { /* a reload does not change these */
        char *socket;     /* NULL or empty: the usual places */
        mode_t socket_mode;
        char *driver;     /* "auto", "cuda", "soft" or a path */
        int handoff;      /* enum core_handoff, or HANDOFF_AUTO of value.h */
        int rdma;         /* as for gpu_open() */
        char *machine_id; /* machine_id.h; NULL or empty: the machine's own */
    } start;

    int log_level;
    uint64_t hello_timeout_ns;
    uint64_t ticket_ttl_ns, ticket_age_ns; /* core.h */
    struct core_limits limits;             /* pinned_bytes 0: half of the machine's memory */
    uint64_t total_host_bytes;             /* of all uids; 0: no limit */
    struct core_memory memory;
    uint32_t blocks;  /* that one pool may have */
    uint32_t spin_us; /* spin.h */
    mode_t user_mode; /* of each uid's own pool */
    uint64_t user_quota;
    bool user_legacy;
    struct core_pool_config *pools; /* [pool "NAME"] */
    size_t n_pools;
};

/* The defaults. -ENOMEM. */
int config_init(struct config *c);
void config_deinit(struct config *c);

/*
 * Reads path and path.d/ *.conf; NULL means the default file and folder, which may be absent. Then
 * the environment. Logs every mistake, that of a single value with its file and line. -EINVAL: a
 * bad value; else -errno of a file that could not be read. After a failure c is good for
 * config_deinit() only.
 */
int config_load(struct config *c, const char *path);

/* Logs each setting of the start that next would change: now stays in force. -ENOMEM. */
int config_compare_start(const struct config *now, const struct config *next);
/* Exchanges all settings but those of the start. */
void config_exchange(struct config *now, struct config *next);
/* NULL: there is no pool of that name. */
const struct core_pool_config *config_find_pool(const struct config *c, const char *name);
/* Adds a copy of pool, which c does not have. -ENOMEM. */
int config_add_pool(struct config *c, const struct core_pool_config *pool);

/* All settings as they are, in the form of the file. */
void config_print(const struct config *c, FILE *f);
