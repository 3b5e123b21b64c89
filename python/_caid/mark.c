/* SPDX-License-Identifier: Apache-2.0 */
/*
 * Mark: an event on a stream, behind work that caid has enqueued there, with the host memory that
 * the work uses, which it keeps until the event has passed. A mark is made before the work. The
 * call that starts the work puts it into lists, where others see it, and records it; no signal
 * handler and no other thread comes between.
 *
 * A mark drops the memory and the stream's owner when the event is seen to have passed. Where that
 * cannot be seen (the mark ends earlier, with its client; the stream captures a graph; the context
 * is dead), it never drops the memory.
 */
#include "handle.h"

#include <stddef.h>
#include <structmember.h>

struct mark_object {
    struct handle_object handle;
    struct cuda_event *event;
    uint64_t stream;
    PyObject *owner; /* of the stream; None where nobody is known; NULL once passed */
    PyObject *keep;  /* the host memory; None: there is none; NULL: dropped, or kept for good */
    bool under_way;  /* the call that starts the work has not returned */
    bool pending;    /* recorded, and not seen to have passed */
};

PY_CAST(mark);

/* ---- life ---- */

static void
mark_end(struct handle_object *handle, struct caid_client *Py_UNUSED(client))
{
    struct mark_object *self = (struct mark_object *)handle;
    struct caid_error error = {0};
    int r = 1; /* passed, unless the query says otherwise */

    WITHOUT_GIL(if (self->pending) r = cuda_event_query(self->event, &error);
                cuda_event_free(self->event));
    self->event = NULL;
    if (r != 1)
        self->keep = NULL;
    self->pending = false;
}

static const struct handle_class mark_class = {.name = "mark", .end = mark_end};

PyObject *
py_client_mark(PyObject *op, PyObject *const *args, Py_ssize_t n_args)
{
    struct client_object *self = py_client(op);
    PyObject *op_made, *owner, *keep;
    uint64_t stream;
    int32_t device;

    if (PY_ARGS(self->state, "mark", PY_ARG(device), PY_ARG(stream), PY_ARG(owner),
                PY_ARG(keep)) < 0)
        return NULL;
    op_made = PY_HANDLE_MAKE(self, mark,
                             cuda_event_new(c, &mark(made)->event, device, CUDA_EVENT_OF_STREAM,
                                            &error));
    if (!op_made)
        return NULL;
    mark(op_made)->stream = stream;
    Py_INCREF(owner);
    mark(op_made)->owner = owner;
    Py_INCREF(keep);
    mark(op_made)->keep = keep;
    return op_made;
}

/* ---- recording ---- */

bool
py_mark_is_of(PyObject *op, const struct client_object *client)
{
    return Py_IS_TYPE(op, client->state->mark_type) && py_handle(op)->client == client;
}

uint64_t
py_mark_stream(PyObject *op)
{
    return mark(op)->stream;
}

int
py_mark_begin(PyObject *op, PyObject *lists)
{
    mark(op)->under_way = true;
    for (Py_ssize_t i = 0; i < PyTuple_GET_SIZE(lists); i++)
        if (PyList_Append(PyTuple_GET_ITEM(lists, i), op) < 0) {
            mark(op)->under_way = false;
            return -1;
        }
    return 0;
}

int
py_mark_record(PyObject *op, struct caid_error *error)
{
    return cuda_event_record(mark(op)->event, mark(op)->stream, error);
}

static void
mark_passed(struct mark_object *self)
{
    self->pending = false;
    Py_CLEAR(self->keep);
    Py_CLEAR(self->owner);
}

void
py_mark_end(PyObject *op, int r)
{
    mark(op)->under_way = false;
    mark(op)->pending = r == 0;
    if (r < 0)
        mark(op)->keep = NULL;
    else if (r > 0)
        mark_passed(mark(op));
}

