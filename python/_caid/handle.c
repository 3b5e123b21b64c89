/* SPDX-License-Identifier: Apache-2.0 */
/* The life of what has a handle: Stream, Event, Timeline, Bracket, Watch and Arena. */
#include "handle.h"

#include <errno.h>

/* ---- its end ---- */

/* The client is still there: it ends its handles before itself. */
static void
handle_end(struct handle_object *self)
{
    struct client_object *client = self->client;

    self->closing = true;
    if (!self->link.le_prev)
        return;
    LIST_REMOVE(self, link);
    self->link.le_prev = NULL;
    client->n_calls++;
    self->class->end(self, client->client);
    py_client_leave(client);
}

/* Empties the list first, with the GIL: an object that is freed meanwhile would end its resource
 * by a client that is being freed. Streams end after all that may be on them. */
void
py_handles_end(struct client_object *client, struct caid_client *ended)
{
    struct handle_object *next, *first = LIST_FIRST(&client->handles);

    LIST_INIT(&client->handles);
    for (struct handle_object *h = first; h; h = LIST_NEXT(h, link)) {
        Py_INCREF(h);
        h->link.le_prev = NULL;
        h->closing = true;
    }
    for (struct handle_object *h = first; h; h = LIST_NEXT(h, link))
        if (!h->class->is_stream)
            h->class->end(h, ended);
    for (struct handle_object *h = first; h; h = next) {
        next = LIST_NEXT(h, link);
        if (h->class->is_stream)
            h->class->end(h, ended);
        Py_DECREF(h);
    }
}

/* ---- making one ---- */

PyObject *
py_handle_new(PyTypeObject *type, struct client_object *client,
              const struct handle_class *class)
{
    PyObject *op = type->tp_alloc(type, 0);

    if (!op)
        return NULL;
    Py_INCREF(client);
    py_handle(op)->client = client;
    py_handle(op)->class = class;
    return op;
}

void
py_handle_begin(struct handle_object *self)
{
    LIST_INSERT_HEAD(&self->client->handles, self, link);
}

/* ---- calls ---- */

static int
handle_check(const struct handle_object *self)
{
    if (!self->client) {
        PyErr_Format(PyExc_ReferenceError, "the %s was collected", self->class->name);
        return -1;
    }
    if (!self->closing)
        return 0;
    py_error_raise_code(self->client->state, CAID_ERR_CLOSED, EBADF, "the %s is closed",
                        self->class->name);
    return -1;
}

struct caid_client *
py_handle_enter(struct handle_object *self)
{
    struct caid_client *c;

    if (handle_check(self) < 0)
        return NULL;
    c = py_client_enter(self->client);
    if (c)
        self->n_calls++;
    return c;
}

static void
handle_leave(struct handle_object *self)
{
    if (--self->n_calls == 0 && self->closing)
        handle_end(self);
}

void
py_handle_leave(struct handle_object *self)
{
    handle_leave(self);
    py_client_leave(self->client);
}

int
py_handle_leave_with(struct handle_object *self, int r, const struct caid_error *error)
{
    py_handle_leave(self);
    if (r >= 0)
        return r;
    py_error_raise(self->client->state, r, error);
    return -1;
}

int
py_handle_hold(struct handle_object *self)
{
    if (handle_check(self) < 0)
        return -1;
    Py_INCREF(self);
    self->n_calls++;
    return 0;
}

void
py_handle_release(struct handle_object *self)
{
    handle_leave(self);
    Py_DECREF(self);
}

/* ---- slots ---- */

int
py_handle_traverse(PyObject *op, visitproc visit, void *arg)
{
    Py_VISIT(Py_TYPE(op));
    Py_VISIT(py_handle(op)->client);
    return 0;
}

int
py_handle_clear(PyObject *op)
{
    if (py_handle(op)->client)
        handle_end(py_handle(op));
    Py_CLEAR(py_handle(op)->client);
    return 0;
}

PyObject *
py_handle_close(PyObject *op, PyObject *Py_UNUSED(unused))
{
    struct handle_object *self = py_handle(op);

    self->closing = true;
    if (self->n_calls == 0 && self->client)
        handle_end(self);
    Py_RETURN_NONE;
}

/* A handle that never had a resource is closed, too. */
static bool
is_closed(const struct handle_object *self)
{
    return !self->link.le_prev || self->closing || !self->client ||
           py_client_is_closed(self->client);
}

PyObject *
py_handle_get_closed(PyObject *op, void *Py_UNUSED(closure))
{
    return PyBool_FromLong(is_closed(py_handle(op)));
}

PyObject *
py_handle_get_live(PyObject *op, void *Py_UNUSED(closure))
{
    return PyBool_FromLong(!is_closed(py_handle(op)) &&
                           py_client_is_live(py_handle(op)->client));
}

PyGetSetDef py_handle_getset[] = {
    PY_HANDLE_CLOSED,
    {0},
};
