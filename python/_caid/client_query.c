/* SPDX-License-Identifier: Apache-2.0 */
/*
 * Client: names, arrays, pools, users and metrics, as the daemon knows them. Results are lists of
 * plain tuples: py_answer().
 */
#include "module.h"

#include "session/query.h"

/* ---- records ---- */

static PyObject *
answer_records(const struct answer *of, const void *at)
{
    uint32_t n;
    const void *const *records = answer_list(at, &n);
    _cleanup_py_ PyObject *list = PyList_New((Py_ssize_t)n);

    for (uint32_t i = 0; list && i < n; i++) {
        PyObject *record = py_answer(of, records[i]);
        if (!record)
            return NULL;
        PyList_SET_ITEM(list, (Py_ssize_t)i, record);
    }
    return py_take(&list);
}

static PyObject *
answer_dims(const void *at)
{
    uint32_t n;
    const int64_t *dims = answer_list(at, &n);

    if (!dims)
        Py_RETURN_NONE;
    return py_dims_tuple(dims, n);
}

static PyObject *
answer_value(const struct answer_field *f, const void *at)
{
    switch (f->unit) {
    case UNIT_TEXT:
    case UNIT_JSON:
    case UNIT_NAME: return py_text_or_none(*(const char *const *)at);
    case UNIT_TEXT_IN: return py_text_or_none(f->optional && !*(const char *)at ? NULL : at);
    case UNIT_WORDS: return py_text_or_none(at);
    case UNIT_UID:
    case UNIT_GID:
    case UNIT_MODE: return PyLong_FromUnsignedLong(*(const uint32_t *)at);
    case UNIT_FLAG: return PyBool_FromLong(*(const bool *)at);
    case UNIT_DEVICE: return PyLong_FromLong(*(const int32_t *)at);
    case UNIT_DIMS: return answer_dims(at);
    case UNIT_RECORD: return py_answer(f->of, *(const void *const *)at);
    case UNIT_RECORDS: return answer_records(f->of, at);
    default: return PyLong_FromUnsignedLongLong(*(const uint64_t *)at);
    }
}

PyObject *
py_answer(const struct answer *answer, const void *record)
{
    _cleanup_py_ PyObject *tuple = NULL;
    Py_ssize_t n = 0;

    while (answer->fields[n].unit != UNIT_END)
        n++;
    tuple = PyTuple_New(n);
    for (Py_ssize_t i = 0; tuple && i < n; i++) {
        const struct answer_field *f = &answer->fields[i];
        PyObject *value = answer_value(f, (const char *)record + f->at);
        if (!value)
            return NULL;
        PyTuple_SET_ITEM(tuple, i, value);
    }
    return py_take(&tuple);
}

/* ---- lists ---- */

/* The list that a callback of libcaid fills. libcaid calls it without the GIL, on the calling
 * thread. */
struct collector {
    PyObject *list;
    const struct answer *answer;
};

/* Appends a record's tuple to the list. Returns 0, or 1 with an exception set, which ends the
 * query. */
static int
collect(const void *record, void *collector)
{
    struct collector *c = collector;
    PyObject *item;
    int r;

    PyEval_RestoreThread(py_waiting);
    item = py_answer(c->answer, record);
    r = item ? PyList_Append(c->list, item) : -1;
    Py_XDECREF(item);
    py_waiting = PyEval_SaveThread();
    return r < 0 ? 1 : 0;
}

/* Gives the list that a call fills; the call uses the client, c, and collector and error. */
#define LIST_OF(self, answer_, call)                                      \
    ({                                                                    \
        _cleanup_py_ PyObject *list = PyList_New(0);                      \
        struct collector collector = {.list = list, .answer = (answer_)}; \
        struct caid_client *c = list ? py_client_enter(self) : NULL;      \
        struct caid_error error = {0};                                    \
        int r_ = -1;                                                      \
        if (c) {                                                          \
            WITHOUT_GIL(r_ = (call));                                     \
            r_ = py_client_leave_with(self, r_, &error);                  \
        }                                                                 \
        r_ == 0 ? py_take(&list) : NULL;                                  \
    })

static int
collect_key(const struct caid_entry *entry, void *collector)
{
    return collect(entry, collector);
}

PyObject *
py_client_set_list(PyObject *op, PyObject *arg)
{
    struct client_object *self = py_client(op);
    struct lease_object *set = py_lease_get_pinned(self->state, arg);
    PyObject *keys;

    if (!set)
        return NULL;
    keys = LIST_OF(self, &answer_entry,
                   caid_set_list(set->array, collect_key, &collector, &error));
    py_lease_unpin(set);
    return keys;
}

/* Gives a list of one record. */
PyObject *
py_client_show(PyObject *op, PyObject *const *args, Py_ssize_t n_args)
{
    struct client_object *self = py_client(op);
    const char *name, *pool;

    if (PY_ARGS(self->state, "show", PY_NAME(name), PY_POOL(pool)) < 0)
        return NULL;
    return LIST_OF(self, &answer_details,
                   query_show(c, name, pool, collect, &collector, &error));
}

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
    return LIST_OF(self, query_answer(query),
                   query_run(query, c, &options, collect, &collector, &error));
}
