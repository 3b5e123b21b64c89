/* SPDX-License-Identifier: Apache-2.0 */
/*
 * Client: names, arrays, pools and users, as the daemon knows them. Results are lists of plain
 * tuples in the order of the fields of the classes in caid/_records.py, which name them.
 */
#include "module.h"

static struct client_object *
client(PyObject *op)
{
    return (struct client_object *)op;
}

/* Of a number of 64 bits, for Py_BuildValue()'s K. */
typedef unsigned long long ull;

/* ---- lists by callback ---- */

/* What a callback of libcaid fills: it runs without the GIL in the calling thread, whose state
 * is here meanwhile. */
struct collector {
    PyThreadState *thread;
    PyObject *list;
    PyObject *(*make)(const void *record);
};

/* Appends the item of a record; 0, or 1 with an exception set, which ends the list. */
static int
collect(struct collector *c, const void *record)
{
    PyObject *item;
    int r;

    PyEval_RestoreThread(c->thread);
    item = c->make(record);
    r = item ? PyList_Append(c->list, item) : -1;
    Py_XDECREF(item);
    c->thread = PyEval_SaveThread();
    return r < 0 ? 1 : 0;
}

/* One of the calls of libcaid that make lists, with its arguments. */
typedef int list_call(struct caid_client *client, const void *args, struct collector *collector,
                      struct caid_error *error);

/* The list of what a call makes, each record as make() makes an object of it. */
static PyObject *
list_of(struct client_object *self, list_call *call, const void *args,
        PyObject *(*make)(const void *record))
{
    _cleanup_py_ PyObject *list = PyList_New(0);
    struct collector collector = {.list = list, .make = make};
    struct caid_client *c = list ? py_client_enter(self) : NULL;
    struct caid_error error = {0};
    int r;

    if (!c)
        return NULL;
    collector.thread = PyEval_SaveThread();
    r = call(c, args, &collector, &error);
    PyEval_RestoreThread(collector.thread);
    py_client_leave(self);
    if (r < 0)
        return py_error_raise(self->state, r, &error);
    return r > 0 ? NULL : py_take(&list);
}

/* ---- names ---- */

/* (pool, name, typestr, shape, device, generation, nbytes, leases, uid, memory, readers, writers,
 * waiting, abandoned, parts) */
static PyObject *
entry_tuple(const void *record)
{
    const struct caid_entry *e = record;

    return Py_BuildValue("(NNNNiKKKINKKKNK)", py_text_or_none(e->pool),
                         py_text_or_none(e->name), py_text_or_none(e->typestr),
                         py_dims_tuple(e->shape, e->ndim), (int)e->device, (ull)e->generation,
                         (ull)e->nbytes, (ull)e->leases, (unsigned int)e->uid,
                         py_text_or_none(e->memory), (ull)e->readers, (ull)e->writers,
                         (ull)e->waiting, PyBool_FromLong(e->abandoned), (ull)e->parts);
}

static int
collect_entry(const struct caid_entry *entry, void *collector)
{
    return collect(collector, entry);
}

static int
call_list(struct caid_client *c, const void *args, struct collector *collector,
          struct caid_error *error)
{
    return caid_list(c, args, collect_entry, collector, error);
}

static int
list_options(const struct module_state *state, PyObject *pool, PyObject *all,
             struct caid_list_options *ret)
{
    int truth = PyObject_IsTrue(all);

    if (truth < 0)
        return -1;
    ret->all = truth;
    return py_text_get(state, pool, "pool", CAID_ERR_INVALID_NAME, &ret->pool);
}

PyObject *
py_client_list(PyObject *op, PyObject *const *args, Py_ssize_t n_args)
{
    struct client_object *self = client(op);
    struct caid_list_options options = CAID_INIT(struct caid_list_options);

    if (py_args_check("list", n_args, 3) < 0 ||
        list_options(self->state, args[0], args[2], &options) < 0 ||
        py_text_get(self->state, args[1], "prefix", CAID_ERR_INVALID_NAME, &options.prefix) < 0)
        return NULL;
    return list_of(self, call_list, &options, entry_tuple);
}

/* ---- details ---- */

/* (client, pid, uid, readonly, hung_up, reading, writing, waiting) */
static PyObject *
holder_tuple(const struct caid_holder *h)
{
    return Py_BuildValue("(NKINNKKK)", py_text_or_none(h->client), (ull)h->pid,
                         (unsigned int)h->uid, PyBool_FromLong(h->readonly),
                         PyBool_FromLong(h->hung_up), (ull)h->reading, (ull)h->writing,
                         (ull)h->waiting);
}

static PyObject *
holder_list(const struct caid_details *details)
{
    _cleanup_py_ PyObject *list = PyList_New((Py_ssize_t)details->n_holders);

    for (size_t i = 0; list && i < details->n_holders; i++) {
        PyObject *holder = holder_tuple(&details->holders[i]);
        if (!holder)
            return NULL;
        PyList_SET_ITEM(list, (Py_ssize_t)i, holder);
    }
    return py_take(&list);
}

static PyObject *
strides_or_none(const struct caid_details *d)
{
    if (!d->strides)
        Py_RETURN_NONE;
    return py_dims_tuple(d->strides, d->entry.ndim);
}

