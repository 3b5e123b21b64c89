/* SPDX-License-Identifier: Apache-2.0 */
/*
 * libcaid's errors as exceptions. caid/_base/_errors.py has a class for each code of
 * proto/errors.def; this file only calls their factory.
 */
#include "module.h"

#include <errno.h>
#include <stdarg.h>

static PyObject *
raise(const struct module_state *state, int code, int errnum, PyObject *message,
      int cuda_result)
{
    _cleanup_py_ PyObject *e = NULL;

    if (!message)
        return NULL;
    e = PyObject_CallFunction(state->make_error, "iiOi", code, errnum, message, cuda_result);
    if (e)
        PyErr_SetObject((PyObject *)Py_TYPE(e), e);
    return NULL;
}

PyObject *
py_error_raise(const struct module_state *state, int r, const struct caid_error *error)
{
    _cleanup_py_ PyObject *message = NULL;

    if (error->code == CAID_ERR_INTERRUPTED && py_interrupt_raise())
        return NULL;
    message =
        PyUnicode_DecodeUTF8(error->message, (Py_ssize_t)strlen(error->message), "replace");
    return raise(state, error->code, -r, message, error->cuda_result);
}

PyObject *
py_error_raise_code(const struct module_state *state, enum caid_code code, int errnum,
                    const char *format, ...)
{
    _cleanup_py_ PyObject *message = NULL;
    va_list va;

    va_start(va, format);
    message = PyUnicode_FromFormatV(format, va);
    va_end(va);
    return raise(state, (int)code, errnum, message, 0);
}
