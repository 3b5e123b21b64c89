/* SPDX-License-Identifier: Apache-2.0 */
/*
 * DLPack: tensors that others take from us, and those that we take from them.
 *
 * An exported tensor is one allocation (struct exported), made with its capsule. Its deleter frees
 * it: the consumer calls the deleter from any thread, or the capsule's destructor does where nobody
 * took the tensor. It keeps the array's memory: as a HostView it has a share of a Lease, so that
 * the range stays mapped as long as the tensor lives, even if the array or its client is closed; a
 * Frame counts it; of memory that is not the daemon's it holds the owner.
 *
 * An imported tensor is a Tensor. The object's end calls the producer's deleter.
 */
#include "dlpack.h"
#include "channel.h"

#include <stddef.h>
#include <structmember.h>

#define NDIM_MAX 64 /* no library has more dimensions; caid's own arrays have 32 */

/* ---- export ---- */

struct exported {
    union {
        struct dl_managed plain;
        struct dl_managed_versioned versioned;
    };

    PyObject
        *owner; /* a Lease, of which this has a share; a Frame; the owner of other memory */
    bool owner_is_lease, owner_is_frame;
    int64_t dims[]; /* extents, then steps */
};

/* Whether this thread may take the GIL: not while the interpreter ends, unless the thread has
 * it. */
static bool
interpreter_is_there(void)
{
    if (!Py_IsInitialized())
        return false;
#if PY_VERSION_HEX >= 0x030D0000
    return !Py_IsFinalizing() || PyGILState_Check();
#else
    return !_Py_IsFinalizing() || PyGILState_Check();
#endif
}

/* Where the interpreter has ended, the array is not closed: it ends with the process. */
static void
export_free(struct exported *self)
{
    PyObject *type, *value, *traceback;
    PyGILState_STATE gil;

    if (!interpreter_is_there())
        return;
    gil = PyGILState_Ensure();
    PyErr_Fetch(&type, &value, &traceback);
    if (self->owner_is_lease)
        py_lease_view_end((struct lease_object *)self->owner);
    if (self->owner_is_frame)
        py_frame_export_end(self->owner);
    Py_DECREF(self->owner);
    PyErr_Restore(type, value, traceback);
    PyGILState_Release(gil);
    PyMem_RawFree(self);
}

static void
plain_delete(struct dl_managed *managed)
{
    export_free(managed->manager_ctx);
}

static void
versioned_delete(struct dl_managed_versioned *managed)
{
    export_free(managed->manager_ctx);
}

/* Destructor of a capsule that nobody has taken. */
static void
capsule_end(PyObject *capsule)
{
    if (PyCapsule_IsValid(capsule, DL_NAME))
        plain_delete(PyCapsule_GetPointer(capsule, DL_NAME));
    else if (PyCapsule_IsValid(capsule, DL_NAME_VERSIONED))
        versioned_delete(PyCapsule_GetPointer(capsule, DL_NAME_VERSIONED));
}

static struct exported *
export_new(const struct dims *shape, const struct dims *strides)
{
    size_t n_bytes = shape->n * sizeof(int64_t);
    struct exported *self = PyMem_RawCalloc(1, sizeof(*self) + 2 * n_bytes);

    if (!self) {
        PyErr_NoMemory();
        return NULL;
    }
    if (shape->n > 0) {
        memcpy(self->dims, shape->v, n_bytes);
        memcpy(self->dims + shape->n, strides->v, n_bytes);
    }
    return self;
}

/* Takes what keeps the memory. -1 with ClosedError set where the lease has ended. */
static int
export_hold(struct exported *self, const struct module_state *state, PyObject *owner)
{
    struct lease_object *lease = (struct lease_object *)owner;

    self->owner_is_lease = Py_IS_TYPE(owner, state->lease_type);
    if (self->owner_is_lease) {
        if (py_lease_pin(lease) < 0)
            return -1;
        py_lease_view_begin(lease);
        py_lease_unpin(lease);
    }
    self->owner_is_frame = Py_IS_TYPE(owner, state->frame_type);
    if (self->owner_is_frame && py_frame_export_begin(owner) < 0)
        return -1;
    Py_INCREF(owner);
    self->owner = owner;
    return 0;
}

