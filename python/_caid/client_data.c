/* SPDX-License-Identifier: Apache-2.0 */
/* Client: copies, and pointers and streams of other libraries. */
#include "module.h"

#include <limits.h>

/* ---- copy ---- */

/* One side of a copy: an address, or a contiguous buffer on the host, which is held during the
 * copy. */
struct side {
    Py_buffer buffer; /* obj is NULL where the side is an address */
    uint64_t address;
    bool on_host;
};

static void
side_deinit(struct side *side)
{
    if (side->buffer.obj)
        PyBuffer_Release(&side->buffer);
}

static int
side_init(struct side *side, PyObject *op, int flags, Py_ssize_t nbytes)
{
    if (PyLong_Check(op)) {
        side->address = PyLong_AsUnsignedLongLong(op);
        return PyErr_Occurred() ? -1 : 0;
    }
    if (PyObject_GetBuffer(op, &side->buffer, flags) < 0)
        return -1;
    if (side->buffer.len != nbytes) {
        PyErr_Format(PyExc_ValueError, "the buffer has %zd bytes, the array %zd",
                     side->buffer.len, nbytes);
        return -1;
    }
    side->address = (uint64_t)(uintptr_t)side->buffer.buf;
    side->on_host = true;
    return 0;
}

/* Bytes of all elements; PY_SSIZE_T_MAX where they are more, a size that no buffer has. */
static Py_ssize_t
copy_nbytes(const struct dims *shape, unsigned int itemsize)
{
    Py_ssize_t n = (Py_ssize_t)itemsize;

    for (uint32_t i = 0; i < shape->n; i++)
        if (shape->v[i] == 0)
            return 0;
    for (uint32_t i = 0; i < shape->n; i++)
        if (__builtin_mul_overflow(n, shape->v[i], &n))
            return PY_SSIZE_T_MAX;
    return n;
}

/* Whether all elements are at one address, as all steps are 0. */
static bool
is_repeated(const struct dims *strides)
{
    for (uint32_t i = 0; i < strides->n; i++)
        if (strides->v[i] != 0)
            return false;
    return strides->v;
}

/* Copies on the stream of a mark. The mark is recorded even if the copy fails, since a part of
 * the copy may be under way. */
static PyObject *
copy_marked(struct client_object *self, const struct caid_copy *options, PyObject *mark,
            PyObject *lists)
{
    struct caid_client *c = py_client_enter(self);
    struct caid_error error = {0}, unmarked = {0};
    int copied, marked = 1;

    if (!c)
        return NULL;
    if (py_mark_begin(mark, lists) < 0) {
        py_client_leave(self);
        return NULL;
    }
    /* The mark is recorded before the copy, too, so that a copy that cannot be marked is not
     * begun: on a stream that captures a graph, nobody knows until when the memory has to be
     * kept. */
    WITHOUT_GIL(copied = py_mark_record(mark, &error); if (copied == 0) {
        copied = caid_copy(c, options, &error);
        marked = py_mark_record(mark, &unmarked);
    });
    py_mark_end(mark, marked);
    py_client_leave(self);
    if (copied < 0)
        return py_error_raise(self->state, copied, &error);
    if (marked < 0)
        return py_error_raise(self->state, marked, &unmarked);
    Py_RETURN_NONE;
}

/* Makes a copy, of the kind that the mark says, with the leases pinned. This is done in C, since
 * Python may raise KeyboardInterrupt between any two lines. */
static PyObject *
copy_pinned(struct client_object *self, const struct caid_copy *options, PyObject *leases,
            PyObject *mark, PyObject *lists)
{
    Py_ssize_t n_pinned = py_leases_pin(self->state, leases, NULL);
    PyObject *result = NULL;

    if (n_pinned < PyTuple_GET_SIZE(leases))
        result = NULL;
    else if (mark == Py_None)
        result = py_none(PY_CLIENT_CALL(self, caid_copy(c, options, &error)));
    else if (mark == Py_True)
        result = py_none(PY_CLIENT_CALL(self, cuda_copy_aside(c, options, &error)));
    else
        result = copy_marked(self, options, mark, lists);
    py_leases_unpin(leases, n_pinned);
    return result;
}

