/* SPDX-License-Identifier: Apache-2.0 */
#include "expiry.h"

#include "array.h"
#include "state.h"

#define AGAIN_NS \
    UINT64_C(1000000000) /* before another try, where a name could not be unlinked */

static int
time_compare(const struct expiry *a, const struct expiry *b)
{
    return a->at_ns != b->at_ns ? CMP(a->at_ns, b->at_ns) : CMP(a->array->id, b->array->id);
}

RB_GENERATE(expiries, expiry, node, time_compare)

static int
array_compare(const struct expiry *a, const struct expiry *b)
{
    return CMP((uintptr_t)a->array, (uintptr_t)b->array);
}

RB_GENERATE(expiring, expiry, of_array, array_compare)

static struct expiry *
expiry_find(const struct core *core, const struct array *array)
{
    struct core *c = (struct core *)(uintptr_t)core; /* the tree macros take no const */
    struct expiry key = {.array = (struct array *)(uintptr_t)array};

    return array->expires ? RB_FIND(expiring, &c->expiring, &key) : NULL;
}

uint64_t
expiry_time(const struct core *core, uint64_t ns)
{
    uint64_t left = UINT64_MAX - 1 - core->boot_ns;

    return core->boot_ns + (ns < left ? ns : left);
}

int
expiry_new(struct expiry **ret, struct user *user, uint64_t ttl_ns, struct refusal *r)
{
    struct expiry *expiry = calloc(1, sizeof(*expiry));

    if (!expiry)
        return -ENOMEM;
    if (charge_init(&expiry->charge, user, RES_HOST, 0, EXPIRY_HOST, r)) {
        free(expiry);
        return REFUSED;
    }
    expiry->at_ns = expiry_time(user->core, ttl_ns);
    *ret = expiry;
    return 0;
}

void
expiry_free(struct expiry *expiry)
{
    if (expiry)
        charge_deinit(&expiry->charge);
    free(expiry);
}

void
expiry_set(struct core *core, struct array *array, struct expiry *expiry_consume)
{
    struct expiry *old = expiry_find(core, array);

    if (old) {
        RB_REMOVE(expiries, &core->expiries, old);
        RB_REMOVE(expiring, &core->expiring, old);
        expiry_free(old);
    }
    array->expires = expiry_consume;
    if (!expiry_consume)
        return;
    expiry_consume->array = array;
    RB_INSERT(expiries, &core->expiries, expiry_consume);
    RB_INSERT(expiring, &core->expiring, expiry_consume);
}

int
expiry_restore(struct core *core, struct array *array, uint64_t at_ns)
{
    struct expiry *expiry;

    if (expiry_new(&expiry, array->charge.user, 1, NULL))
        return -ENOMEM;
    expiry->at_ns = at_ns;
    expiry_set(core, array, expiry);
    return 0;
}

uint64_t
expiry_at_ns(const struct core *core, const struct array *array)
{
    const struct expiry *expiry = expiry_find(core, array);

    return expiry ? expiry->at_ns : 0;
}

uint64_t
expiry_left_ns(const struct core *core, const struct array *array)
{
    const struct expiry *expiry = expiry_find(core, array);

    if (!expiry)
        return 0;
    return expiry->at_ns > core->boot_ns ? expiry->at_ns - core->boot_ns : 1;
}

struct array *
expiry_due(struct core *core)
{
    const struct expiry *first = RB_MIN(expiries, &core->expiries);

    return first && first->at_ns <= core->boot_ns ? first->array : NULL;
}

void
expiry_put_off(struct core *core, struct array *array)
{
    struct expiry *expiry = expiry_find(core, array);

    RB_REMOVE(expiries, &core->expiries, expiry);
    expiry->at_ns = expiry_time(core, AGAIN_NS);
    RB_INSERT(expiries, &core->expiries, expiry);
}

void
expiries_forget(struct core *core)
{
    struct expiry *expiry;

    while ((expiry = RB_MIN(expiries, &core->expiries))) {
        RB_REMOVE(expiries, &core->expiries, expiry);
        free(expiry);
    }
}

uint64_t
expiry_next_ns(const struct core *core)
{
    struct core *c = (struct core *)(uintptr_t)core; /* the tree macros take no const */
    const struct expiry *first = RB_MIN(expiries, &c->expiries);

    return first ? first->at_ns : UINT64_MAX;
}
