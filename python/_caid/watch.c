/* SPDX-License-Identifier: Apache-2.0 */
/*
 * Watch: news of one name, one struct caid_watch. Made by Client._watch(), ended by close() or with the
 * object. A wait is cut into slices, between which Python's signal handlers run: Ctrl-C ends it.
 */
#include "handle.h"

#include <errno.h>

struct watch_object {
    struct handle_object handle;
    struct caid_watch *watch;
};

static struct watch_object *
watch(PyObject *op)
{
    return (struct watch_object *)op;
}

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
    struct client_object *self = (struct client_object *)op;
    _cleanup_py_ PyObject *made = NULL;
    struct caid_error error = {0};
    const char *name, *pool;
    struct caid_client *c;
    int r;

    if (py_args_check("watch", n_args, 2) < 0 || py_name_get(self->state, args[0], &name) < 0 ||
        py_text_get(self->state, args[1], "pool", CAID_ERR_INVALID_NAME, &pool) < 0)
        return NULL;
    made = py_handle_new(self->state->watch_type, self, &watch_class);
    c = made ? py_client_enter(self) : NULL;
    if (!c)
        return NULL;
    WITHOUT_GIL(r = caid_watch_new(c, &watch(made)->watch, name, pool, NULL, NULL, &error));
    if (r == 0)
        py_handle_begin(py_handle(made));
    py_client_leave(self);
    return r < 0 ? py_error_raise(self->state, r, &error) : py_take(&made);
}

/* ---- waiting ---- */

struct look {
    struct watch_object *self;
    struct caid_change change;
};

static int
look_slice(void *arg, uint64_t timeout_ns, struct caid_error *error)
{
    struct look *look = arg;
    int r;

    if (py_handle_is_cancelled(&look->self->handle, error))
        return -ECANCELED;
    WITHOUT_GIL(r = caid_watch_next(look->self->watch, timeout_ns, &look->change, error));
    return r == -ETIMEDOUT ? 1 : r;
}

static PyObject *
watch_next(PyObject *op, PyObject *timeout)
{
    struct handle_object *self = py_handle(op);
    struct look look = {.self = watch(op)};
    struct caid_error error = {0};
    uint64_t timeout_ns;
    int r;

    if (py_timeout_get(timeout, &timeout_ns) < 0 || !py_handle_enter(self))
        return NULL;
    r = py_wait(look_slice, &look, timeout_ns, &error);
    py_handle_leave(self);
    if (r >= 0)
        return PyLong_FromUnsignedLongLong(look.change.generation);
    return PyErr_Occurred() ? NULL : py_error_raise(self->client->state, r, &error);
}

/* ---- the type ---- */

static PyMethodDef watch_methods[] = {
    {"next", watch_next, METH_O,
     PyDoc_STR("next(timeout, /)\n--\n\nWaits for news: the generation, 0 for none.")},
    PY_HANDLE_CLOSE,
    {0},
};

static PyGetSetDef watch_getset[] = {
    PY_HANDLE_CLOSED,
    {0},
};

PyDoc_STRVAR(watch_doc, "News of one name.");

static PyType_Slot watch_slots[] = {
    {Py_tp_doc, (void *)(uintptr_t)watch_doc},
    {Py_tp_new, py_handle_tp_new},
    {Py_tp_traverse, py_handle_traverse},
    {Py_tp_clear, py_handle_clear},
    {Py_tp_dealloc, py_handle_dealloc},
    {Py_tp_methods, watch_methods},
    {Py_tp_getset, watch_getset},
    {0, NULL},
};

PyType_Spec py_watch_spec = {
    .name = "caid._caid.Watch",
    .basicsize = sizeof(struct watch_object),
    .flags = Py_TPFLAGS_DEFAULT | Py_TPFLAGS_HAVE_GC,
    .slots = watch_slots,
};
