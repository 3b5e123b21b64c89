/* SPDX-License-Identifier: Apache-2.0 */
/*
 * Timeline: one struct caid_timeline, of this process, which signals (Client._timeline_new()), or of
 * another, which is waited for (Client._timeline_open()). Ended by close() or with the object.
 */
#include "handle.h"

#include <errno.h>

struct timeline_object {
    struct handle_object handle;
    struct caid_timeline *timeline;
};

static struct timeline_object *
timeline(PyObject *op)
{
    return (struct timeline_object *)op;
}

/* ---- life ---- */

static void
timeline_end(struct handle_object *self, struct caid_client *Py_UNUSED(client))
{
    struct caid_timeline *ended = ((struct timeline_object *)self)->timeline;

    WITHOUT_GIL(caid_timeline_close(ended));
}

static const struct handle_class timeline_class = {.name = "timeline", .end = timeline_end};

typedef int timeline_make(struct caid_client *client, struct caid_timeline **ret,
                          const char *name, const char *pool, struct caid_error *error);

/* args: name, pool */
static PyObject *
make(PyObject *op, PyObject *const *args, timeline_make *f)
{
    struct client_object *self = (struct client_object *)op;
    _cleanup_py_ PyObject *made = NULL;
    struct caid_error error = {0};
    const char *name, *pool;
    struct caid_client *c;
    int r;

    if (py_name_get(self->state, args[0], &name) < 0 ||
        py_text_get(self->state, args[1], "pool", CAID_ERR_INVALID_NAME, &pool) < 0)
        return NULL;
    made = py_handle_new(self->state->timeline_type, self, &timeline_class);
    c = made ? py_client_enter(self) : NULL;
    if (!c)
        return NULL;
    WITHOUT_GIL(r = f(c, &timeline(made)->timeline, name, pool, &error));
    if (r == 0)
        py_handle_begin(py_handle(made));
    py_client_leave(self);
    return r < 0 ? py_error_raise(self->state, r, &error) : py_take(&made);
}

PyObject *
py_client_timeline_new(PyObject *op, PyObject *const *args, Py_ssize_t n_args)
{
    return py_args_check("timeline_new", n_args, 2) < 0 ? NULL
                                                        : make(op, args, caid_timeline_create);
}

PyObject *
py_client_timeline_open(PyObject *op, PyObject *const *args, Py_ssize_t n_args)
{
    return py_args_check("timeline_open", n_args, 2) < 0 ? NULL
                                                         : make(op, args, caid_timeline_open);
}

/* ---- signal and wait ---- */

static PyObject *
timeline_signal(PyObject *op, PyObject *const *args, Py_ssize_t n_args)
{
    struct handle_object *self = py_handle(op);
    struct caid_error error = {0};
    uint64_t stream, value;
    int r;

    if (py_args_check("signal", n_args, 2) < 0 || !py_handle_enter(self))
        return NULL;
    if (py_u64_get(self->client->state, args[0], "stream", &stream) < 0 ||
        py_u64_get(self->client->state, args[1], "value", &value) < 0) {
        py_handle_leave(self);
        return NULL;
    }
    WITHOUT_GIL(r = caid_timeline_signal(timeline(op)->timeline, stream, value, &error));
    return py_handle_leave_with(self, r, &error);
}

struct wait {
    struct timeline_object *self;
    uint64_t stream, value;
    uint32_t flags;
};

static int
wait_on(void *arg, uint64_t timeout_ns, struct caid_error *error)
{
    struct wait *wait = arg;
    int r;

    if (py_handle_is_cancelled(&wait->self->handle, error))
        return -ECANCELED;
    WITHOUT_GIL(r = caid_timeline_wait(wait->self->timeline, wait->stream, wait->value,
                                       timeout_ns, wait->flags, error));
    return r == -ETIMEDOUT ? 1 : r;
}

/* args: stream, value, timeout, ahead */
static int
wait_get(const struct module_state *state, PyObject *const *args, struct wait *wait,
         uint64_t *ret_timeout_ns)
{
    int ahead;

    if (py_u64_get(state, args[0], "stream", &wait->stream) < 0 ||
        py_u64_get(state, args[1], "value", &wait->value) < 0 ||
        py_timeout_get(args[2], ret_timeout_ns) < 0)
        return -1;
    ahead = PyObject_IsTrue(args[3]);
    wait->flags = ahead > 0 ? CAID_TIMELINE_AHEAD : 0;
    return ahead < 0 ? -1 : 0;
}

static PyObject *
timeline_wait(PyObject *op, PyObject *const *args, Py_ssize_t n_args)
{
    struct wait wait = {.self = timeline(op)};
    struct handle_object *self = py_handle(op);
    struct caid_error error = {0};
    uint64_t timeout_ns;
    int r;

    if (py_args_check("wait", n_args, 4) < 0 || !py_handle_enter(self))
        return NULL;
    if (wait_get(self->client->state, args, &wait, &timeout_ns) < 0) {
        py_handle_leave(self);
        return NULL;
    }
    r = py_wait(wait_on, &wait, timeout_ns, &error);
    if (!PyErr_Occurred())
        return py_handle_leave_with(self, r, &error);
    py_handle_leave(self);
    return NULL;
}

static PyObject *
timeline_value(PyObject *op, PyObject *Py_UNUSED(unused))
{
    struct handle_object *self = py_handle(op);
    struct caid_error error = {0};
    uint64_t value = 0;
    int r;

    if (!py_handle_enter(self))
        return NULL;
    WITHOUT_GIL(r = caid_timeline_value(timeline(op)->timeline, &value, &error));
    py_handle_leave(self);
    if (r < 0)
        return py_error_raise(self->client->state, r, &error);
    return PyLong_FromUnsignedLongLong(value);
}

/* ---- the type ---- */

static PyMethodDef timeline_methods[] = {
    {"signal", PY_FASTCALL(timeline_signal), METH_FASTCALL,
     PyDoc_STR("signal(stream, value, /)\n--\n\n"
               "value is reached when the stream, 0 for the host, has come to here.")},
    {"wait", PY_FASTCALL(timeline_wait), METH_FASTCALL,
     PyDoc_STR("wait(stream, value, timeout, ahead, /)\n--\n\n"
               "The stream, 0 for the host, goes on when value has been reached.")},
    {"value", timeline_value, METH_NOARGS, PyDoc_STR("value()\n--\n\nWhat has been reached.")},
    PY_HANDLE_CLOSE,
    {0},
};

static PyGetSetDef timeline_getset[] = {
    PY_HANDLE_CLOSED,
    {0},
};

PyDoc_STRVAR(timeline_doc, "A number that only grows, in memory that processes share.");

static PyType_Slot timeline_slots[] = {
    {Py_tp_doc, (void *)(uintptr_t)timeline_doc},
    {Py_tp_new, py_handle_tp_new},
    {Py_tp_traverse, py_handle_traverse},
    {Py_tp_clear, py_handle_clear},
    {Py_tp_dealloc, py_handle_dealloc},
    {Py_tp_methods, timeline_methods},
    {Py_tp_getset, timeline_getset},
    {0, NULL},
};

PyType_Spec py_timeline_spec = {
    .name = "caid._caid.Timeline",
    .basicsize = sizeof(struct timeline_object),
    .flags = Py_TPFLAGS_DEFAULT | Py_TPFLAGS_HAVE_GC,
    .slots = timeline_slots,
};
