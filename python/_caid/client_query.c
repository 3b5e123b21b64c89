/* SPDX-License-Identifier: Apache-2.0 */
/*
 * Client: names, arrays, pools, users and metrics, as the daemon knows them. Results are lists of
 * plain tuples: py_record().
 */
#include "module.h"

#include "session/query.h"

/* ---- lists by name ---- */

static PyObject *
answer_value(enum unit unit, const void *at)
{
    switch (unit) {
    case UNIT_TEXT:
    case UNIT_NAME: return py_text_or_none(*(const char *const *)at);
    case UNIT_UID:
    case UNIT_GID:
    case UNIT_MODE: return PyLong_FromUnsignedLong(*(const uint32_t *)at);
    case UNIT_FLAG: return PyBool_FromLong(*(const bool *)at);
    default: return PyLong_FromUnsignedLongLong(*(const uint64_t *)at);
    }
}

/* A tuple of all fields, in their order, which is that of the class in caid/_answers.py. */
static PyObject *
answer_tuple(const struct answer *answer, const void *record)
{
    _cleanup_py_ PyObject *tuple = NULL;
    Py_ssize_t n = 0;

    while (answer->fields[n].unit != UNIT_END)
        n++;
    tuple = PyTuple_New(n);
    for (Py_ssize_t i = 0; tuple && i < n; i++) {
        const struct answer_field *f = &answer->fields[i];
        PyObject *value = answer_value(f->unit, (const char *)record + f->at);
        if (!value)
            return NULL;
        PyTuple_SET_ITEM(tuple, i, value);
    }
    return py_take(&tuple);
}

/* ---- lists by callback ---- */

/* What a callback of libcaid fills: it runs without the GIL in the calling thread, whose state
 * is here meanwhile. */
struct collector {
    PyObject *list;
    const struct answer *answer; /* or, where that is NULL: */
    const struct py_field *fields;
};

/* Appends the tuple of a record; 0, or 1 with an exception set, which ends the list. */
static int
collect(const void *record, void *collector)
{
    struct collector *c = collector;
    PyObject *item;
    int r;

    PyEval_RestoreThread(py_waiting);
    item = c->answer ? answer_tuple(c->answer, record) : py_record(record, c->fields);
    r = item ? PyList_Append(c->list, item) : -1;
    Py_XDECREF(item);
    py_waiting = PyEval_SaveThread();
    return r < 0 ? 1 : 0;
}

/* collect() for libcaid. */
#define COLLECT_OF(name, of)                                            \
    static int collect_##name(const struct of *record, void *collector) \
    {                                                                   \
        return collect(record, collector);                              \
    }                                                                   \
    struct collector
#define COLLECT(name) COLLECT_OF(name, caid_##name)

/* The list of what a call makes, with the client, c, with collector and error. */
#define LIST_OF(self, fields_, call) LIST_BY(self, call, .fields = (fields_))
#define LIST_BY(self, call, ...)                                     \
    ({                                                               \
        _cleanup_py_ PyObject *list = PyList_New(0);                 \
        struct collector collector = {.list = list, __VA_ARGS__};    \
        struct caid_client *c = list ? py_client_enter(self) : NULL; \
        struct caid_error error = {0};                               \
        int r_ = -1;                                                 \
        if (c) {                                                     \
            WITHOUT_GIL(r_ = (call));                                \
            r_ = py_client_leave_with(self, r_, &error);             \
        }                                                            \
        r_ == 0 ? py_take(&list) : NULL;                             \
    })

