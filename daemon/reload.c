/* SPDX-License-Identifier: Apache-2.0 */
#include "reload.h"

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

/* Pools that the files have no more, and that cannot go yet, stay as they are. */
static int
keep_pools(struct reload *r)
{
    int error = 0;

    for (size_t i = 0; error == 0 && i < r->config->n_pools; i++) {
        const struct core_pool_config *pool = &r->config->pools[i];
        if (config_find_pool(&r->next, pool->name) || !core_pool_is_used(r->core, pool->name))
            continue;
        log_warning("[pool \"%s\"] is kept, which the settings have no more: it is in use",
                    pool->name);
        error = config_add_pool(&r->next, pool);
    }
    return error;
}

/* Pools of one that the other one has not. */
static void
log_pools(const struct config *of, const struct config *other, const char *what)
{
    for (size_t i = 0; i < of->n_pools; i++)
        if (!config_find_pool(other, of->pools[i].name))
            log_info("[pool \"%s\"] is %s", of->pools[i].name, what);
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
    log_pools(r->config, &r->next, "new");
    log_pools(&r->next, r->config, "removed");
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
