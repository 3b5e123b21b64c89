/* SPDX-License-Identifier: Apache-2.0 */
#include "opening.h"

#include <stdio.h>
#include <string.h>

#include "base/clock.h"
#include "base/log.h"
#include "base/macros.h"

#define RETRY_MAX_S 8
#define WITHOUT_GPU "without a GPU: CAID_CUDA_DRIVER=soft for the daemon"

/* Called on the thread. */
static void
opening_report(struct opening *o, bool over, int r, const char *reason)
{
    pthread_mutex_lock(&o->lock);
    o->over = over;
    o->r = r;
    if (r < 0)
        snprintf(o->reason, sizeof(o->reason), "no driver answers: %.160s (" WITHOUT_GPU ")",
                 reason);
    pthread_mutex_unlock(&o->lock);
    uv_async_send(&o->news);
}

static void *
thread_main(void *arg)
{
    struct opening *o = arg;

    for (uint64_t seconds = 1;; seconds = seconds < RETRY_MAX_S ? seconds * 2 : RETRY_MAX_S) {
        struct drv_error err = {0};
        int r = gpu_open(o->gpu, o->driver, o->handoff, o->rdma, &err);
        const char *reason = err.message[0] ? err.message : strerror(-r);

        if (r < 0)
            log_error("driver \"%s\": %s", o->driver, reason);
        opening_report(o, r == 0 || !o->retries, r, reason);
        if (r == 0 || !o->retries)
            return NULL;
        clock_pause_ns(seconds * NSEC_PER_SEC);
    }
}

static void
on_news(uv_async_t *news)
{
    struct opening *o = news->data;

    o->changed(o->userdata);
}

int
opening_start(struct opening *o, uv_loop_t *loop)
{
    int r = uv_async_init(loop, &o->news, on_news);

    if (r < 0) {
        log_error("cannot start: %s", strerror(-r));
        return r;
    }
    o->news.data = o;
    o->over = false;
    snprintf(o->reason, sizeof(o->reason), "its driver has not answered yet");
    pthread_mutex_init(&o->lock, NULL);
    r = -pthread_create(&o->thread, NULL, thread_main, o);
    if (r < 0)
        log_error("cannot start a thread for the driver: %s", strerror(-r));
    return r;
}

void
opening_reason(struct opening *o, char *ret, size_t size)
{
    pthread_mutex_lock(&o->lock);
    snprintf(ret, size, "%s", o->reason);
    pthread_mutex_unlock(&o->lock);
}

int
opening_end(struct opening *o)
{
    pthread_mutex_lock(&o->lock);
    bool over = o->over;
    pthread_mutex_unlock(&o->lock);
    if (!over)
        return 1;
    pthread_join(o->thread, NULL);
    uv_close((uv_handle_t *)&o->news, NULL);
    return o->r;
}
