/* SPDX-License-Identifier: Apache-2.0 */
#include "publish.h"

#include "array.h"
#include "settle.h"
#include "state.h"

void
array_unname(struct core *core, struct array *array)
{
    array_drop_name(core, array);
    watch_notify(core, array->pool, array->name, array->n_name, 0);
    array_settle(core, array);
}

/* All that publishing may fail for, made beforehand. */
struct publication {
    char *name, *metadata;
    struct entry *saved, *gone; /* the new name's record, and the end of the old one */
};

static void
publication_deinit(struct publication *p)
{
    free(p->name);
    free(p->metadata);
    entry_free(p->saved);
    entry_free(p->gone);
}

static bool
has_name(const struct array *array, struct msg_str name)
{
    return array->named && array->n_name == name.n && memcmp(array->name, name.p, name.n) == 0;
}

static int
publication_init(struct publication *p, const struct array *array, struct msg_str name,
                 struct msg_str metadata)
{
    p->name = strndup(name.p, name.n);
    p->metadata = metadata.p ? strndup(metadata.p, metadata.n) : NULL;
    p->saved = entry_new_name(RECORD_NAME, array->pool, name.p, name.n);
    if (array->named && !has_name(array, name))
        p->gone = entry_new_name(RECORD_NAME_GONE, array->pool, array->name, array->n_name);
    if (!p->name || (metadata.p && !p->metadata) || !p->saved ||
        (array->named && !has_name(array, name) && !p->gone))
        return -ENOMEM;
    return 0;
}

/* Bytes of host memory that the array takes more, or less, from now on. */
static int64_t
publication_host(const struct array *array, struct msg_str name, struct msg_str metadata)
{
    int64_t delta = 0;

    if (!has_name(array, name))
        delta += (int64_t)name.n + 1;
    if (!has_name(array, name) && array->name_is_own)
        delta -= array->n_name + 1;
    if (metadata.p)
        delta += (int64_t)metadata.n + 1;
    if (metadata.p && array->metadata)
        delta -= array->n_metadata + 1;
    return delta;
}

/* One name more for the array's user; a user at its limit may publish in place of what is its
 * own. */
static int
publication_charge(struct array *array, const struct array *old, int64_t host,
                   struct refusal *r)
{
    struct user *user = array->charge.user;

    if (charge_resize(&array->charge, host, r))
        return REFUSED;
    if (array->named)
        return 0;
    if (old && old->charge.user == user) {
        user->used[RES_NAMES]++; /* the commit takes one off */
        return 0;
    }
    if (!user_charge(user, RES_NAMES, 1, r))
        return 0;
    charge_resize(&array->charge, -host, r); /* r stands: what was taken fits */
    return REFUSED;
}

/* Gives up the name that the array has, or has had; its charge is the new one's. */
static void
publication_rename(struct core *core, struct publication *p, struct array *array,
                   struct msg_str name)
{
    if (array->named) {
        array_drop_name(core, array);
        array->charge.user->used[RES_NAMES]++;
        watch_notify(core, array->pool, array->name, array->n_name, 0);
    }
    array_unlist(array);
    if (array->name_is_own)
        free(array->name);
    array->name = TAKE_PTR(p->name);
    array->n_name = (uint8_t)name.n;
    array->name_is_own = true;
}

static void
publication_commit(struct core *core, struct publication *p, struct array *array,
                   struct msg_str name, struct msg_str metadata, struct array *old)
{
    uint64_t generation = old ? old->generation + 1 : array->pool->floor + 1;

    entry_push(core, TAKE_PTR(p->saved));
    if (p->gone)
        entry_push(core, TAKE_PTR(p->gone));
    if (old && old != array)
        array_drop_name(core, old);
    if (old != array)
        publication_rename(core, p, array, name);
    array->generation = generation;
    if (old != array)
        array_insert_name(core, array);
    if (p->metadata) {
        free(array->metadata);
        array->metadata = TAKE_PTR(p->metadata);
        array->n_metadata = (uint16_t)metadata.n;
    }
    if (old && old != array)
        array_settle(core, old);
}

int
array_publish(struct core *core, struct array *array, struct msg_str name,
              struct msg_str metadata, struct refusal *r)
{
    struct array *old = pool_find_array(array->pool, name);
    _cleanup_(publication_deinit) struct publication p = {0};
    int rc;

    if (old && old->creating)
        return refuse(r, PROTO_ERR_EXISTS, "\"%s\" is being created in pool \"%s\"", old->name,
                      array->pool->name);
    rc = publication_init(&p, array, name, metadata);
    if (rc == 0)
        rc = publication_charge(array, old, publication_host(array, name, metadata), r);
    if (rc)
        return rc;
    publication_commit(core, &p, array, name, metadata, old);
    watch_notify(core, array->pool, array->name, array->n_name, array->generation);
    return 0;
}
