/* SPDX-License-Identifier: Apache-2.0 */
/*
 * Handle: the common part of Stream, Event, Timeline, Bracket, Watch, Arena and Channel. Each of
 * them has a resource of libcaid's or of the driver's, which belongs to a client. A handle holds
 * its Client alive. Its resource ends by close(), with the object, or with the Client, whichever
 * comes first. A Client that is closed ends its handles before its leases and its connection, the
 * newest first, streams last. Objects of all these types but Bracket are made as instances of the
 * Python classes that derive from them (_caid.derived()). Methods with an underscore are for these
 * classes.
 *
 * close() may come while other threads are in a call: from then on new calls raise ClosedError, and
 * the last call under way ends the resource.
 */
#pragma once

#include "module.h"

#include <caid/handoff.h>

struct handle_object;

struct handle_class {
    const char *name; /* for messages: "stream" */
    bool is_stream;
    /* Ends the resource. Called once, with the GIL, which the function may give up. */
    void (*end)(struct handle_object *self, struct caid_client *client);
};

struct handle_object {
    PyObject_HEAD
    const struct handle_class *class;
    struct client_object *client; /* NULL only after tp_clear */
    LIST_ENTRY(handle_object)
    link;               /* in client->handles; le_prev NULL: no resource */
    Py_ssize_t n_calls; /* under way, and brackets that are on a stream */
    bool closing;       /* closed; the last of these calls ends the resource */
};

static inline struct handle_object *
py_handle(PyObject *op)
{
    return (struct handle_object *)op;
}

static inline const struct module_state *
py_handle_state(PyObject *op)
{
    return py_module_state_of(Py_TYPE(op));
}

/* Makes an object of a type whose struct begins with a handle_object. It has no resource yet. */
PyObject *py_handle_new(PyTypeObject *type, struct client_object *client,
                        const struct handle_class *class);
/* The object has its resource from now on. The caller has entered the client. */
void py_handle_begin(struct handle_object *self);

/* Enters the handle and its client: neither ends before the call is left. For calls without the
 * GIL. NULL with ClosedError set where the handle or its client is closed, and with ForkedError
 * in a forked child. */
struct caid_client *py_handle_enter(struct handle_object *self);
void py_handle_leave(struct handle_object *self);
/* Leaves, and returns what the call returned, r; or -1 with the exception set, where r < 0. */
int py_handle_leave_with(struct handle_object *self, int r, const struct caid_error *error);

/* As PY_CLIENT_CALL(), for a call on a handle. */
#define PY_HANDLE_CALL(self, call) \
    PY_CALL(py_handle_enter(self), py_handle_leave_with(self, r_, &error), call)

/* Makes an object, `made`, of a type that has a NAME_class, and its resource by a call of
 * libcaid, as PY_CLIENT_CALL(). NULL with an exception set. */