/* A method that lists records by caid_list_options; then its arguments. */
#define LIST_METHOD(method, record, call, ...)                                           \
    PyObject *py_client_##method(PyObject *op, PyObject *const *args, Py_ssize_t n_args) \
    {                                                                                    \
        struct client_object *self = py_client(op);                                      \
        struct caid_list_options options = CAID_INIT(struct caid_list_options);          \
                                                                                         \
        if (PY_ARGS(self->state, #method, __VA_ARGS__) < 0)                              \
            return NULL;                                                                 \
        return LIST_OF(self, record##_fields,                                            \
                       call(c, &options, collect_##record, &collector, &error));         \
    }

/* ---- names ---- */

static PyObject *
entry_shape(const void *record)
{
    const struct caid_entry *e = record;

    return py_dims_tuple(e->shape, e->ndim);
}

#define F(field) PY_FIELD(struct caid_entry, field)

static const struct py_field entry_fields[] = {
    F(pool),    F(name),       F(typestr), {.make = entry_shape},
    F(device),  F(generation), F(nbytes),  F(leases),
    F(uid),     F(memory),     F(readers), F(writers),
    F(waiting), F(abandoned),  F(parts),   F(ttl_ns),
    F(members), F(of_set),     F(sets),    {0},
};

#undef F

COLLECT(entry);

LIST_METHOD(list, entry, caid_list, PY_POOL(options.pool), PY_POOL(options.prefix),
            PY_ARG(options.all))

PyObject *
py_client_set_list(PyObject *op, PyObject *arg)
{
    struct client_object *self = py_client(op);
    struct lease_object *set = py_lease_get_pinned(self->state, arg);
    PyObject *keys;

    if (!set)
        return NULL;
    keys = LIST_OF(self, entry_fields,
                   caid_set_list(set->array, collect_entry, &collector, &error));
    py_lease_unpin(set);
    return keys;
}

/* ---- details ---- */

#define F(field) PY_FIELD(struct caid_holder, field)

static const struct py_field holder_fields[] = {
    F(client), F(pid),     F(uid),     F(readonly), F(hung_up),
    F(sent),   F(reading), F(writing), F(waiting),  {0},
};

#undef F

static PyObject *
details_entry(const void *record)
{
    return py_record(&((const struct caid_details *)record)->entry, entry_fields);
}

static PyObject *
details_strides(const void *record)
{
    const struct caid_details *d = record;

    if (!d->strides)
        Py_RETURN_NONE;
    return py_dims_tuple(d->strides, d->entry.ndim);
}

static PyObject *
details_holders(const void *record)
{
    const struct caid_details *d = record;
    _cleanup_py_ PyObject *list = PyList_New((Py_ssize_t)d->n_holders);

    for (size_t i = 0; list && i < d->n_holders; i++) {
        PyObject *holder = py_record(&d->holders[i], holder_fields);
        if (!holder)
            return NULL;
        PyList_SET_ITEM(list, (Py_ssize_t)i, holder);
    }
    return py_take(&list);
}

#define F(field) PY_FIELD(struct caid_details, field)

static const struct py_field details_fields[] = {
    {.make = details_entry},
    {.make = details_strides},
    F(descr),
    F(array),
    F(block),
    F(block_size),
    F(offset),
    {.make = details_holders},
    F(metadata),
    F(companion),
    {0},
};

#undef F

COLLECT(details);

/* A list of one, as caid_show() calls back once. */
PyObject *
py_client_show(PyObject *op, PyObject *const *args, Py_ssize_t n_args)
{
    struct client_object *self = py_client(op);
    const char *name, *pool;

    if (PY_ARGS(self->state, "show", PY_NAME(name), PY_POOL(pool)) < 0)
        return NULL;
    return LIST_OF(self, details_fields,
                   caid_show(c, name, pool, collect_details, &collector, &error));
}

LIST_METHOD(unnamed, details, caid_unnamed, PY_POOL(options.pool), PY_ARG(options.all))

/* ---- any ---- */

PyObject *
py_client_query(PyObject *op, PyObject *const *args, Py_ssize_t n_args)
{
    struct client_object *self = py_client(op);
    struct caid_list_options options = CAID_INIT(options);
    const struct query *query;
    const char *name;

    if (PY_ARGS(self->state, "query", PY_NAME(name), PY_POOL(options.pool),
                PY_POOL(options.prefix), PY_ARG(options.all)) < 0)
        return NULL;
    query = query_find(name);
    if (!query) {
        PyErr_Format(PyExc_ValueError, "no list %s", name);
        return NULL;
    }
    return LIST_BY(self, query_run(query, c, &options, collect, &collector, &error),
                   .answer = query_answer(query));
}
