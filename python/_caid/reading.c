/* SPDX-License-Identifier: Apache-2.0 */
/* Client._read_files(): files into the memory of devices or of the host. */
#include "module.h"

struct files {
    PyObject *paths; /* a tuple, for messages */
    Py_buffer files, stretches, targets, control;
};

static void
files_deinit(struct files *files)
{
    PyBuffer_Release(&files->files);
    PyBuffer_Release(&files->stretches);
    PyBuffer_Release(&files->targets);
    PyBuffer_Release(&files->control);
}

static size_t
count(const Py_buffer *buffer, size_t each)
{
    return (size_t)buffer->len / each;
}

static int
files_init(struct files *files, PyObject *paths, PyObject *table, PyObject *stretches,
           PyObject *targets, PyObject *control)
{
    files->paths = paths;
    if (PyObject_GetBuffer(table, &files->files, PyBUF_SIMPLE) < 0 ||
        PyObject_GetBuffer(stretches, &files->stretches, PyBUF_SIMPLE) < 0 ||
        PyObject_GetBuffer(targets, &files->targets, PyBUF_SIMPLE) < 0 ||
        PyObject_GetBuffer(control, &files->control, PyBUF_WRITABLE) < 0)
        return -1;
    const size_t n_targets = count(&files->targets, sizeof(struct cuda_target));
    if (count(&files->files, sizeof(struct cuda_file)) == (size_t)PyTuple_GET_SIZE(paths) &&
        n_targets > 0 && n_targets <= CUDA_TARGETS_MAX &&
        files->control.len == 2 * sizeof(uint64_t))
        return 0;
    PyErr_SetString(PyExc_ValueError, "not one file for each path, or no targets or control");
    return -1;
}

static bool
are_stretches(const struct files *files)
{
    const struct cuda_stretch *stretches = files->stretches.buf;

    for (size_t i = 0; i < count(&files->stretches, sizeof(*stretches)); i++)
        if (stretches[i].file >= (uint64_t)PyTuple_GET_SIZE(files->paths) ||
            stretches[i].nbytes == 0 || stretches[i].nbytes > INT64_MAX / 2 ||
            stretches[i].offset > INT64_MAX / 2)
            return false;
    return true;
}

PyObject *
py_client_read_files(PyObject *op, PyObject *const *args, Py_ssize_t n_args)
{
    struct client_object *self = py_client(op);
    __attribute__((cleanup(files_deinit))) struct files files = {0};
    PyObject *paths, *table, *stretches, *targets, *shared;
    struct caid_error error = {0};
    uint32_t n_threads;
    int32_t gate;
    int64_t file;
    int r;

    if (PY_ARGS(self->state, "read_files", PY_TUPLE(paths), PY_ARG(table), PY_ARG(stretches),
                PY_ARG(targets), PY_ARG(gate), PY_ARG(shared), PY_ARG(n_threads)) < 0 ||
        files_init(&files, paths, table, stretches, targets, shared) < 0)
        return NULL;
    if (!are_stretches(&files)) {
        PyErr_SetString(PyExc_ValueError, "stretches: no valid table of the files");
        return NULL;
    }
    _Atomic uint64_t *control = files.control.buf;
    const struct cuda_reading reading = {
        .files = files.files.buf,
        .n_files = count(&files.files, sizeof(struct cuda_file)),
        .stretches = files.stretches.buf,
        .n_stretches = count(&files.stretches, sizeof(struct cuda_stretch)),
        .targets = files.targets.buf,
        .n_targets = count(&files.targets, sizeof(struct cuda_target)),
        .gate = gate,
        .n_threads = n_threads,
        .done = &control[0],
        .stop = &control[1],
    };
    struct caid_client *c = py_client_enter(self);
    if (!c)
        return NULL;
    WITHOUT_GIL(r = cuda_read(c, &reading, &file, &error));
    py_client_leave(self);
    if (r < 0 && file >= 0)
        return py_error_raise_code(self->state, CAID_ERR_SYSTEM, -r, "%S: %s",
                                   PyTuple_GET_ITEM(files.paths, (Py_ssize_t)file),
                                   error.message);
    return r < 0 ? py_error_raise(self->state, r, &error) : py_none(0);
}
