/* SPDX-License-Identifier: Apache-2.0 */
#include "reload.h"

#include <inttypes.h>
#include <string.h>

#include "base/log.h"
#include "base/macros.h"
#include "core_setup.h"

static void *
thread_main(void *arg)
{
    struct reload *r = arg;

    r->r = config_init(&r->next);
    if (r->r == 0)
        r->r = config_load(&r->next, r->path);
    uv_async_send(&r->news);
    return NULL;
}

/* A pool that the files do not have any more stays as it is, if it is in use. */
static int
keep_pools(struct reload *r)
{
    int error = 0;

    for (size_t i = 0; error == 0 && i < r->config->n_pools; i++) {
        const struct core_pool_config *pool = &r->config->pools[i];
        if (config_find_pool(&r->next, pool->name) || !core_pool_is_used(r->core, pool->name))
            continue;
        log_warning("[pool \"%s\"] is not in the settings any more, and stays: it is in use",
                    pool->name);
        error = config_add_pool(&r->next, pool);
    }
    return error;
}

#define SETTINGS_MAX 128

static const char *
settings(char buf[static SETTINGS_MAX], const struct core_pool_config *pool, const char *none)
{
    int n = 0;

    if (!pool)
        return none;
    if (pool->uid != (uid_t)-1)
        n = snprintf(buf, SETTINGS_MAX, "uid %u, gid %u, ", (unsigned)pool->uid,
                     (unsigned)pool->gid);
    snprintf(buf + n, SETTINGS_MAX - (size_t)n, "mode %04o, quota %" PRIu64 "%s",
             (unsigned)pool->mode, pool->quota, pool->legacy ? ", legacy" : "");
    return buf;
}

/* Logs who may do what in a pool. now or old may be NULL: there is, or was, no such pool. */
static void
log_pool(struct reload *r, const struct core_pool_config *now,
         const struct core_pool_config *old)
{
    const char *name = now ? now->name : old->name;
    const char *is = settings((char[SETTINGS_MAX]){0}, now, "removed");
    const char *was = settings((char[SETTINGS_MAX]){0}, old, "not there");
    const struct log_field fields[] = {{"MESSAGE_ID", "cec1a159892f4ced96043150e8ca191f"},
                                       {"CAID_POOL", name},
                                       {NULL, NULL}};

    if (strcmp(is, was) &&
        log_admits(&r->about_pools, uv_now(r->news.loop), AUDIT_LINES, "pools"))
        log_write_fields(LOG_LEVEL_NOTICE, fields, "[pool \"%s\"] is %s%s; it was %s", name,
                         old ? "" : "new: ", is, was);
}

/* One entry that stands for each uid's own pool. */
static struct core_pool_config
user_pools(const struct config *c)
{
    return (struct core_pool_config){.name = "uid:*",
                                     .uid = (uid_t)-1,
                                     .gid = (gid_t)-1,
                                     .mode = c->user_mode,
                                     .quota = c->user_quota,
                                     .legacy = c->user_legacy};
}

static void
log_pools(struct reload *r, const struct config *now, const struct config *old)
{
    const struct core_pool_config is = user_pools(now), was = user_pools(old);

    log_pool(r, &is, &was);
    for (size_t i = 0; i < now->n_pools; i++)
        log_pool(r, &now->pools[i], config_find_pool(old, now->pools[i].name));
    for (size_t i = 0; i < old->n_pools; i++)
        if (!config_find_pool(now, old->pools[i].name))
            log_pool(r, NULL, &old->pools[i]);
}

static int
take_over(struct reload *r)
{
    int error = keep_pools(r);

    if (error == 0)
        error = config_compare_start(r->config, &r->next);
    if (error == 0)
        error = core_set_up_anew(r->core, &r->next, r->all_pages, r->all_fds);
    if (error < 0) {
        log_error("the settings stay as they were: %s", strerror(-error));
        return error;
    }
    config_exchange(r->config, &r->next);
    log_pools(r, r->config, &r->next);
    log_info("the settings are read anew");
    return 0;
}

void
reload_deinit(struct reload *r)
{
    if (!r->running)
        return;
    pthread_join(r->thread, NULL);
    r->running = false;
    config_deinit(&r->next);
}

static void
on_news(uv_async_t *news)
{
    struct reload *r = news->data;
    int error;

    pthread_join(r->thread, NULL);
    r->running = false;
    error = r->r;
    if (error < 0)
        log_error("the settings stay as they were, since the new ones cannot be used");
    else
        error = take_over(r);
    config_deinit(&r->next);
    r->done(r->userdata, error);
}

int
reload_start(struct reload *r, uv_loop_t *loop)
{
    int error = r->news.data ? 0 : uv_async_init(loop, &r->news, on_news);

    if (error == 0) {
        r->news.data = r;
        error = -pthread_create(&r->thread, NULL, thread_main, r);
    }
    r->running = error == 0;
    if (error < 0)
        log_error("the settings stay as they were: no thread to read them: %s",
                  strerror(-error));
    return error;
}
