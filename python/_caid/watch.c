/* SPDX-License-Identifier: Apache-2.0 */
/*
 * Watch: news of one name. Made by Client._watch(), ended by close() or with the object; it holds
 * its Client alive.
 *
 * A wait is cut into slices, between which Python's signal handlers run: Ctrl-C ends it. close()
 * may come while other threads wait: the last of them ends the watch, at the end of its slice,
 * since libcaid cannot know of a thread that is just about to enter it.
 */
#include "handle.h"

#include <errno.h>

struct watch_object {
    PyObject_HEAD
    struct client_object *client; /* NULL only after tp_clear */
    struct caid_watch *watch;     /* NULL: ended */
    Py_ssize_t n_waiting;         /* threads that use `watch` without the GIL */
    bool closing;                 /* closed; the last of them ends `watch` */
};

static struct watch_object *
watch(PyObject *op)
{
    return (struct watch_object *)op;
}

/* ---- life ---- */

static PyObject *
watch_new(struct client_object *client, const char *name, const char *pool)
{
    PyTypeObject *type = client->state->watch_type;
    _cleanup_py_ PyObject *op = type->tp_alloc(type, 0);
    struct caid_error error = {0};
    struct caid_client *c;
    int r;

    if (!op)
        return NULL;
    Py_INCREF(client);
    watch(op)->client = client;
    c = py_client_enter(client);
    if (!c)
        return NULL;
    Py_BEGIN_ALLOW_THREADS r =
        caid_watch_new(c, &watch(op)->watch, name, pool, NULL, NULL, &error);
    Py_END_ALLOW_THREADS py_client_leave(client);
    return r < 0 ? py_error_raise(client->state, r, &error) : py_take(&op);
}

PyObject *
py_client_watch(PyObject *op, PyObject *const *args, Py_ssize_t n_args)
{
    struct client_object *self = (struct client_object *)op;
    const char *name, *pool;

    if (py_args_check("watch", n_args, 2) < 0 || py_name_get(self->state, args[0], &name) < 0 ||
        py_text_get(self->state, args[1], "pool", CAID_ERR_INVALID_NAME, &pool) < 0)
        return NULL;
    return watch_new(self, name, pool);
}

static void
watch_end(struct watch_object *self)
{
    struct caid_watch *ended = self->watch;

    self->watch = NULL;
    if (ended) {
        Py_BEGIN_ALLOW_THREADS caid_watch_close(ended);
        Py_END_ALLOW_THREADS
    }
}

static PyObject *
watch_tp_new(PyTypeObject *type, PyObject *Py_UNUSED(args), PyObject *Py_UNUSED(kwargs))
{
    PyErr_Format(PyExc_TypeError, "%s comes from Client.watch()", type->tp_name);
    return NULL;
}

static int
watch_traverse(PyObject *op, visitproc visit, void *arg)
{
    Py_VISIT(Py_TYPE(op));
    Py_VISIT(watch(op)->client);
    return 0;
}

static int
watch_clear(PyObject *op)
{
    watch(op)->closing = true;
    watch_end(watch(op));
    Py_CLEAR(watch(op)->client);
    return 0;
}

static void
watch_dealloc(PyObject *op)
{
    PyTypeObject *type = Py_TYPE(op);

    PyObject_GC_UnTrack(op);
    watch_clear(op);
    type->tp_free(op);
    Py_DECREF(type);
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
    struct watch_object *self = look->self;
    int r;

    if (self->closing) {
        error->code = CAID_ERR_CANCELLED;
        strcpy(error->message, "the watch was closed");
        return -ECANCELED;
    }
    self->n_waiting++;
    Py_BEGIN_ALLOW_THREADS r = caid_watch_next(self->watch, timeout_ns, &look->change, error);
    Py_END_ALLOW_THREADS if (--self->n_waiting == 0 && self->closing) watch_end(self);
    return r == -ETIMEDOUT ? 1 : r;
}

static PyObject *
watch_next(PyObject *op, PyObject *timeout)
{
    struct watch_object *self = watch(op);
    struct client_object *client = self->client;
    struct look look = {.self = self};
    struct caid_error error = {0};
    uint64_t timeout_ns;
    int r;

    if (!client) {
        PyErr_SetString(PyExc_ReferenceError, "the watch was collected");
        return NULL;
    }
    if (self->closing)
        return py_error_raise_code(client->state, CAID_ERR_CLOSED, EBADF,
                                   "the watch is closed");
    if (py_timeout_get(timeout, &timeout_ns) < 0)
        return NULL;
    r = py_wait(look_slice, &look, timeout_ns, &error);
    if (r >= 0)
        return PyLong_FromUnsignedLongLong(look.change.generation);
    return PyErr_Occurred() ? NULL : py_error_raise(client->state, r, &error);
}

/* ---- the type ---- */

static PyObject *
watch_close(PyObject *op, PyObject *Py_UNUSED(unused))
{
    watch(op)->closing = true;
    if (watch(op)->n_waiting == 0)
        watch_end(watch(op));
    Py_RETURN_NONE;
}

static PyObject *
watch_get_closed(PyObject *op, void *Py_UNUSED(closure))
{
    return PyBool_FromLong(watch(op)->closing);
}

static PyMethodDef watch_methods[] = {
    {"next", watch_next, METH_O,
     PyDoc_STR("next(timeout, /)\n--\n\nWaits for news: the generation, 0 for none.")},
    {"close", watch_close, METH_NOARGS,
     PyDoc_STR("close()\n--\n\nEnds the watch and wakes whoever waits.")},
    {0},
};

static PyGetSetDef watch_getset[] = {
    {"closed", watch_get_closed, NULL, PyDoc_STR("Whether close() was called."), NULL},
    {0},
};

PyDoc_STRVAR(watch_doc, "News of one name.");

static PyType_Slot watch_slots[] = {
    {Py_tp_doc, (void *)(uintptr_t)watch_doc},
    {Py_tp_new, watch_tp_new},
    {Py_tp_traverse, watch_traverse},
    {Py_tp_clear, watch_clear},
    {Py_tp_dealloc, watch_dealloc},
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
