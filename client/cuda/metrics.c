/* SPDX-License-Identifier: Apache-2.0 */
/* The daemon's figures, by name. */
#include <errno.h>

#include "cuda/local.h"
#include "session/client.h"
#include "session/pager.h"

PAGED_LIST(metrics, cuda_metric);

static int
metrics_give(struct pager *pager, uint32_t i)
{
    struct metrics *l = container_of(pager, struct metrics, pager);
    const struct msg_metric *m = &l->result.metrics[i];
    const struct cuda_metric metric = {.name = text_put(&pager->text, m->name),
                                       .value = m->value,
                                       .kind = text_put(&pager->text, m->kind),
                                       .outcome = text_put(&pager->text, m->outcome),
                                       .device = text_put(&pager->text, m->device),
                                       .pool = text_put(&pager->text, m->pool),
                                       .uid = m->uid,
                                       .le_ns = m->le_ns};
    struct msg_str none;

    l->params.from = l->result.from;
    if (l->result.more && i + 1 == l->result.n_metrics &&
        !pager_go_on(pager, l->result.pool, (struct msg_str){0}, l->result.from, 0,
                     &l->params.pool, &none))
        return pager_fail(pager, -EPROTO);
    return l->fn(&metric, l->userdata);
}

int
cuda_metrics(struct caid_client *client,
             int (*fn)(const struct cuda_metric *metric, void *userdata), void *userdata,
             struct caid_error *error)
{
    struct metrics metrics = {PAGED(metrics, client, MSG_METRICS, metrics, fn, userdata)};

    return pager_run(&metrics.pager, error);
}
