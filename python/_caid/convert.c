/* SPDX-License-Identifier: Apache-2.0 */
/* Conversions between Python's values and libcaid's. */
#include "module.h"

#include <errno.h>

int
py_text_get(const struct module_state *state, PyObject *op, const char *what,
            enum caid_code code, const char **ret)
{
    const char *s;
    Py_ssize_t n;

    if (op == Py_None) {
        *ret = NULL;
        return 0;
    }
    if (!PyUnicode_Check(op)) {
        PyErr_Format(PyExc_TypeError, "%s: a str or None is needed, not %.100s", what,
                     Py_TYPE(op)->tp_name);
        return -1;
    }

    s = PyUnicode_AsUTF8AndSize(op, &n);
    if (!s) {
        if (!PyErr_ExceptionMatches(PyExc_UnicodeEncodeError))
            return -1;
        PyErr_Clear();
        py_error_raise_code(state, code, EINVAL, "%s %A: not UTF-8 (lone surrogates)", what,
                            op);
        return -1;
    }
    if (strlen(s) != (size_t)n) {
        py_error_raise_code(state, code, EINVAL, "%s %A: control characters", what, op);
        return -1;
    }
    *ret = s;
    return 0;
}

int
py_device_get(const struct module_state *state, PyObject *op, int32_t *ret)
{
    int overflow;
    long v = PyLong_AsLongAndOverflow(op, &overflow);

    if (v == -1 && PyErr_Occurred()) {
        if (PyErr_ExceptionMatches(PyExc_TypeError))
            PyErr_Format(PyExc_TypeError, "device: an index or a UUID is needed, not %.100s",
                         Py_TYPE(op)->tp_name);
        return -1;
    }
    if (overflow || v < INT32_MIN || v > INT32_MAX) {
        py_error_raise_code(state, CAID_ERR_DEVICE, ENODEV, "no device %R", op);
        return -1;
    }
    *ret = (int32_t)v;
    return 0;
}

int
py_u64_get(const struct module_state *state, PyObject *op, const char *what, uint64_t *ret)
{
    _cleanup_py_ PyObject *index = NULL;
    unsigned long long v;

    if (!PyIndex_Check(op)) {
        PyErr_Format(PyExc_TypeError, "%s: an int is needed, not %.100s", what,
                     Py_TYPE(op)->tp_name);
        return -1;
    }
    index = PyNumber_Index(op);
    if (!index)
        return -1;
    v = PyLong_AsUnsignedLongLong(index);
    if (v == (unsigned long long)-1 && PyErr_Occurred()) {
        if (!PyErr_ExceptionMatches(PyExc_OverflowError))
            return -1;
        PyErr_Clear();
        py_error_raise_code(state, CAID_ERR_INVALID, EINVAL, "%s %R: from 0 to 2^64 - 1", what,
                            op);
        return -1;
    }
    *ret = v;
    return 0;
}

PyObject *
py_text_or_none(const char *s)
{
    if (!s)
        Py_RETURN_NONE;
    return PyUnicode_DecodeUTF8(s, (Py_ssize_t)strlen(s), "replace");
}

PyObject *
py_ipc_handle_tuple(const struct caid_ipc_handle *handle)
{
    return Py_BuildValue("(y#KK)", (const char *)handle->handle,
                         (Py_ssize_t)sizeof(handle->handle), (unsigned long long)handle->offset,
                         (unsigned long long)handle->size);
}

static int
dim_get(const struct module_state *state, PyObject *op, const char *what, Py_ssize_t i,
        int64_t *ret)
{
    int overflow;
    long long v = PyLong_AsLongLongAndOverflow(op, &overflow);

    if (v == -1 && PyErr_Occurred())
        return -1;
    if (overflow) {
        py_error_raise_code(state, CAID_ERR_INVALID, EINVAL,
                            "%s[%zd]: %R does not fit in 64 bits", what, i, op);
        return -1;
    }
    *ret = v;
    return 0;
}

