/* SPDX-License-Identifier: Apache-2.0 */
/*
 * The extension _caid: libcaid for Python, thin. Types and their relations:
 *
 *   Client     one struct caid_client; ends with close() or with the object
 *   Lease      one struct caid_array; holds its Client alive; ends with its last share
 *   HostView   host memory of a Lease as a buffer; has a share of the Lease
 *
 * What these files share is named py_: libcaid is linked in whole, with names of its own.
 *
 * All module state is in struct module_state, every type is a heap type, and every call that
 * talks to the daemon or the driver, or that takes a lock of libcaid, is made without the GIL:
 * a thread that waits for such a lock with the GIL held could wait for a thread that needs it.
 */
#pragma once

#define PY_SSIZE_T_CLEAN
#include <Python.h>
#include <stdbool.h>
#include <stdint.h>

#include <caid/caid.h>

/* One per module object, and so per interpreter. The types own the module, objects own their
 * type: an object may keep a plain pointer to it. */
struct module_state {
    PyTypeObject *client_type;
    PyTypeObject *lease_type;
    PyTypeObject *host_view_type;
    PyObject *make_error; /* caid._errors.make_error */
};

/* The state behind a type of this module, or behind a Python class derived from one. */
struct module_state *py_module_state_of(PyTypeObject *type);

static inline void
py_decrefp(PyObject **op)
{
    Py_XDECREF(*op);
}

#define _cleanup_py_ __attribute__((cleanup(py_decrefp)))

static inline PyObject *
py_take(PyObject **op)
{
    PyObject *taken = *op;
    *op = NULL;
    return taken;
}

/* ---- errors (error.c): each sets an exception and returns NULL ---- */

/* The exception for what libcaid returned. */
PyObject *py_error_raise(const struct module_state *state, int r,
                         const struct caid_error *error);
/* The exception for a code that is found out on this side. The format is that of
 * PyUnicode_FromFormat(). */
PyObject *py_error_raise_code(const struct module_state *state, enum caid_code code, int errnum,
                              const char *format, ...);

/* ---- conversions (convert.c): -1 with an exception set on failure ---- */

/* A str as UTF-8, borrowed from it; None is NULL. `what` is for the message. Text that holds a
 * NUL byte or lone surrogates raises the error of `code`. */
int py_text_get(const struct module_state *state, PyObject *op, const char *what,
                enum caid_code code, const char **ret);

/* A list of extents or byte steps: v is NULL for None. Zero it first; to be deinited. */
struct dims {
    int64_t *v;
    uint32_t n;
    int64_t few[8]; /* v, where they fit */
};

int py_dims_get(const struct module_state *state, PyObject *op, const char *what,
                struct dims *ret);
void py_dims_deinit(struct dims *dims);
#define _cleanup_dims_ __attribute__((cleanup(py_dims_deinit)))
PyObject *py_dims_tuple(const int64_t *v, uint32_t n);

/* A device's index; one that no int32_t holds raises DeviceError. */
int py_device_get(const struct module_state *state, PyObject *op, int32_t *ret);

/* str of a C string that need not be UTF-8; None of NULL. */
PyObject *py_text_or_none(const char *s);

/* Raises TypeError unless a call with positional arguments has n of them. */
int py_args_check(const char *function, Py_ssize_t n_args, Py_ssize_t n);

/* ---- Client (client.c) ---- */

struct client_object {
    PyObject_HEAD
    struct module_state *state;
    struct caid_client *client; /* NULL: closed, or never connected */
    Py_ssize_t n_calls;         /* under way, in threads that gave the GIL up */
    bool closing;               /* closed; the last call under way frees `client` */
};

extern PyType_Spec py_client_spec;

/* Brackets a call without the GIL. NULL with ClosedError set where the client is closed. */
struct caid_client *py_client_enter(struct client_object *self);
void py_client_leave(struct client_object *self);
bool py_client_is_closed(const struct client_object *self);

/* Methods of Client that other files define. */
PyObject *py_client_create(PyObject *op, PyObject *const *args, Py_ssize_t n_args);
PyObject *py_client_open(PyObject *op, PyObject *const *args, Py_ssize_t n_args);
PyObject *py_client_open_many(PyObject *op, PyObject *const *args, Py_ssize_t n_args);
PyObject *py_client_unlink(PyObject *op, PyObject *const *args, Py_ssize_t n_args);
PyObject *py_client_list(PyObject *op, PyObject *const *args, Py_ssize_t n_args);
PyObject *py_client_show(PyObject *op, PyObject *const *args, Py_ssize_t n_args);
PyObject *py_client_pools(PyObject *op, PyObject *unused);
PyObject *py_client_memory_info(PyObject *op, PyObject *device);
PyObject *py_client_status(PyObject *op, PyObject *unused);
PyObject *py_client_devices(PyObject *op, PyObject *unused);
PyObject *py_client_copy(PyObject *op, PyObject *args, PyObject *kwargs);
PyObject *py_client_pointer_resolve(PyObject *op, PyObject *ptr);
PyObject *py_client_stream_synchronize(PyObject *op, PyObject *const *args, Py_ssize_t n_args);

/* ---- Lease (lease.c) ---- */

struct lease_object {
    PyObject_HEAD
    struct client_object *client; /* NULL only after tp_clear */
    struct caid_array *array;     /* NULL: ended */
    Py_ssize_t n_shares;
    uint64_t span; /* bytes from the first element to the end of the last */

    /* what caid_array_get_info() says; outlives `array` */
    uint64_t ptr, nbytes, itemsize, generation, block, offset;
    int32_t device;
    bool readonly;
    PyObject *shape, *strides, *typestr, *descr, *name, *pool;
};

extern PyType_Spec py_lease_spec;

/* A Lease with one share. Takes `array` in any case. */
PyObject *py_lease_new(struct client_object *client, struct caid_array *array);
/* Gives a share up; the last one ends the lease. */
void py_lease_drop(struct lease_object *self);
bool py_lease_is_closed(const struct lease_object *self);

/* ---- HostView (host_view.c) ---- */

extern PyType_Spec py_host_view_spec;

/* Takes a share of the lease. [offset, offset + nbytes) lies in the array. */
PyObject *py_host_view_new(struct lease_object *lease, uint64_t offset, uint64_t nbytes,
                           bool readonly);
