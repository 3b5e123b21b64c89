/* SPDX-License-Identifier: Apache-2.0 */
/* The module _caid: its state, its functions, and its initialisation in phases (PEP 489). */
#include "handle.h"

#include <errno.h>
#include <limits.h>
#include <stddef.h>

static struct PyModuleDef module_def;

static struct module_state *
state_of(PyObject *module)
{
    return PyModule_GetState(module);
}

/* A class that Python code derives has no module state of its own, so its bases are searched.
 * (3.11 has PyType_GetModuleByDef() for this.) */
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

PyObject *
py_tp_new(PyTypeObject *type, PyObject *Py_UNUSED(args), PyObject *Py_UNUSED(kwargs))
{
    PyErr_Format(PyExc_TypeError, "%s comes from a Client", type->tp_name);
    return NULL;
}

void
py_tp_dealloc(PyObject *op)
{
    PyTypeObject *type = Py_TYPE(op);

    PyObject_GC_UnTrack(op);
    type->tp_clear(op);
    type->tp_free(op);
    Py_DECREF(type);
}

/* ---- types ---- */

/* Each type, and its place in the state. */
static const struct {
    PyType_Spec *spec;
    size_t at;
} types[] = {

#define PY_TYPE(name) {&py_##name##_spec, offsetof(struct module_state, name##_type)},
    PY_TYPES(PY_TYPE)
#undef PY_TYPE
};

static PyTypeObject **
type_at(struct module_state *state, size_t i)
{
    return (PyTypeObject **)(void *)((char *)state + types[i].at);
}

/* derived(): a decorator of classes, whose instances C makes from then on. */
static PyObject *
module_derived(PyObject *module, PyObject *class)
{
    for (size_t i = 0; i < Py_ARRAY_LENGTH(types); i++) {
        PyTypeObject **type = type_at(state_of(module), i);
        if (!PyType_Check(class) || !PyType_IsSubtype((PyTypeObject *)class, *type))
            continue;
        Py_INCREF(class);
        Py_SETREF(*type, (PyTypeObject *)class);
    }
    Py_INCREF(class);
    return class;
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
module_set_strict(PyObject *module, PyObject *strict)
{
    bool *is = &state_of(module)->strict;
    PyObject *before = PyBool_FromLong(*is);

    *is = strict == Py_True;
    return before;
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
    {"derived", module_derived, METH_O,
     PyDoc_STR("Registers a class: objects of its base are made as its instances.")},
    {"softcuda_path", module_softcuda_path, METH_NOARGS,
     PyDoc_STR("Where the software CUDA driver of this build is.")},
    {"set_strict", module_set_strict, METH_O,
     PyDoc_STR(
         "Sets whether the software driver's device memory is refused to the host: the former value.")},
    {"version", module_version, METH_NOARGS, PyDoc_STR("The version of libcaid.")},
    {"dlpack_export", py_dlpack_export, METH_VARARGS,
     PyDoc_STR("A tensor in a capsule, which keeps the owner; of a Lease it has a share.")},
    {"dlpack_import", py_dlpack_import, METH_O,
     PyDoc_STR("Takes the tensor of a capsule: a Tensor.")},
    {"sync_load", py_sync_load, METH_O,
     PyDoc_STR(
         "(state, version) of a storage's two buffers, from the words of its sync state.")},
    {"sync_change", py_sync_change, METH_VARARGS,
     PyDoc_STR(
         "Records that one side was modified, or both are equal: (state before, version).")},
    {"torch_set", py_torch_set, METH_VARARGS,
     PyDoc_STR("Has caid_torch_malloc() use an Arena for a CUDA device, for good.")},
    {"torch_keep", py_torch_keep, METH_O, PyDoc_STR("Keeps an object for good.")},
    {"torch_error", py_torch_error, METH_NOARGS,
     PyDoc_STR(
         "The last error of caid_torch_malloc() or caid_torch_free() since the previous call.")},
    {"code_name", module_code_name, METH_O, PyDoc_STR("Name of an error code, or None.")},
    {0},
};

/* ---- the module ---- */

static int
add_type(PyObject *module, size_t i)
{
    PyTypeObject *type = (PyTypeObject *)PyType_FromModuleAndSpec(module, types[i].spec, NULL);

    *type_at(state_of(module), i) = type;
    return type ? PyModule_AddType(module, type) : -1;
}

static PyObject *
module_close_gate(PyObject *module, PyObject *Py_UNUSED(unused))
{
    return py_gate_close(state_of(module)->gate);
}

static PyMethodDef close_gate = {"close_gate", module_close_gate, METH_NOARGS, NULL};

/* Opens the gate for callbacks of streams, and has atexit close it. */
static int
open_gate(PyObject *module)
{
    struct module_state *state = state_of(module);
    _cleanup_py_ PyObject *at_exit = PyImport_ImportModule("atexit");
    _cleanup_py_ PyObject *close = at_exit ? PyCFunction_New(&close_gate, module) : NULL;
    _cleanup_py_ PyObject *registered = NULL;

    if (!close)
        return -1;
    state->gate = py_gate_new();
    state->spent = PyList_New(0);
    if (!state->gate || !state->spent)
        return -1;
    registered = PyObject_CallMethod(at_exit, "register", "O", close);
    return registered ? 0 : -1;
}

static int
module_exec(PyObject *module)
{
    struct module_state *state = state_of(module);
    _cleanup_py_ PyObject *errors = PyImport_ImportModule("caid._base._errors");

    if (!errors)
        return -1;
    state->make_error = PyObject_GetAttrString(errors, "make_error");
    if (!state->make_error)
        return -1;
    for (size_t i = 0; i < Py_ARRAY_LENGTH(types); i++)
        if (add_type(module, i) < 0)
            return -1;
    return open_gate(module);
}

static int
module_traverse(PyObject *module, visitproc visit, void *arg)
{
    struct module_state *state = state_of(module);

    for (size_t i = 0; i < Py_ARRAY_LENGTH(types); i++)
        Py_VISIT(*type_at(state, i));
    Py_VISIT(state->spent);
    Py_VISIT(state->make_error);
    return 0;
}

static int
module_clear(PyObject *module)
{
    struct module_state *state = state_of(module);

    for (size_t i = 0; i < Py_ARRAY_LENGTH(types); i++)
        Py_CLEAR(*type_at(state, i));
    Py_CLEAR(state->spent);
    Py_CLEAR(state->make_error);
    return 0;
}

static void
module_free(void *module)
{
    module_clear(module);
    py_gate_unref(state_of(module)->gate);
}

/* A build of Python without the GIL turns the GIL on for this module: the GIL guards the counts
 * of calls and shares. */
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
