/* SPDX-License-Identifier: Apache-2.0 */
/* The sync state of storages (sync.h), in any buffer. */
#include "sync.h"

#include <stdlib.h>

#include "handle.h"

struct change {
    struct sync_words *words; /* of a stream's change: in a lease's memory, which outlives it */
    uint64_t version;
    int side; /* the side that was modified; SYNC_CLEAN: both sides are equal, up to the version */
};

static int
change_check(struct change *self, const Py_buffer *buffer)
{
    self->words = buffer->buf;
    if ((size_t)buffer->len >= sizeof(*self->words) &&
        (uintptr_t)buffer->buf % _Alignof(struct sync_words) == 0 && self->side >= SYNC_CLEAN &&
        self->side <= SYNC_DEVICE_DIRTY)
        return 0;
    PyErr_SetString(PyExc_ValueError, "a sync state is two aligned words, a side 0, 1 or 2");
    return -1;
}

/* Reads the arguments. The caller keeps the words alive. */
static int
change_parse(struct change *self, PyObject *args)
{
    unsigned long long version;
    Py_buffer buffer;
    int r;

    if (!PyArg_ParseTuple(args, "w*iK", &buffer, &self->side, &version))
        return -1;
    self->version = version;
    r = change_check(self, &buffer);
    PyBuffer_Release(&buffer);
    return r;
}

/* Makes the change. Returns the state before it, or -EBADMSG. */
static int
change_make(struct change *self)
{
    if (self->side != SYNC_CLEAN)
        return sync_modify(self->words, self->side, &self->version);
    sync_pass(self->words, self->version);
    return SYNC_CLEAN;
}

/* Gives (state, version), or raises CorruptError where the words are no sync state. */
static PyObject *
sync_build(PyObject *module, int state, const uint64_t *version)
{
    if (state >= 0)
        return Py_BuildValue("iK", state, (unsigned long long)*version);
    return py_error_raise_code(
        PyModule_GetState(module), CAID_ERR_CORRUPT, -state,
        "the sync state of a storage is invalid: something else wrote it");
}

PyObject *
py_sync_load(PyObject *module, PyObject *op)
{
    struct change now = {0};
    PyObject *ret = NULL;
    Py_buffer buffer;

    if (PyObject_GetBuffer(op, &buffer, PyBUF_SIMPLE) < 0)
        return NULL;
    if (change_check(&now, &buffer) == 0)
        ret = sync_build(module, sync_load(now.words, &now.version), &now.version);
    PyBuffer_Release(&buffer);
    return ret;
}

PyObject *
py_sync_change(PyObject *module, PyObject *args)
{
    struct change change;

    if (change_parse(&change, args) < 0)
        return NULL;
    return sync_build(module, change_make(&change), &change.version);
}

/* Runs on the driver's thread. Where the work has failed, "equal" is not recorded, but
 * "modified" is, since the side may have been written. */
static void
change_arrived(int32_t status, void *userdata)
{
    struct change *change = userdata;

    if (status == 0 || change->side != SYNC_CLEAN)
        change_make(change);
    free(change);
}

PyObject *
py_sync_change_on(PyObject *op, PyObject *args)
{
    struct stream_object *self = (struct stream_object *)op;
    struct change *change = malloc(sizeof(*change));
    int r;

    if (!change)
        return PyErr_NoMemory();
    r = change_parse(change, args);
    if (r == 0)
        r = PY_HANDLE_CALL(&self->handle,
                           cuda_stream_add_callback(c, self->stream, self->device,
                                                    change_arrived, change, &error));
    if (r < 0)
        free(change);
    return py_none(r);
}
