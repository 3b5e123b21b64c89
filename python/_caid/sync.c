/* SPDX-License-Identifier: Apache-2.0 */
/* The sync state of storages (sync.h), in any buffer. */
#include "sync.h"

#include <stdlib.h>

#include "handle.h"

static struct sync_words *
words_of(const Py_buffer *buffer)
{
    if ((size_t)buffer->len >= sizeof(struct sync_words) &&
        (uintptr_t)buffer->buf % _Alignof(struct sync_words) == 0)
        return buffer->buf;
    PyErr_SetString(PyExc_ValueError, "a sync state is two aligned words");
    return NULL;
}

/* (state, version), or what the words cannot be. */
static PyObject *
tell(PyObject *module, int state, uint64_t version)
{
    if (state >= 0)
        return Py_BuildValue("iK", state, (unsigned long long)version);
    return py_error_raise_code(PyModule_GetState(module), CAID_ERR_CORRUPT, -state,
                               "the sync state of a storage is none: something else wrote it");
}

PyObject *
py_sync_load(PyObject *module, PyObject *op)
{
    const struct sync_words *words;
    PyObject *result = NULL;
    uint64_t version = 0;
    Py_buffer buffer;
    int state;

    if (PyObject_GetBuffer(op, &buffer, PyBUF_SIMPLE) < 0)
        return NULL;
    words = words_of(&buffer);
    if (words) {
        state = sync_load(words, &version);
        result = tell(module, state, version);
    }
    PyBuffer_Release(&buffer);
    return result;
}

PyObject *
py_sync_modify(PyObject *module, PyObject *args)
{
    PyObject *result = NULL;
    struct sync_words *words;
    uint64_t version = 0;
    Py_buffer buffer;
    int side, state;

    if (!PyArg_ParseTuple(args, "w*i:sync_modify", &buffer, &side))
        return NULL;
    words = words_of(&buffer);
    if (words && side != SYNC_HOST_DIRTY && side != SYNC_DEVICE_DIRTY) {
        PyErr_SetString(PyExc_ValueError, "a side: 1 the host's, 2 the device's");
    } else if (words) {
        state = sync_modify(words, side, &version);
        result = tell(module, state, version);
    }
    PyBuffer_Release(&buffer);
    return result;
}

PyObject *
py_sync_pass(PyObject *Py_UNUSED(module), PyObject *args)
{
    unsigned long long version;
    struct sync_words *words;
    Py_buffer buffer;

    if (!PyArg_ParseTuple(args, "w*K:sync_pass", &buffer, &version))
        return NULL;
    words = words_of(&buffer);
    if (words)
        sync_pass(words, version);
    PyBuffer_Release(&buffer);
    return py_none(words ? 0 : -1);
}

/* ---- on a stream ---- */

struct passing {
    struct sync_words *words; /* of a lease, whose end waits for what is on streams */
    uint64_t version;
    int side; /* is modified; SYNC_CLEAN: both are equal, up to the version */
};

/* After a failure both sides are not known to be equal; that one was modified, it may be. */
static void
pass(int32_t status, void *userdata)
{
    struct passing *passing = userdata;

    if (passing->side != SYNC_CLEAN)
        sync_modify(passing->words, passing->side, &passing->version);
    else if (status == 0)
        sync_pass(passing->words, passing->version);
    free(passing);
}

static PyObject *
enqueue(struct stream_object *stream, const struct passing *what)
{
    struct caid_client *c = py_handle_enter(&stream->handle);
    struct passing *passing = malloc(sizeof(*passing));
    struct caid_error error = {0};
    int r;

    if (!c || !passing) {
        free(passing);
        if (!c)
            return NULL;
        py_handle_leave(&stream->handle);
        return PyErr_NoMemory();
    }
    *passing = *what;
    WITHOUT_GIL(
        r = cuda_stream_add_callback(c, stream->stream, stream->device, pass, passing, &error));
    if (r < 0)
        free(passing);
    return py_none(py_handle_leave_with(&stream->handle, r, &error));
}

PyObject *
py_sync_on(struct stream_object *stream, PyObject *args)
{
    struct passing passing = {0};
    unsigned long long version;
    Py_buffer buffer;

    if (!PyArg_ParseTuple(args, "w*iK:_sync_on", &buffer, &passing.side, &version))
        return NULL;
    passing.words = words_of(&buffer);
    passing.version = version;
    PyBuffer_Release(&buffer);
    return passing.words ? enqueue(stream, &passing) : NULL;
}
