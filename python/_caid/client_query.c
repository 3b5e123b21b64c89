/* SPDX-License-Identifier: Apache-2.0 */
/*
 * Client: what the daemon knows. Results are plain tuples in the order of the fields of the
 * classes in caid/_client.py, which name them.
 */
#include "module.h"

static struct client_object *
client(PyObject *op)
{
    return (struct client_object *)op;
}

/* ---- lists by callback ---- */

/* What a callback of libcaid fills: it runs without the GIL in the calling thread, whose state
 * is here meanwhile. */
struct collector {
    PyThreadState *thread;
    PyObject *list;
};

/* Appends an item that was made by make(record); 0, or 1 with an exception set, which ends the
 * list. */
static int
collect(struct collector *c, PyObject *(*make)(const void *), const void *record)
{
    PyObject *item;
    int r;

    PyEval_RestoreThread(c->thread);
    item = make(record);
    r = item ? PyList_Append(c->list, item) : -1;
    Py_XDECREF(item);
    c->thread = PyEval_SaveThread();
    return r < 0 ? 1 : 0;
}

/* The list, or the exception for r, which libcaid or the callback returned. */
static PyObject *
collected(struct collector *c, struct client_object *self, int r,
          const struct caid_error *error)
{
    _cleanup_py_ PyObject *list = c->list;

    py_client_leave(self);
    if (r < 0)
        return py_error_raise(self->state, r, error);
    return r > 0 ? NULL : py_take(&list);
}

/* (pool, name, typestr, shape, device, generation, nbytes, leases, uid) */
static PyObject *
entry_tuple(const void *record)
{
    const struct caid_entry *e = record;

    return Py_BuildValue("(NNNNiKKKI)", py_text_or_none(e->pool), py_text_or_none(e->name),
                         py_text_or_none(e->typestr), py_dims_tuple(e->shape, e->ndim),
                         (int)e->device, (unsigned long long)e->generation,
                         (unsigned long long)e->nbytes, (unsigned long long)e->leases,
                         (unsigned int)e->uid);
}

static int
collect_entry(const struct caid_entry *entry, void *userdata)
{
    return collect(userdata, entry_tuple, entry);
}

PyObject *
py_client_list(PyObject *op, PyObject *const *args, Py_ssize_t n_args)
{
    struct client_object *self = client(op);
    struct caid_list_options options = CAID_INIT(struct caid_list_options);
    struct collector collector = {0};
    struct caid_error error = {0};
    struct caid_client *c;
    int r, all;

    if (py_args_check("list", n_args, 3) < 0 ||
        py_text_get(self->state, args[0], "pool", CAID_ERR_INVALID_NAME, &options.pool) < 0 ||
        py_text_get(self->state, args[1], "prefix", CAID_ERR_INVALID_NAME, &options.prefix) < 0)
        return NULL;
    all = PyObject_IsTrue(args[2]);
    if (all < 0)
        return NULL;
    options.all = all;
    collector.list = PyList_New(0);
    c = collector.list ? py_client_enter(self) : NULL;
    if (!c) {
        Py_XDECREF(collector.list);
        return NULL;
    }
    collector.thread = PyEval_SaveThread();
    r = caid_list(c, &options, collect_entry, &collector, &error);
    PyEval_RestoreThread(collector.thread);
    return collected(&collector, self, r, &error);
}

