/* SPDX-License-Identifier: Apache-2.0 */
/* The module _caid: its state, its functions, its initialisation (PEP 489, in phases). */
#include "module.h"

#include <errno.h>
#include <limits.h>

static struct PyModuleDef module_def;

static struct module_state *
state_of(PyObject *module)
{
    return PyModule_GetState(module);
}

/* A class that Python code derives has no module of its own: look along the bases. (3.11 has
 * PyType_GetModuleByDef() for this.) */
struct module_state *
py_module_state_of(PyTypeObject *type)
{
    for (; type; type = type->tp_base) {
        PyObject *module;

        if (!(type->tp_flags & Py_TPFLAGS_HEAPTYPE))
            break;
        module = ((PyHeapTypeObject *)type)->ht_module;
        if (module && PyModule_GetDef(module) == &module_def)
            return state_of(module);
    }
    PyErr_SetString(PyExc_SystemError, "not a type of _caid");
    return NULL;
}

/* ---- functions ---- */

static PyObject *
module_softcuda_path(PyObject *module, PyObject *Py_UNUSED(unused))
{
    char path[PATH_MAX];
    int r = caid_softcuda_path(path, sizeof(path));

    if (r < 0)
        return py_error_raise_code(
            state_of(module), CAID_ERR_SYSTEM, -r,
            "the software driver, libcaid-softcuda.so, is not where this "
            "build or installation would have it");
    return PyUnicode_DecodeFSDefault(path);
}

static PyObject *
module_version(PyObject *Py_UNUSED(module), PyObject *Py_UNUSED(unused))
{
    return PyUnicode_FromString(caid_version());
}

static PyObject *
module_code_name(PyObject *Py_UNUSED(module), PyObject *code)
{
    long v = PyLong_AsLong(code);

    if (v == -1 && PyErr_Occurred())
        return NULL;
    return py_text_or_none(v < INT32_MIN || v > INT32_MAX ? NULL : caid_code_name((int32_t)v));
}

static PyMethodDef module_methods[] = {
    {"softcuda_path", module_softcuda_path, METH_NOARGS,
     PyDoc_STR("softcuda_path()\n--\n\nWhere the software CUDA driver of this build is.")},
    {"version", module_version, METH_NOARGS,
     PyDoc_STR("version()\n--\n\nThe version of libcaid.")},
    {"code_name", module_code_name, METH_O,
     PyDoc_STR("code_name(code, /)\n--\n\nName of an error code, or None.")},
    {0},
};

/* ---- the module ---- */

static PyTypeObject *
add_type(PyObject *module, PyType_Spec *spec)
{
    PyTypeObject *type = (PyTypeObject *)PyType_FromModuleAndSpec(module, spec, NULL);

    if (type && PyModule_AddType(module, type) < 0)
        Py_CLEAR(type);
    return type;
}

static int
module_exec(PyObject *module)
{
    struct module_state *state = state_of(module);
    _cleanup_py_ PyObject *errors = PyImport_ImportModule("caid._errors");

    if (!errors)
        return -1;
    state->make_error = PyObject_GetAttrString(errors, "make_error");
    if (!state->make_error)
        return -1;
    state->client_type = add_type(module, &py_client_spec);
    state->lease_type = add_type(module, &py_lease_spec);
    state->host_view_type = add_type(module, &py_host_view_spec);
    state->watch_type = add_type(module, &py_watch_spec);
    state->host_memory_type = add_type(module, &py_host_memory_spec);
    if (!state->client_type || !state->lease_type || !state->host_view_type ||
        !state->watch_type || !state->host_memory_type)
        return -1;
    return 0;
}

static int
module_traverse(PyObject *module, visitproc visit, void *arg)
{
    struct module_state *state = state_of(module);

    Py_VISIT(state->client_type);
    Py_VISIT(state->lease_type);
    Py_VISIT(state->host_view_type);
    Py_VISIT(state->watch_type);
    Py_VISIT(state->host_memory_type);
    Py_VISIT(state->make_error);
    return 0;
}

static int
module_clear(PyObject *module)
{
    struct module_state *state = state_of(module);

    Py_CLEAR(state->client_type);
    Py_CLEAR(state->lease_type);
    Py_CLEAR(state->host_view_type);
    Py_CLEAR(state->watch_type);
    Py_CLEAR(state->host_memory_type);
    Py_CLEAR(state->make_error);
    return 0;
}

static void
module_free(void *module)
{
    module_clear(module);
}

/* A build of Python without the GIL turns it on for this module: the counts of calls and
 * shares rely on it. */
static PyModuleDef_Slot module_slots[] = {
    {Py_mod_exec, module_exec},
#if PY_VERSION_HEX >= 0x030C0000
    {Py_mod_multiple_interpreters, Py_MOD_PER_INTERPRETER_GIL_SUPPORTED},
#endif
    {0, NULL},
};

static struct PyModuleDef module_def = {
    PyModuleDef_HEAD_INIT,
    .m_name = "_caid",
    .m_doc = PyDoc_STR("libcaid for Python, thin: see the package caid."),
    .m_size = sizeof(struct module_state),
    .m_methods = module_methods,
    .m_slots = module_slots,
    .m_traverse = module_traverse,
    .m_clear = module_clear,
    .m_free = module_free,
};

PyMODINIT_FUNC PyInit__caid(void);

PyMODINIT_FUNC
PyInit__caid(void)
{
    return PyModuleDef_Init(&module_def);
}