/* Records the mark for work that is on the stream already. */
static PyObject *
mark_record(PyObject *op, PyObject *lists)
{
    struct caid_error error = {0};
    int r;

    if (!PyTuple_Check(lists)) {
        PyErr_SetString(PyExc_TypeError, "record() takes a tuple of lists");
        return NULL;
    }
    if (!py_handle_enter(py_handle(op)))
        return NULL;
    if (py_mark_begin(op, lists) < 0) {
        py_handle_leave(py_handle(op));
        return NULL;
    }
    WITHOUT_GIL(r = py_mark_record(op, &error));
    py_mark_end(op, r);
    return py_none(py_handle_leave_with(py_handle(op), r, &error));
}

/* ---- asking and waiting ---- */

/* Whether the event has passed. A mark whose event cannot be asked counts as done: nothing can
 * be waited for. */
static PyObject *
mark_get_done(PyObject *op, void *Py_UNUSED(closure))
{
    struct mark_object *self = mark(op);
    struct caid_error error = {0};
    int r;

    if (self->under_way)
        Py_RETURN_FALSE;
    if (!self->pending)
        Py_RETURN_TRUE;
    if (!py_handle_enter(&self->handle)) {
        PyErr_Clear();
        Py_RETURN_TRUE;
    }
    WITHOUT_GIL(r = cuda_event_query(self->event, &error));
    if (r < 0)
        self->keep = NULL;
    if (r != 0)
        mark_passed(self);
    py_handle_leave(&self->handle);
    return PyBool_FromLong(r != 0);
}

static PyObject *
mark_wait(PyObject *op, PyObject *stream_op)
{
    uint64_t stream;

    if (py_u64_get(py_handle_state(op), stream_op, "stream", &stream) < 0)
        return NULL;
    return py_none(
        PY_HANDLE_CALL(py_handle(op), cuda_event_wait(mark(op)->event, stream, &error)));
}

static PyObject *
mark_synchronize(PyObject *op, PyObject *Py_UNUSED(unused))
{
    struct mark_object *self = mark(op);
    struct caid_error error = {0};
    int r;

    if (!py_handle_enter(&self->handle))
        return NULL;
    WITHOUT_GIL(r = cuda_event_synchronize(self->event, &error));
    if (r == 0 && !self->under_way)
        mark_passed(self);
    return py_none(py_handle_leave_with(&self->handle, r, &error));
}

/* ---- the type ---- */

static int
mark_traverse(PyObject *op, visitproc visit, void *arg)
{
    Py_VISIT(mark(op)->owner);
    Py_VISIT(mark(op)->keep);
    return py_handle_traverse(op, visit, arg);
}

static int
mark_clear(PyObject *op)
{
    py_handle_clear(op); /* first: after that nothing tells whether the event has passed */
    Py_CLEAR(mark(op)->keep);
    Py_CLEAR(mark(op)->owner);
    return 0;
}

static PyMethodDef mark_methods[] = {
    {"record", mark_record, METH_O,
     PyDoc_STR("Puts it into the lists; it passes when the stream has come to here.")},
    {"wait", mark_wait, METH_O, PyDoc_STR("What comes on that stream comes after it.")},
    {"synchronize", mark_synchronize, METH_NOARGS, PyDoc_STR("Waits for it on the host.")},
    {0},
};

static PyGetSetDef mark_getset[] = {
    {"done", mark_get_done, NULL, PyDoc_STR("Whether it has passed."), NULL},
    {0},
};

#define AT(field) offsetof(struct mark_object, field)

static PyMemberDef mark_members[] = {
    {"client", T_OBJECT_EX, AT(handle.client), READONLY, NULL},
    {"number", T_ULONGLONG, AT(stream), READONLY, NULL},
    {"stream", T_OBJECT, AT(owner), READONLY, NULL},
    {"keep", T_OBJECT, AT(keep), READONLY, NULL},
    {0},
};

PY_SPEC(mark, "caid._caid.Mark", Py_TPFLAGS_HAVE_GC, "How far a stream had come.",
        {Py_tp_new, py_tp_new}, {Py_tp_traverse, mark_traverse}, {Py_tp_clear, mark_clear},
        {Py_tp_dealloc, py_tp_dealloc}, {Py_tp_methods, mark_methods},
        {Py_tp_getset, mark_getset}, {Py_tp_members, mark_members});