static int
mark_check(const struct client_object *self, PyObject *mark)
{
    if (mark == Py_None || mark == Py_True || py_mark_is_of(mark, self))
        return 0;
    PyErr_SetString(PyExc_TypeError, "mark: a Mark of the client, True, or None, is needed");
    return -1;
}

PyObject *
py_client_copy(PyObject *op, PyObject *const *args, Py_ssize_t n_args)
{
    struct client_object *self = py_client(op);
    __attribute__((cleanup(side_deinit))) struct side dst = {0}, src = {0};
    _cleanup_dims_ struct dims shape = {0}, dst_strides = {0}, src_strides = {0};
    struct caid_copy options = CAID_INIT(struct caid_copy);
    PyObject *dst_op, *src_op, *leases, *mark, *lists;
    Py_ssize_t nbytes;

    if (PY_ARGS(self->state, "copy", PY_ARG(dst_op), PY_ARG(src_op), PY_ARG(shape),
                PY_ARG(options.itemsize), PY_STRIDES(dst_strides, shape),
                PY_STRIDES(src_strides, shape), PY_ARG(dst.on_host), PY_ARG(src.on_host),
                PY_ARG(options.device), PY_TUPLE(leases), PY_ARG(mark), PY_TUPLE(lists)) < 0 ||
        mark_check(self, mark) < 0)
        return NULL;
    nbytes = copy_nbytes(&shape, options.itemsize);
    if (side_init(&dst, dst_op, PyBUF_WRITABLE, nbytes) < 0 ||
        side_init(&src, src_op, PyBUF_SIMPLE,
                  is_repeated(&src_strides) ? options.itemsize : nbytes) < 0)
        return NULL;

    options.dst = dst.address;
    options.src = src.address;
    options.dst_on_host = dst.on_host;
    options.src_on_host = src.on_host;
    options.dst_strides = dst_strides.v;
    options.src_strides = src_strides.v;
    options.shape = shape.v;
    options.ndim = shape.n;
    if (mark != Py_None && mark != Py_True)
        options.stream = py_mark_stream(mark);
    return copy_pinned(self, &options, leases, mark, lists);
}

/* ---- pointers and streams of other origin ---- */

PyObject *
py_client_pointer_resolve(PyObject *op, PyObject *ptr_op)
{
    struct client_object *self = py_client(op);
    uint64_t device_ptr, ptr = PyLong_AsUnsignedLongLong(ptr_op);
    int32_t device;

    if (PyErr_Occurred() ||
        PY_CLIENT_CALL(self, cuda_pointer_resolve(c, ptr, &device_ptr, &device, &error)) < 0)
        return NULL;
    return Py_BuildValue("(Ki)", (unsigned long long)device_ptr, (int)device);
}

PyObject *
py_client_pointer_attribute(PyObject *op, PyObject *const *args, Py_ssize_t n_args)
{
    struct client_object *self = py_client(op);
    uint64_t ptr, value;
    uint32_t attribute;

    if (PY_ARGS(self->state, "pointer_attribute", PY_ARG(ptr), PY_ARG(attribute)) < 0 ||
        PY_CLIENT_CALL(self, cuda_pointer_attribute(c, ptr, attribute, &value, &error)) < 0)
        return NULL;
    return PyLong_FromUnsignedLongLong(value);
}

PyObject *
py_client_stream_synchronize(PyObject *op, PyObject *const *args, Py_ssize_t n_args)
{
    struct client_object *self = py_client(op);
    uint64_t stream;
    int32_t device;

    if (PY_ARGS(self->state, "stream_synchronize", PY_ARG(stream), PY_ARG(device)) < 0)
        return NULL;
    return py_none(PY_CLIENT_CALL(self, caid_stream_synchronize(c, stream, device, &error)));
}
