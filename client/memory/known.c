/* SPDX-License-Identifier: Apache-2.0 */
#include "known.h"

#include <errno.h>
#include <stdlib.h>
#include <string.h>

#include "session/text.h"

static int
name_compare(const struct known_name *a, const struct known_name *b)
{
    return strcmp(a->name, b->name);
}

RB_GENERATE_STATIC(known_names, known_name, node, name_compare)

void
known_init(struct known *known, struct msg_str prefix)
{
    *known = (struct known){.prefix = prefix};
    TAILQ_INIT(&known->changes);
}

void
known_deinit(struct known *known)
{
    struct known_name *name;

    while ((name = RB_ROOT(&known->names))) {
        RB_REMOVE(known_names, &known->names, name);
        free(name);
    }
}

static void
set_generation(struct known *known, struct known_name *name, uint64_t generation)
{
    if (name->generation == generation)
        return;
    name->generation = generation;
    if (!name->has_changed)
        TAILQ_INSERT_TAIL(&known->changes, name, changed);
    name->has_changed = true;
}

/* ---- a look ---- */

void
known_begin(struct known *known)
{
    known->look++;
    known->last = NULL;
}

static struct known_name *
name_new(struct known *known, struct msg_str text)
{
    struct known_name *name = calloc(1, sizeof(*name) + text.n + 1);

    if (!name)
        return NULL;
    name->n = text.n;
    memcpy(name->name, text.p, text.n);
    struct known_name *old = RB_INSERT(known_names, &known->names, name);
    if (!old)
        return name;
    free(name);
    return old;
}

static int
take_one(struct known *known, const struct msg_entry *entry)
{
    struct msg_str prefix = known->prefix;

    if (entry->name.n < prefix.n || entry->name.n > PROTO_NAME_MAX ||
        memcmp(entry->name.p, prefix.p, prefix.n) != 0 || !text_is_plain(entry->name) ||
        entry->generation == 0)
        return -EPROTO;
    struct known_name *name = name_new(known, entry->name);
    if (!name)
        return -ENOMEM;
    if (known->last && name_compare(name, known->last) <= 0)
        return -EPROTO;
    name->look = known->look;
    known->last = name;
    set_generation(known, name, entry->generation);
    return 0;
}

int
known_take(struct known *known, const struct msg_list_result *list)
{
    int r = list->more && list->n_entries == 0 ? -EPROTO : 0;

    for (uint32_t i = 0; r == 0 && i < list->n_entries; i++)
        r = take_one(known, &list->entries[i]);
    return r;
}

struct msg_str
known_after(const struct known *known)
{
    return (struct msg_str){known->last->name, (uint32_t)known->last->n};
}

void
known_end(struct known *known)
{
    struct known_name *name;

    RB_FOREACH(name, known_names, &known->names)
        if (name->look != known->look)
            set_generation(known, name, 0);
}

/* ---- what has changed ---- */

bool
known_has_changes(const struct known *known)
{
    return !TAILQ_EMPTY(&known->changes);
}

uint64_t
known_next(struct known *known, char ret_name[static PROTO_NAME_MAX + 1])
{
    struct known_name *name = TAILQ_FIRST(&known->changes);
    uint64_t generation = name->generation;

    TAILQ_REMOVE(&known->changes, name, changed);
    name->has_changed = false;
    memcpy(ret_name, name->name, name->n + 1);
    if (generation == 0) {
        RB_REMOVE(known_names, &known->names, name);
        free(name);
    }
    return generation;
}
