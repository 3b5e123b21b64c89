/* SPDX-License-Identifier: Apache-2.0 */
#include "sync.h"

#include <string.h>

#include "base/macros.h"
#include "report.h"

static int
load(struct caid_client *client, const struct caid_entry *e)
{
    struct caid_open_options options = CAID_INIT(options);
    struct caid_array *array = NULL, *host = NULL;
    uint64_t version;
    int state = -EBADMSG;

    options.pool = e->pool;
    options.generation = e->generation;
    if (caid_array_open(client, &array, e->name, &options, NULL) == 0 &&
        caid_array_open_companion(array, &host, NULL) == 0) {
        const struct caid_array_info *info = caid_array_get_info(host);
        if (info->host_ptr && info->nbytes >= sizeof(struct sync_words))
            state = sync_load(info->host_ptr, &version);
    }
    caid_array_close(host);
    caid_array_close(array);
    return state;
}

const char *
storage_state(struct caid_client *client, const struct caid_details *d)
{
    static const char *const names[] = {"in sync", "host modified", "device modified"};
    static const char mark[] = "{\"caid.storage\":";

    if (!d->metadata || strncmp(d->metadata, mark, strlen(mark)) != 0)
        return NULL;
    if (d->companion == 0)
        return "one buffer";
    int state = load(client, d->entry);
    return state < 0 ? "unknown" : names[state];
}