/* (entry, strides, descr, array, block, block_size, offset, holders, metadata) */
static PyObject *
details_tuple(const void *record)
{
    const struct caid_details *d = record;

    return Py_BuildValue("(NNNKKKKNN)", entry_tuple(&d->entry), strides_or_none(d),
                         py_text_or_none(d->descr), (ull)d->array, (ull)d->block,
                         (ull)d->block_size, (ull)d->offset, holder_list(d),
                         py_text_or_none(d->metadata));
}

static int
collect_details(const struct caid_details *details, void *collector)
{
    return collect(collector, details);
}

struct name {
    const char *name, *pool;
};

static int
call_show(struct caid_client *c, const void *args, struct collector *collector,
          struct caid_error *error)
{
    const struct name *of = args;

    return caid_show(c, of->name, of->pool, collect_details, collector, error);
}

/* A list of one, as caid_show() calls back once. */
PyObject *
py_client_show(PyObject *op, PyObject *const *args, Py_ssize_t n_args)
{
    struct client_object *self = client(op);
    struct name of;

    if (py_args_check("show", n_args, 2) < 0 ||
        py_name_get(self->state, args[0], &of.name) < 0 ||
        py_text_get(self->state, args[1], "pool", CAID_ERR_INVALID_NAME, &of.pool) < 0)
        return NULL;
    return list_of(self, call_show, &of, details_tuple);
}

static int
call_unnamed(struct caid_client *c, const void *args, struct collector *collector,
             struct caid_error *error)
{
    return caid_unnamed(c, args, collect_details, collector, error);
}

PyObject *
py_client_unnamed(PyObject *op, PyObject *const *args, Py_ssize_t n_args)
{
    struct client_object *self = client(op);
    struct caid_list_options options = CAID_INIT(struct caid_list_options);

    if (py_args_check("unnamed", n_args, 2) < 0 ||
        list_options(self->state, args[0], args[1], &options) < 0)
        return NULL;
    return list_of(self, call_unnamed, &options, details_tuple);
}

/* ---- timelines ---- */

/* (pool, name, client, pid, uid, value, submitted, holders) */
static PyObject *
timeline_tuple(const void *record)
{
    const struct caid_timeline_entry *t = record;

    return Py_BuildValue("(NNNKIKKK)", py_text_or_none(t->pool), py_text_or_none(t->name),
                         py_text_or_none(t->client), (ull)t->pid, (unsigned int)t->uid,
                         (ull)t->value, (ull)t->submitted, (ull)t->holders);
}

static int
collect_timeline(const struct caid_timeline_entry *timeline, void *collector)
{
    return collect(collector, timeline);
}

static int
call_timelines(struct caid_client *c, const void *args, struct collector *collector,
               struct caid_error *error)
{
    return caid_timelines(c, args, collect_timeline, collector, error);
}

PyObject *
py_client_timelines(PyObject *op, PyObject *const *args, Py_ssize_t n_args)
{
    struct client_object *self = client(op);
    struct caid_list_options options = CAID_INIT(struct caid_list_options);

    if (py_args_check("timelines", n_args, 2) < 0 ||
        list_options(self->state, args[0], args[1], &options) < 0)
        return NULL;
    return list_of(self, call_timelines, &options, timeline_tuple);
}

/* ---- pools and users ---- */

/* (name, uid, gid, mode, quota, used, names, arrays, blocks, allocated, pending, reserve, holes,
 * largest, pinned) */
static PyObject *
pool_tuple(const void *record)
{
    const struct caid_pool *p = record;

    return Py_BuildValue("(NIIIKKKKKKKKKKK)", py_text_or_none(p->name), (unsigned int)p->uid,
                         (unsigned int)p->gid, (unsigned int)p->mode, (ull)p->quota,
                         (ull)p->used, (ull)p->names, (ull)p->arrays, (ull)p->blocks,
                         (ull)p->allocated, (ull)p->pending, (ull)p->reserve, (ull)p->holes,
                         (ull)p->largest, (ull)p->pinned);
}

static int
collect_pool(const struct caid_pool *pool, void *collector)
{
    return collect(collector, pool);
}

static int
call_pools(struct caid_client *c, const void *Py_UNUSED(args), struct collector *collector,
           struct caid_error *error)
{
    return caid_pools(c, collect_pool, collector, error);
}

PyObject *
py_client_pools(PyObject *op, PyObject *Py_UNUSED(unused))
{
    return list_of(client(op), call_pools, NULL, pool_tuple);
}

/* (uid, connections, arrays, names, leases, watches, jobs, bytes, pinned, host, pending, deferred,
 * brackets, pages) */
static PyObject *
user_tuple(const void *record)
{
    const struct caid_user *u = record;

    return Py_BuildValue("(IKKKKKKKKKKKKK)", (unsigned int)u->uid, (ull)u->connections,
                         (ull)u->arrays, (ull)u->names, (ull)u->leases, (ull)u->watches,
                         (ull)u->jobs, (ull)u->bytes, (ull)u->pinned, (ull)u->host,
                         (ull)u->pending, (ull)u->deferred, (ull)u->brackets, (ull)u->pages);
}

static int
collect_user(const struct caid_user *user, void *collector)
{
    return collect(collector, user);
}

static int
call_users(struct caid_client *c, const void *Py_UNUSED(args), struct collector *collector,
           struct caid_error *error)
{
    return caid_users(c, collect_user, collector, error);
}

PyObject *
py_client_users(PyObject *op, PyObject *Py_UNUSED(unused))
{
    return list_of(client(op), call_users, NULL, user_tuple);
}