static PyObject *
export_plain(struct exported *self, const struct dl_tensor *tensor)
{
    self->plain = (struct dl_managed){
        .tensor = *tensor,
        .manager_ctx = self,
        .deleter = plain_delete,
    };
    return PyCapsule_New(&self->plain, DL_NAME, capsule_end);
}

static PyObject *
export_versioned(struct exported *self, const struct dl_tensor *tensor, uint64_t flags)
{
    self->versioned = (struct dl_managed_versioned){
        .version = {DL_VERSION_MAJOR, DL_VERSION_MINOR},
        .manager_ctx = self,
        .deleter = versioned_delete,
        .flags = flags,
        .tensor = *tensor,
    };
    return PyCapsule_New(&self->versioned, DL_NAME_VERSIONED, capsule_end);
}

PyObject *
py_dlpack_export(PyObject *module, PyObject *args)
{
    const struct module_state *state = PyModule_GetState(module);
    _cleanup_dims_ struct dims shape = {0}, strides = {0};
    PyObject *owner, *shape_op, *strides_op, *capsule;
    struct dl_tensor tensor = {0};
    unsigned long long address, flags;
    int versioned;
    struct exported *self;

    if (!PyArg_ParseTuple(args, "OK(ii)(bbH)O!O!Kp:dlpack_export", &owner, &address,
                          &tensor.device.type, &tensor.device.id, &tensor.dtype.code,
                          &tensor.dtype.bits, &tensor.dtype.lanes, &PyTuple_Type, &shape_op,
                          &PyTuple_Type, &strides_op, &flags, &versioned) ||
        py_dims_get(state, shape_op, "shape", &shape) < 0 ||
        py_strides_get(state, strides_op, "strides", &shape, &strides) < 0)
        return NULL;
    self = export_new(&shape, &strides);
    if (!self)
        return NULL;
    if (export_hold(self, state, owner) < 0) {
        PyMem_RawFree(self);
        return NULL;
    }

    tensor.data = (void *)(uintptr_t)address;
    tensor.ndim = (int32_t)shape.n;
    tensor.shape = self->dims;
    tensor.strides = self->dims + shape.n;
    capsule = versioned ? export_versioned(self, &tensor, flags) : export_plain(self, &tensor);
    if (!capsule)
        export_free(self);
    return capsule;
}

/* ---- import ---- */

struct tensor_object {
    PyObject_HEAD
    const struct dl_tensor *tensor;
    struct dl_managed *plain; /* one of the two is set; neither before the tensor was taken */
    struct dl_managed_versioned *versioned;
    unsigned long long flags; /* of DLPack 1; 0 before that version */
};

PY_CAST(tensor);

static bool
tensor_is_right(const struct dl_tensor *t)
{
    if (t->ndim < 0 || t->ndim > NDIM_MAX)
        PyErr_Format(PyExc_BufferError, "DLPack: %d dimensions; 0 to %d are taken",
                     (int)t->ndim, NDIM_MAX);
    else if (t->ndim > 0 && !t->shape)
        PyErr_Format(PyExc_BufferError, "DLPack: no shape");
    else
        return true;
    return false;
}

/* Takes the tensor from its capsule: from here on not the capsule's destructor but the object's
 * calls the deleter. */
static PyObject *
tensor_take(struct tensor_object *self, PyObject *capsule, const struct dl_tensor *t,
            const char *used_name)
{
    if (!tensor_is_right(t) || PyCapsule_SetName(capsule, used_name) < 0)
        return NULL;
    self->tensor = t;
    Py_INCREF(self);
    return (PyObject *)self;
}

static PyObject *
tensor_take_plain(struct tensor_object *self, PyObject *capsule)
{
    struct dl_managed *managed = PyCapsule_GetPointer(capsule, DL_NAME);

    if (!tensor_take(self, capsule, &managed->tensor, DL_NAME_USED))
        return NULL;
    self->plain = managed;
    return (PyObject *)self;
}

static PyObject *
tensor_take_versioned(struct tensor_object *self, PyObject *capsule)
{
    struct dl_managed_versioned *managed = PyCapsule_GetPointer(capsule, DL_NAME_VERSIONED);

    if (managed->version.major !=
        DL_VERSION_MAJOR) /* the capsule still owns it, and frees it */
        return PyErr_Format(PyExc_BufferError, "DLPack: version %u.%u; 1 is taken",
                            managed->version.major, managed->version.minor);
    if (!tensor_take(self, capsule, &managed->tensor, DL_NAME_VERSIONED_USED))
        return NULL;
    self->versioned = managed;
    self->flags = managed->flags;
    return (PyObject *)self;
}

