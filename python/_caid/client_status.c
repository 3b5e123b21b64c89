/* SPDX-License-Identifier: Apache-2.0 */
/*
 * Client: the daemon, its devices and their memory. Results are plain tuples.
 */
#include "module.h"

#include "session/answer.h"

/* ---- memory ---- */

PyObject *
py_client_memory_info(PyObject *op, PyObject *device)
{
    struct client_object *self = py_client(op);
    struct caid_memory_info info = CAID_INIT(struct caid_memory_info);
    int32_t index;

    if (py_device_get(self->state, device, &index) < 0 ||
        PY_CLIENT_CALL(self, caid_memory_info(c, index, &info, &error)) < 0)
        return NULL;
    return py_answer(&answer_memory_info, &info);
}

PyObject *
py_client_flush(PyObject *op, PyObject *device)
{
    struct client_object *self = py_client(op);
    struct caid_flushed flushed = CAID_INIT(struct caid_flushed);
    int32_t index;

    if (py_device_get(self->state, device, &index) < 0 ||
        PY_CLIENT_CALL(self, caid_flush(c, index, &flushed, &error)) < 0)
        return NULL;
    return py_answer(&answer_flushed, &flushed);
}

PyObject *
py_client_withdraw(PyObject *op, PyObject *const *args, Py_ssize_t n_args)
{
    struct client_object *self = py_client(op);
    struct caid_withdraw_options options = CAID_INIT(options);
    uint64_t n;

    if (PY_ARGS(self->state, "withdraw", PY_ARG(options.pid), PY_ARG(options.gone)) < 0 ||
        PY_CLIENT_CALL(self, caid_withdraw(c, &options, &n, &error)) < 0)
        return NULL;
    return PyLong_FromUnsignedLongLong(n);
}

PyObject *
py_client_kick(PyObject *op, PyObject *number)
{
    unsigned long long conn = PyLong_AsUnsignedLongLong(number);

    if (conn == (unsigned long long)-1 && PyErr_Occurred())
        return NULL;
    return py_none(PY_CLIENT_CALL(py_client(op), caid_kick(c, conn, &error)));
}

PyObject *
py_client_defer_begin(PyObject *op, PyObject *Py_UNUSED(unused))
{
    return py_none(PY_CLIENT_CALL(py_client(op), caid_defer_begin(c, &error)));
}

PyObject *
py_client_defer_end(PyObject *op, PyObject *Py_UNUSED(unused))
{
    return py_none(PY_CLIENT_CALL(py_client(op), caid_defer_end(c, &error)));
}

/* ---- the daemon ---- */

PyObject *
py_client_status(PyObject *op, PyObject *Py_UNUSED(unused))
{
    struct caid_status status = CAID_INIT(struct caid_status);

    if (PY_CLIENT_CALL(py_client(op), caid_client_status(c, &status, &error)) < 0)
        return NULL;
    return py_answer(&answer_status, &status);
}

PyObject *
py_client_daemon(PyObject *op, PyObject *Py_UNUSED(unused))
{
    struct client_object *self = py_client(op);
    struct caid_client *c = py_client_enter(self);
    const struct caid_daemon *daemon;
    PyObject *tuple;

    if (!c)
        return NULL;
    daemon = caid_client_daemon(c);
    tuple = Py_BuildValue("(ssss)", daemon->driver, daemon->socket, daemon->machine_id,
                          daemon->daemon_id);
    py_client_leave(self);
    return tuple;
}

PyObject *
py_client_devices(PyObject *op, PyObject *Py_UNUSED(unused))
{
    struct client_object *self = py_client(op);
    const struct caid_device *const *devices;
    struct caid_client *c = py_client_enter(self);
    _cleanup_py_ PyObject *list = c ? PyList_New(0) : NULL;
    int n;

    if (!c)
        return NULL;
    n = list ? caid_client_devices(c, &devices) : 0;
    for (int i = 0; i < n; i++) {
        _cleanup_py_ PyObject *device = py_answer(&answer_device, devices[i]);
        if (!device || PyList_Append(list, device) < 0) {
            Py_CLEAR(list);
            break;
        }
    }
    py_client_leave(self);
    return py_take(&list);
}

PyObject *
py_client_find_device(PyObject *op, PyObject *which)
{
    struct client_object *self = py_client(op);
    int32_t ordinal, index = -1;

    if (PyUnicode_Check(which)) {
        const char *text = PyUnicode_AsUTF8(which);
        if (!text ||
            PY_CLIENT_CALL(self, caid_client_parse_device(c, text, &index, &error)) < 0)
            return NULL;
        return PyLong_FromLong(index);
    }
    if (py_device_get(self->state, which, &ordinal) < 0 ||
        PY_CLIENT_CALL(self, caid_client_find_device(c, ordinal, &index, &error)) < 0)
        return NULL;
    return PyLong_FromLong(index);
}