#define PY_HANDLE_MAKE(client, name, call)                                      \
    ({                                                                          \
        _cleanup_py_ PyObject *made =                                           \
            py_handle_new((client)->state->name##_type, client, &name##_class); \
        struct caid_client *c = made ? py_client_enter(client) : NULL;          \
        struct caid_error error = {0};                                          \
        int r_ = -1;                                                            \
        if (c) {                                                                \
            WITHOUT_GIL(r_ = (call));                                           \
            if (r_ >= 0)                                                        \
                py_handle_begin(py_handle(made));                               \
            r_ = py_client_leave_with(client, r_, &error);                      \
        }                                                                       \
        r_ < 0 ? NULL : py_take(&made);                                         \
    })

/* Holds the handle for longer than a call: until the release only the client's end ends the
 * resource. A hold is a reference, too. -1 with ClosedError set. */
int py_handle_hold(struct handle_object *self);
void py_handle_release(struct handle_object *self);

/* Ends all handles of a client that is closed. */
void py_handles_end(struct client_object *client, struct caid_client *ended);

/* For the slots of the types. */
int py_handle_traverse(PyObject *op, visitproc visit, void *arg);
int py_handle_clear(PyObject *op);
PyObject *py_handle_close(PyObject *op, PyObject *unused);
PyObject *py_handle_get_closed(PyObject *op, void *closure);
PyObject *py_handle_get_live(PyObject *op, void *closure);

#define PY_HANDLE_CLOSE(doc)                                                    \
    {                                                                           \
        "close", py_handle_close, METH_NOARGS, PyDoc_STR("close()\n--\n\n" doc) \
    }
#define PY_HANDLE_CLOSED                                                      \
    {"closed", py_handle_get_closed, NULL,                                    \
     PyDoc_STR("bool: whether it, or its client, is closed."), NULL},         \
    {                                                                         \
        "_live", py_handle_get_live, NULL,                                    \
            PyDoc_STR("Whether it is open, and not in a forked child."), NULL \
    }

/* For a type that has no attributes but `closed`. */
extern PyGetSetDef py_handle_getset[];

#define PY_HANDLE_FLAGS (Py_TPFLAGS_HAVE_GC | Py_TPFLAGS_BASETYPE)
#define PY_HANDLE_LIFE                                            \
    {Py_tp_new, py_tp_new}, {Py_tp_traverse, py_handle_traverse}, \
        {Py_tp_clear, py_handle_clear},                           \
    {                                                             \
        Py_tp_dealloc, py_tp_dealloc                              \
    }

/* ---- waiting (wait.c) ---- */

/* Seconds, or None for CAID_FOREVER. -1 with an exception set. */
int py_timeout_get(PyObject *op, uint64_t *ret_ns);

/* A call of libcaid in which this thread waits for a handle, or a client, which it has entered. */
struct waiting {
    const struct client_object *client;
    const struct handle_object *handle; /* or NULL */
    bool is_cancelled; /* one of them was closed meanwhile, which has ended the call */
};

void py_wait_begin(struct waiting *waiting, const struct client_object *client,
                   const struct handle_object *handle);
/* Returns r, or -ECANCELED with the error filled. */
int py_wait_end(const struct waiting *waiting, int r, struct caid_error *error);

/* Makes such a call without the GIL; the call uses the error, error. */
#define PY_WAIT_IN(client, handle, call)             \
    ({                                               \
        struct waiting waiting;                      \
        int r_;                                      \
        py_wait_begin(&waiting, (client), (handle)); \
        WITHOUT_GIL(r_ = (call));                    \
        py_wait_end(&waiting, r_, &error);           \
    })
#define PY_WAIT(self, call) PY_WAIT_IN((self)->client, (self), call)

/* ---- what has handles ---- */

/* A Stream: a CUDA stream of the client's, or one of another library, which is not destroyed. */
struct stream_object {
    struct handle_object handle;
    uint64_t stream;
    int32_t device;
};

/* ---- callbacks of streams (callback.c) ---- */

/* Gate: whether threads of the driver may still enter the interpreter. It outlives the
 * interpreter: the last callback that is still to come frees it. */
struct gate;

struct gate *py_gate_new(void);
struct gate *py_gate_ref(struct gate *gate);
void py_gate_unref(struct gate *gate);
/* Calls fn with the GIL of that interpreter, on a thread that is not Python's. Does nothing
 * where the interpreter ends. */
void py_gate_run(struct gate *gate, PyInterpreterState *interpreter, void (*fn)(void *arg),
                 void *arg);
/* Closes the gate, and waits for the threads that are inside. NULL with an exception set where a
 * signal handler raised one. */
PyObject *py_gate_close(struct gate *gate);

/* Drops the functions and arguments of callbacks that have been called. To be called where the
 * CUDA driver may be called, since these objects may call it when they end. */
void py_callbacks_drop(struct module_state *state);
/* Has the driver call fn(self, status, arg) when the Stream reaches this point. */
PyObject *py_callback_add(struct stream_object *self, PyObject *fn, PyObject *arg);