/* (client, pid, uid, readonly) */
static PyObject *
holder_tuple(const struct caid_holder *h)
{
    return Py_BuildValue("(NKIN)", py_text_or_none(h->client), (unsigned long long)h->pid,
                         (unsigned int)h->uid, PyBool_FromLong(h->readonly));
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

/* (entry, strides, descr, array, block, block_size, offset, holders) */
static PyObject *
details_tuple(const void *record)
{
    const struct caid_details *d = record;

    return Py_BuildValue("(NNNKKKKN)", entry_tuple(&d->entry), strides_or_none(d),
                         py_text_or_none(d->descr), (unsigned long long)d->array,
                         (unsigned long long)d->block, (unsigned long long)d->block_size,
                         (unsigned long long)d->offset, holder_list(d));
}

static int
collect_details(const struct caid_details *details, void *userdata)
{
    return collect(userdata, details_tuple, details);
}

/* A list of one, as caid_show() calls back once. */
PyObject *
py_client_show(PyObject *op, PyObject *const *args, Py_ssize_t n_args)
{
    struct client_object *self = client(op);
    struct collector collector = {0};
    struct caid_error error = {0};
    const char *name, *pool;
    struct caid_client *c;
    int r;

    if (py_args_check("show", n_args, 2) < 0 ||
        py_text_get(self->state, args[0], "name", CAID_ERR_INVALID_NAME, &name) < 0 ||
        py_text_get(self->state, args[1], "pool", CAID_ERR_INVALID_NAME, &pool) < 0)
        return NULL;
    if (!name) {
        PyErr_SetString(PyExc_TypeError, "name: a str is needed, not None");
        return NULL;
    }
    collector.list = PyList_New(0);
    c = collector.list ? py_client_enter(self) : NULL;
    if (!c) {
        Py_XDECREF(collector.list);
        return NULL;
    }
    collector.thread = PyEval_SaveThread();
    r = caid_show(c, name, pool, collect_details, &collector, &error);
    PyEval_RestoreThread(collector.thread);
    return collected(&collector, self, r, &error);
}

/* (name, uid, gid, mode, quota, used, names, arrays) */
static PyObject *
pool_tuple(const void *record)
{
    const struct caid_pool *p = record;

    return Py_BuildValue("(NIIIKKKK)", py_text_or_none(p->name), (unsigned int)p->uid,
                         (unsigned int)p->gid, (unsigned int)p->mode,
                         (unsigned long long)p->quota, (unsigned long long)p->used,
                         (unsigned long long)p->names, (unsigned long long)p->arrays);
}

static int
collect_pool(const struct caid_pool *pool, void *userdata)
{
    return collect(userdata, pool_tuple, pool);
}

PyObject *
py_client_pools(PyObject *op, PyObject *Py_UNUSED(unused))
{
    struct client_object *self = client(op);
    struct collector collector = {.list = PyList_New(0)};
    struct caid_error error = {0};
    struct caid_client *c = collector.list ? py_client_enter(self) : NULL;
    int r;

    if (!c) {
        Py_XDECREF(collector.list);
        return NULL;
    }
    collector.thread = PyEval_SaveThread();
    r = caid_pools(c, collect_pool, &collector, &error);
    PyEval_RestoreThread(collector.thread);
    return collected(&collector, self, r, &error);
}

/* ---- single records ---- */

PyObject *
py_client_memory_info(PyObject *op, PyObject *device)
{
    struct client_object *self = client(op);
    struct caid_memory_info info = CAID_INIT(struct caid_memory_info);
    struct caid_error error = {0};
    struct caid_client *c;
    int32_t index;
    int r;

    if (py_device_get(self->state, device, &index) < 0)
        return NULL;
    c = py_client_enter(self);
    if (!c)
        return NULL;
    Py_BEGIN_ALLOW_THREADS r = caid_memory_info(c, index, &info, &error);
    Py_END_ALLOW_THREADS py_client_leave(self);
    if (r < 0)
        return py_error_raise(self->state, r, &error);
    return Py_BuildValue("(KKKKK)", (unsigned long long)info.free,
                         (unsigned long long)info.total, (unsigned long long)info.used,
                         (unsigned long long)info.blocks, (unsigned long long)info.arrays);
}

static PyObject *
status_tuple(const struct caid_status *s)
{
    return Py_BuildValue("(NNNNNKKKKKKKKKKK)", py_text_or_none(s->server),
                         py_text_or_none(s->driver), py_text_or_none(s->driver_path),
                         py_text_or_none(s->socket), py_text_or_none(s->pool),
                         (unsigned long long)s->driver_version, (unsigned long long)s->pid,
                         (unsigned long long)s->uptime_ns, (unsigned long long)s->connections,
                         (unsigned long long)s->pools, (unsigned long long)s->blocks,
                         (unsigned long long)s->arrays, (unsigned long long)s->names,
                         (unsigned long long)s->leases, (unsigned long long)s->jobs,
                         (unsigned long long)s->release_errors);
}

/* (server, driver, driver_path, socket, pool, driver_version, pid, uptime_ns, connections, pools,
 * blocks, arrays, names, leases, jobs, release_errors) */
PyObject *
py_client_status(PyObject *op, PyObject *Py_UNUSED(unused))
{
    struct client_object *self = client(op);
    struct caid_status status = CAID_INIT(struct caid_status);
    struct caid_error error = {0};
    struct caid_client *c = py_client_enter(self);
    int r;

    if (!c)
        return NULL;
    Py_BEGIN_ALLOW_THREADS r = caid_client_status(c, &status, &error);
    Py_END_ALLOW_THREADS py_client_leave(self);
    return r < 0 ? py_error_raise(self->state, r, &error) : status_tuple(&status);
}

/* (uuid, name, total, granularity) of each */
PyObject *
py_client_devices(PyObject *op, PyObject *Py_UNUSED(unused))
{
    struct client_object *self = client(op);
    const struct caid_device *devices;
    struct caid_client *c = py_client_enter(self);
    _cleanup_py_ PyObject *list = c ? PyList_New(0) : NULL;
    int n;

    if (!c)
        return NULL;
    n = list ? caid_client_devices(c, &devices) : 0;
    for (int i = 0; i < n; i++) {
        _cleanup_py_ PyObject *device =
            Py_BuildValue("(NNKK)", py_text_or_none(devices[i].uuid),
                          py_text_or_none(devices[i].name),
                          (unsigned long long)devices[i].total,
                          (unsigned long long)devices[i].granularity);
        if (!device || PyList_Append(list, device) < 0) {
            Py_CLEAR(list);
            break;
        }
    }
    py_client_leave(self);
    return py_take(&list);
}
