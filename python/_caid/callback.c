/* SPDX-License-Identifier: Apache-2.0 */
/*
 * Callbacks of streams: Python functions that a thread of the driver calls.
 *
 * Stream.add_callback() makes a callback. The driver calls it once, also when the stream has
 * failed. Until then it holds the function and its argument. The driver's thread may not call CUDA,
 * so it does not drop them: the next call on any stream does. Where the interpreter has ended
 * before the call, the callback is freed and its objects are not.
 *
 * A thread that takes the GIL of an interpreter that ends is itself ended, which must not happen to
 * the driver's threads. So the gate keeps them out as soon as atexit's functions run, and those
 * that are inside are waited for.
 */
#include "handle.h"

#include <stdatomic.h>
#include <stdlib.h>
#include <time.h>
#include <unistd.h>

/* ---- the gate ---- */

#define CLOSED (1U << 31) /* a flag in the count of threads inside */

struct gate {
    atomic_uint refs; /* of the module, and of each callback that was not called yet */
    atomic_uint inside;
    pid_t pid; /* of the process whose threads are counted: a forked child has none of these */
};

struct gate *
py_gate_new(void)
{
    struct gate *gate = calloc(1, sizeof(*gate));

    if (!gate) {
        PyErr_NoMemory();
        return NULL;
    }
    atomic_init(&gate->refs, 1);
    gate->pid = getpid();
    return gate;
}

struct gate *
py_gate_ref(struct gate *gate)
{
    atomic_fetch_add(&gate->refs, 1);
    return gate;
}

void
py_gate_unref(struct gate *gate)
{
    if (gate && atomic_fetch_sub(&gate->refs, 1) == 1)
        free(gate);
}

/* Resets the gate at a forked child's first callback: the child has a copy of its parent's. */
static void
gate_adopt(struct gate *gate)
{
    if (gate->pid == getpid())
        return;
    atomic_fetch_and(&gate->inside, CLOSED);
    gate->pid = getpid();
}

static bool
gate_enter(struct gate *gate)
{
    if (!(atomic_fetch_add(&gate->inside, 1) & CLOSED))
        return true;
    atomic_fetch_sub(&gate->inside, 1);
    return false;
}

static void
gate_leave(struct gate *gate)
{
    atomic_fetch_sub(&gate->inside, 1);
}

PyObject *
py_gate_close(struct gate *gate)
{
    const struct timespec pause = {.tv_nsec = 1000000};

    atomic_fetch_or(&gate->inside, CLOSED);
    while (gate->pid == getpid() && (atomic_load(&gate->inside) & ~CLOSED)) {
        WITHOUT_GIL(nanosleep(&pause, NULL));
        if (PyErr_CheckSignals() < 0)
            return NULL;
    }
    Py_RETURN_NONE;
}

/* Not PyGILState_Ensure(), which knows the main interpreter alone. */
void
py_gate_run(struct gate *gate, PyInterpreterState *interpreter, void (*fn)(void *arg),
            void *arg)
{
    PyThreadState *thread;

    if (!gate_enter(gate))
        return;
    thread = PyThreadState_New(interpreter);
    if (thread) {
        PyEval_RestoreThread(thread);
        fn(arg);
        PyThreadState_Clear(thread);
        PyThreadState_DeleteCurrent();
    }
    gate_leave(gate);
}

/* ---- a callback ---- */

struct callback {
    struct gate *gate;
    PyInterpreterState *interpreter;
    PyObject *spent; /* borrowed from the module, which the stream's type has */
    PyObject *fn, *stream, *arg;
    int32_t status;
};

/* Objects whose last reference this is would end on the driver's thread: the stream, or what the
 * program gave. */
static void
drop_later(PyObject *spent, PyObject *op)
{
    if (Py_REFCNT(op) == 1 && PyList_Append(spent, op) < 0) {
        PyErr_WriteUnraisable(NULL);
        return; /* not freed, and neither is what it holds */
    }
    Py_DECREF(op);
}

static void
callback_drop(struct callback *self)
{
    drop_later(self->spent, self->arg);
    drop_later(self->spent, self->fn);
    drop_later(self->spent, self->stream);
}

void
py_callbacks_drop(struct module_state *state)
{
    if (PyList_SetSlice(state->spent, 0, PY_SSIZE_T_MAX, NULL) < 0)
        PyErr_WriteUnraisable(NULL);
}

static void
callback_free(struct callback *self)
{
    py_gate_unref(self->gate);
    free(self);
}

static void
callback_call(void *arg)
{
    struct callback *self = arg;
    PyObject *result =
        PyObject_CallFunction(self->fn, "OiO", self->stream, (int)self->status, self->arg);

    if (!result)
        PyErr_WriteUnraisable(self->fn);
    Py_XDECREF(result);
    callback_drop(self);
}

static void
callback_run(int32_t status, void *userdata)
{
    struct callback *self = userdata;

    self->status = status;
    py_gate_run(self->gate, self->interpreter, callback_call, self);
    callback_free(self);
}

static struct callback *
callback_new(struct module_state *state, PyObject *fn, PyObject *stream, PyObject *arg)
{
    struct callback *self = malloc(sizeof(*self));

    if (!self) {
        PyErr_NoMemory();
        return NULL;
    }
    *self = (struct callback){
        .gate = py_gate_ref(state->gate),
        .interpreter = PyInterpreterState_Get(),
        .spent = state->spent,
        .fn = fn,
        .stream = stream,
        .arg = arg,
    };
    Py_INCREF(fn);
    Py_INCREF(stream);
    Py_INCREF(arg);
    return self;
}

PyObject *
py_callback_add(struct stream_object *self, PyObject *fn, PyObject *arg)
{
    struct caid_client *c = py_handle_enter(&self->handle);
    struct module_state *state = c ? self->handle.client->state : NULL;
    struct callback *callback = c ? callback_new(state, fn, (PyObject *)self, arg) : NULL;
    struct caid_error error = {0};
    int r;

    if (!callback) {
        if (c)
            py_handle_leave(&self->handle);
        return NULL;
    }
    gate_adopt(state->gate);
    WITHOUT_GIL(r = cuda_stream_add_callback(c, self->stream, self->device, callback_run,
                                             callback, &error));
    if (r < 0) {
        callback_drop(callback);
        callback_free(callback);
    }
    py_callbacks_drop(state);
    return py_none(py_handle_leave_with(&self->handle, r, &error));
}
