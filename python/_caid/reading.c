/* SPDX-License-Identifier: Apache-2.0 */
/* Client._read_files(): files into a device's memory, by all the threads that call it. */
#include "module.h"

struct files {
    PyObject *paths; /* a tuple, for messages */
    int *fds;
    Py_buffer stretches, control;
};

static void
files_deinit(struct files *files)
{
    PyMem_Free(files->fds);
    PyBuffer_Release(&files->stretches);
    PyBuffer_Release(&files->control);
}

static int
files_init(struct files *files, PyObject *paths, PyObject *fds, PyObject *stretches,
           PyObject *control)
{
    if (PyTuple_GET_SIZE(paths) != PyTuple_GET_SIZE(fds)) {
        PyErr_SetString(PyExc_TypeError, "fds: one for each path is needed");
        return -1;
    }
    files->paths = paths;
    files->fds = PyMem_Calloc((size_t)PyTuple_GET_SIZE(fds) + 1, sizeof(int));
    if (!files->fds) {
        PyErr_NoMemory();
        return -1;
    }
    for (Py_ssize_t i = 0; i < PyTuple_GET_SIZE(fds); i++) {
        files->fds[i] = PyObject_AsFileDescriptor(PyTuple_GET_ITEM(fds, i));
        if (files->fds[i] < 0)
            return -1;
    }
    if (PyObject_GetBuffer(stretches, &files->stretches, PyBUF_SIMPLE) < 0)
        return -1;
    return PyObject_GetBuffer(control, &files->control, PyBUF_WRITABLE);
}

/* How many reads the stretches take; -1 where the stretches are no valid table. */
static int64_t
count_reads(const struct files *files, size_t n)
{
    const struct cuda_stretch *stretches = files->stretches.buf;
    uint64_t first = 0;

    for (size_t i = 0; i < n; i++) {
        if (stretches[i].file >= (uint64_t)PyTuple_GET_SIZE(files->paths) ||
            stretches[i].nbytes > INT64_MAX / 2 || stretches[i].first != first)
            return -1;
        first += (stretches[i].nbytes + CUDA_READ_SIZE - 1) / CUDA_READ_SIZE;
    }
    return files->control.len == 3 * sizeof(uint64_t) ? (int64_t)first : -1;
}

PyObject *
py_client_read_files(PyObject *op, PyObject *const *args, Py_ssize_t n_args)
{
    struct client_object *self = py_client(op);
    __attribute__((cleanup(files_deinit))) struct files files = {0};
    PyObject *paths, *fds, *table, *shared;
    struct caid_error error = {0};
    uint64_t stream;
    int32_t device;
    int64_t n_reads, file;
    int r;

    if (PY_ARGS(self->state, "read_files", PY_TUPLE(paths), PY_TUPLE(fds), PY_ARG(table),
                PY_ARG(shared), PY_ARG(device), PY_ARG(stream)) < 0 ||
        files_init(&files, paths, fds, table, shared) < 0)
        return NULL;
    size_t n = (size_t)files.stretches.len / sizeof(struct cuda_stretch);
    n_reads = count_reads(&files, n);
    if (n_reads < 0) {
        PyErr_SetString(PyExc_ValueError, "stretches: no valid table of the files");
        return NULL;
    }
    _Atomic uint64_t *control = files.control.buf;
    const struct cuda_reading reading = {
        .fds = files.fds,
        .stretches = files.stretches.buf,
        .n_stretches = n,
        .n_reads = (uint64_t)n_reads,
        .next = &control[0],
        .done = &control[1],
        .stop = &control[2],
    };
    struct caid_client *c = py_client_enter(self);
    if (!c)
        return NULL;
    WITHOUT_GIL(r = cuda_read(c, device, stream, &reading, &file, &error));
    py_client_leave(self);
    if (r < 0 && file >= 0)
        return py_error_raise_code(self->state, CAID_ERR_SYSTEM, -r, "%S: %s",
                                   PyTuple_GET_ITEM(files.paths, (Py_ssize_t)file),
                                   error.message);
    return r < 0 ? py_error_raise(self->state, r, &error) : py_none(0);
}
