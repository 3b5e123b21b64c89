/* SPDX-License-Identifier: Apache-2.0 */
/*
 * Waits that end when another thread closes the handle that is waited for. They are cut into
 * slices, and the handle is looked at between two slices. Ctrl-C ends a slice at once (signal.c).
 */
#include "handle.h"

#include <errno.h>
#include <time.h>

#define SLICE_NS 50000000ULL
#define NS_PER_S 1000000000ULL

static uint64_t
now_ns(void)
{
    struct timespec t;

    clock_gettime(CLOCK_MONOTONIC, &t);
    return (uint64_t)t.tv_sec * NS_PER_S + (uint64_t)t.tv_nsec;
}

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

static int
cancelled(const struct handle_object *self, struct caid_error *error)
{
    error->code = CAID_ERR_CANCELLED;
    snprintf(error->message, sizeof(error->message), "the %s was closed", self->class->name);
    return -ECANCELED;
}

int
py_wait(const struct handle_object *self, wait_slice *slice, void *arg, uint64_t timeout_ns,
        struct caid_error *error)
{
    uint64_t deadline = timeout_ns == CAID_FOREVER ? CAID_FOREVER : now_ns() + timeout_ns;

    for (;;) {
        uint64_t now = now_ns();
        uint64_t left = deadline == CAID_FOREVER ? CAID_FOREVER
                        : deadline > now         ? deadline - now
                                                 : 0;
        int r = self->closing || py_client_is_closed(self->client)
                    ? cancelled(self, error)
                    : slice(arg, left < SLICE_NS ? left : SLICE_NS, error);

        if (r != 1)
            return r;
        if (PyErr_CheckSignals() < 0)
            return -EINTR;
        if (left < SLICE_NS)
            return -ETIMEDOUT;
    }
}