int
py_dims_get(const struct module_state *state, PyObject *op, const char *what, struct dims *ret)
{
    Py_ssize_t n;

    if (op == Py_None)
        return 0;
    if (!PyTuple_Check(op)) {
        PyErr_Format(PyExc_TypeError, "%s: a tuple is needed, not %.100s", what,
                     Py_TYPE(op)->tp_name);
        return -1;
    }
    n = PyTuple_GET_SIZE(op);
    if (n > INT32_MAX) {
        PyErr_SetString(PyExc_OverflowError, what);
        return -1;
    }

    ret->v = ret->few;
    if ((size_t)n > Py_ARRAY_LENGTH(ret->few)) {
        ret->v = PyMem_New(int64_t, (size_t)n);
        if (!ret->v) {
            PyErr_NoMemory();
            return -1;
        }
    }
    ret->n = (uint32_t)n;
    for (Py_ssize_t i = 0; i < n; i++)
        if (dim_get(state, PyTuple_GET_ITEM(op, i), what, i, &ret->v[i]) < 0)
            return -1;
    return 0;
}

int
py_strides_get(const struct module_state *state, PyObject *op, const char *what,
               const struct dims *shape, struct dims *ret)
{
    if (py_dims_get(state, op, what, ret) < 0)
        return -1;
    if (!ret->v || ret->n == shape->n)
        return 0;
    py_error_raise_code(state, CAID_ERR_INVALID, EINVAL, "%s: %u for %u dimensions", what,
                        ret->n, shape->n);
    return -1;
}

void
py_dims_deinit(struct dims *dims)
{
    if (dims->v != dims->few)
        PyMem_Free(dims->v);
    dims->v = NULL;
}

PyObject *
py_dims_tuple(const int64_t *v, uint32_t n)
{
    _cleanup_py_ PyObject *tuple = PyTuple_New((Py_ssize_t)n);

    if (!tuple)
        return NULL;
    for (uint32_t i = 0; i < n; i++) {
        PyObject *item = PyLong_FromLongLong(v[i]);
        if (!item)
            return NULL;
        PyTuple_SET_ITEM(tuple, (Py_ssize_t)i, item);
    }
    return py_take(&tuple);
}

/* ---- arguments ---- */

static int
truth_get(PyObject *op, bool *ret)
{
    int truth = PyObject_IsTrue(op);

    *ret = truth > 0;
    return truth;
}

static int
object_get(PyObject *op, const struct py_arg *arg, const char *what)
{
    if (arg->kind == 'T' && !PyTuple_Check(op)) {
        PyErr_Format(PyExc_TypeError, "%s: a tuple is needed", what);
        return -1;
    }
    *(PyObject **)arg->ret = op;
    return 0;
}

int
py_name_get(const struct module_state *state, PyObject *op, const char *what, const char **ret)
{
    if (op != Py_None)
        return py_text_get(state, op, what, CAID_ERR_INVALID_NAME, ret);
    PyErr_Format(PyExc_TypeError, "%s: a str is needed, not None", what);
    return -1;
}

static int
arg_get(const struct module_state *state, PyObject *op, const struct py_arg *arg)
{
    const char *dot = strrchr(arg->what, '.'), *what = dot ? dot + 1 : arg->what;
    uint64_t number = 0;
    int r = 0;

    switch (arg->kind) {
    case 'n': return py_name_get(state, op, what, arg->ret);
    case 's': return py_text_get(state, op, what, arg->code, arg->ret);
    case 'K': return py_u64_get(state, op, what, arg->ret);
    case 'I':
        r = py_u64_get(state, op, what, &number);
        *(uint32_t *)arg->ret = (uint32_t)number;
        return r;
    case 'i': return py_device_get(state, op, arg->ret);
    case 'd': *(double *)arg->ret = PyFloat_AsDouble(op); return PyErr_Occurred() ? -1 : 0;
    case '?': return truth_get(op, arg->ret);
    case 'D': return py_dims_get(state, op, what, arg->ret);
    case 'S': return py_strides_get(state, op, what, arg->shape, arg->ret);
    default: return object_get(op, arg, what);
    }
}

int
py_args_get(const struct module_state *state, PyObject *const *args, Py_ssize_t n_args,
            const char *method, const struct py_arg *each, size_t n)
{
    if ((size_t)n_args != n) {
        PyErr_Format(PyExc_TypeError, "%s() takes %zu positional arguments, not %zd", method, n,
                     n_args);
        return -1;
    }
    for (size_t i = 0; i < n; i++)
        if (arg_get(state, args[i], &each[i]) < 0)
            return -1;
    return 0;
}
