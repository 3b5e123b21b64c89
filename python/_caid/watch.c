/* SPDX-License-Identifier: Apache-2.0 */
/*
 * Watch: news of a name, or of all with a prefix, one struct caid_watch. Made by Client._watch()
 * and _watch_prefix(), ended by close() or with the object. A wait: wait.c.
 */
#include "handle.h"

struct watch_object {
    struct handle_object handle;
    struct caid_watch *watch;
};

PY_CAST(watch);

/* ---- life ---- */

static void
watch_end(struct handle_object *self, struct caid_client *Py_UNUSED(client))
{
    struct caid_watch *ended = ((struct watch_object *)self)->watch;

    WITHOUT_GIL(caid_watch_close(ended));
}

static const struct handle_class watch_class = {.name = "watch", .end = watch_end};

PyObject *
py_client_watch(PyObject *op, PyObject *const *args, Py_ssize_t n_args)
{
    struct client_object *self = py_client(op);
    const char *name, *pool;

    if (PY_ARGS(self->state, "watch", PY_NAME(name), PY_POOL(pool)) < 0)
        return NULL;
    return PY_HANDLE_MAKE(self, watch,
                          caid_watch_new(c, &watch(made)->watch, name, pool, NULL, NULL,
                                         &error));
}

PyObject *
py_client_watch_prefix(PyObject *op, PyObject *const *args, Py_ssize_t n_args)
{
    struct client_object *self = py_client(op);
    const char *prefix, *pool;

    if (PY_ARGS(self->state, "watch_prefix", PY_NAME(prefix), PY_POOL(pool)) < 0)
        return NULL;
    return PY_HANDLE_MAKE(self, watch,
                          caid_watch_prefix(c, &watch(made)->watch, prefix, pool, NULL, NULL,
                                            &error));
}

/* ---- waiting ---- */

static PyObject *
watch_next(PyObject *op, PyObject *timeout)
{
    struct handle_object *self = py_handle(op);
    struct caid_error error = {0};
    struct caid_change change;
    uint64_t timeout_ns;
    int r;

    if (py_timeout_get(timeout, &timeout_ns) < 0 || !py_handle_enter(self))
        return NULL;
    r = PY_WAIT(self, caid_watch_next(watch(op)->watch, timeout_ns, &change, &error));
    if (py_handle_leave_with(self, r, &error) < 0)
        return NULL;
    return Py_BuildValue("(sK)", change.name, (unsigned long long)change.generation);
}

/* ---- the type ---- */

static PyMethodDef watch_methods[] = {
    {"_next", watch_next, METH_O,
     PyDoc_STR("Waits for news: the name, and its generation, 0 for none.")},
    PY_HANDLE_CLOSE("Ends it. Idempotent."),
    {0},
};

PY_SPEC(watch, "caid._caid.Watch", PY_HANDLE_FLAGS, "News of one name.", PY_HANDLE_LIFE,
        {Py_tp_methods, watch_methods}, {Py_tp_getset, py_handle_getset});