PyObject *
py_dlpack_import(PyObject *module, PyObject *capsule)
{
    const struct module_state *state = PyModule_GetState(module);
    _cleanup_py_ PyObject *self = state->tensor_type->tp_alloc(state->tensor_type, 0);

    if (!self)
        return NULL;
    if (PyCapsule_IsValid(capsule, DL_NAME))
        return tensor_take_plain(tensor(self), capsule);
    if (PyCapsule_IsValid(capsule, DL_NAME_VERSIONED))
        return tensor_take_versioned(tensor(self), capsule);
    if (!PyCapsule_CheckExact(capsule))
        return PyErr_Format(PyExc_TypeError, "__dlpack__() gave no capsule, but %.100s",
                            Py_TYPE(capsule)->tp_name);
    return PyErr_Format(PyExc_BufferError,
                        "DLPack: a capsule that holds no tensor, or was taken before");
}

/* Calls the producer's deleter, which may run Python code, or wait. */
static void
tensor_dealloc(PyObject *op)
{
    struct tensor_object *self = tensor(op);
    PyTypeObject *type = Py_TYPE(op);
    PyObject *e_type, *e_value, *e_traceback;

    PyErr_Fetch(&e_type, &e_value, &e_traceback);
    if (self->plain && self->plain->deleter)
        self->plain->deleter(self->plain);
    if (self->versioned && self->versioned->deleter)
        self->versioned->deleter(self->versioned);
    PyErr_Restore(e_type, e_value, e_traceback);
    type->tp_free(op);
    Py_DECREF(type);
}

/* ---- what a Tensor tells ---- */

static PyObject *
tensor_get_ptr(PyObject *op, void *Py_UNUSED(closure))
{
    const struct dl_tensor *t = tensor(op)->tensor;

    return PyLong_FromUnsignedLongLong((uintptr_t)t->data + t->byte_offset);
}

static PyObject *
tensor_get_device(PyObject *op, void *Py_UNUSED(closure))
{
    const struct dl_tensor *t = tensor(op)->tensor;

    return Py_BuildValue("(ii)", (int)t->device.type, (int)t->device.id);
}

static PyObject *
tensor_get_dtype(PyObject *op, void *Py_UNUSED(closure))
{
    const struct dl_dtype *dtype = &tensor(op)->tensor->dtype;

    return Py_BuildValue("(iii)", (int)dtype->code, (int)dtype->bits, (int)dtype->lanes);
}

static PyObject *
tensor_get_shape(PyObject *op, void *Py_UNUSED(closure))
{
    return py_dims_tuple(tensor(op)->tensor->shape, (uint32_t)tensor(op)->tensor->ndim);
}

static PyObject *
tensor_get_strides(PyObject *op, void *Py_UNUSED(closure))
{
    if (!tensor(op)->tensor->strides)
        Py_RETURN_NONE;
    return py_dims_tuple(tensor(op)->tensor->strides, (uint32_t)tensor(op)->tensor->ndim);
}

#define TELLS(name, doc)                                     \
    {                                                        \
#        name, tensor_get_##name, NULL, PyDoc_STR(doc), NULL \
    }

static PyGetSetDef tensor_getset[] = {
    TELLS(ptr, "Address of the first element."),
    TELLS(device, "(type, id)."),
    TELLS(dtype, "(code, bits, lanes)."),
    TELLS(shape, "Extents."),
    TELLS(strides, "Steps in elements, or None: C order."),
    {0},
};

static PyMemberDef tensor_members[] = {
    {"flags", T_ULONGLONG, offsetof(struct tensor_object, flags), READONLY, NULL},
    {0},
};

PY_SPEC(tensor, "caid._caid.Tensor", 0, "A tensor of another library, by DLPack.",
        {Py_tp_new, py_tp_new}, {Py_tp_dealloc, tensor_dealloc}, {Py_tp_getset, tensor_getset},
        {Py_tp_members, tensor_members});
