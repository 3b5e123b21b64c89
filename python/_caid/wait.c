/* SPDX-License-Identifier: Apache-2.0 */
/*
 * Waits that end when another thread closes the handle, or the client, that is waited for. Each is
 * one call of libcaid, so that nobody else has its turn or its place meanwhile. Whether it was
 * closed is looked at when libcaid asks whether a signal is to end the call (signal.c).
 */
#include "handle.h"

#include <errno.h>

#define NS_PER_S 1000000000ULL

_Thread_local struct waiting *py_waits_for;

int
py_timeout_get(PyObject *op, uint64_t *ret_ns)
{
    double seconds;

    *ret_ns = CAID_FOREVER;
    if (op == Py_None)
        return 0;
    seconds = PyFloat_AsDouble(op);
    if (seconds == -1.0 && PyErr_Occurred()) {
        if (PyErr_ExceptionMatches(PyExc_TypeError))
            PyErr_Format(PyExc_TypeError, "timeout: seconds or None are needed, not %.100s",
                         Py_TYPE(op)->tp_name);
        return -1;
    }
    if (!(seconds >= 0)) {
        PyErr_Format(PyExc_ValueError, "timeout %R: seconds, 0 or more, or None", op);
        return -1;
    }
    if (seconds < 1e9) /* 30 years; a longer timeout is none */
        *ret_ns = (uint64_t)(seconds * (double)NS_PER_S);
    return 0;
}

bool
py_wait_is_cancelled(void)
{
    struct waiting *waiting = py_waits_for;

    if (waiting)
        waiting->is_cancelled = (waiting->handle && waiting->handle->closing) ||
                                py_client_is_closed(waiting->client);
    return waiting && waiting->is_cancelled;
}

void
py_wait_begin(struct waiting *waiting, const struct client_object *client,
              const struct handle_object *handle)
{
    *waiting = (struct waiting){.client = client, .handle = handle};
    py_waits_for = waiting;
}

int
py_wait_end(const struct waiting *waiting, int r, struct caid_error *error)
{
    py_waits_for = NULL;
    if (r >= 0 || error->code != CAID_ERR_INTERRUPTED || !waiting->is_cancelled)
        return r;
    error->code = CAID_ERR_CANCELLED;
    snprintf(error->message, sizeof(error->message), "the %s was closed",
             waiting->handle ? waiting->handle->class->name : "client");
    return -ECANCELED;
}
