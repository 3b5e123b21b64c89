/* SPDX-License-Identifier: Apache-2.0 */
/*
 * The two C functions of PyTorch's pluggable allocator, which the extension exports, and the table
 * of their arenas: one for each CUDA ordinal of the process.
 *
 * PyTorch calls them from any thread, with the GIL or without it, while the interpreter ends and
 * after that, in a forked child, and when the client is closed: so they use nothing of Python's. An
 * entry of the table and its arena (py_arena_pin()) live as long as the process, since PyTorch may
 * free its memory at any time. A later entry for the same ordinal serves allocations from then on;
 * memory is freed by the arena that it came from.
 */
#include "arena.h"

#include <errno.h>
#include <stdarg.h>
#include <stdatomic.h>
#include <stdlib.h>
#include <sys/types.h>

struct entry {
    int ordinal;
    struct caid_arena *arena;
    struct entry *next; /* older ones */
};

struct failure {
    int r;
    struct caid_error error;
};

static _Atomic(struct entry *) table;
static _Atomic(struct failure *) last; /* what py_torch_error() returns next */

/* ---- failures: the functions have no other way to tell of them ---- */

static void
keep_failure(int r, const struct caid_error *error)
{
    struct failure *failure = malloc(sizeof(*failure));

    if (!failure)
        return;
    *failure = (struct failure){.r = r, .error = *error};
    free(atomic_exchange(&last, failure));
}

__attribute__((format(printf, 3, 4))) static void
fail(enum caid_code code, int errnum, const char *format, ...)
{
    struct caid_error error = {.code = (int32_t)code};
    va_list va;

    va_start(va, format);
    vsnprintf(error.message, sizeof(error.message), format, va);
    va_end(va);
    keep_failure(-errnum, &error);
}

/* ---- allocating ---- */

/* The first entry for an ordinal, from this one on. */
static struct entry *
torch_find(struct entry *entry, int ordinal)
{
    while (entry && entry->ordinal != ordinal)
        entry = entry->next;
    return entry;
}

/* As cudaMalloc(): NULL for 0 bytes, and where there is no memory, which PyTorch takes for "out
 * of memory". */
__attribute__((visibility("default"))) void *caid_torch_malloc(ssize_t size, int device,
                                                               void *stream);

void *
caid_torch_malloc(ssize_t size, int device, void *stream)
{
    struct entry *entry = torch_find(atomic_load(&table), device);
    struct caid_error error = {0};
    uint64_t ptr = 0;
    int r;

    if (size == 0)
        return NULL;
    if (size < 0) {
        fail(CAID_ERR_INVALID, EINVAL, "an allocation of %zd bytes", size);
        return NULL;
    }
    if (!entry) {
        fail(CAID_ERR_DEVICE, ENODEV,
             "nothing is allocated on CUDA device %d: the daemon has not got it, or "
             "caid.torch.allocator() was not called",
             device);
        return NULL;
    }
    /* PyTorch allocates while it captures graphs, on this stream or those of other threads. */
    r = ON_STREAM((uintptr_t)stream, caid_arena_alloc(entry->arena, (uint64_t)size,
                                                      CAID_ARENA_LEASE_FIRST, &ptr, &error));
    if (r < 0)
        keep_failure(r, &error);
    return r < 0 ? NULL : (void *)(uintptr_t)ptr;
}

/* Work that uses the memory may still run: the arena waits for it. The stream is that of the
 * allocation and may have been destroyed, so it is not used. PyTorch frees nothing while it
 * captures a graph, since cudaFree() would end the capture. */
__attribute__((visibility("default"))) void caid_torch_free(void *ptr, ssize_t size, int device,
                                                            void *stream);

void
caid_torch_free(void *ptr, ssize_t Py_UNUSED(size), int device, void *Py_UNUSED(stream))
{
    struct caid_error error = {.code = CAID_ERR_INVALID};
    struct entry *entry = torch_find(atomic_load(&table), device);
    int r = -EINVAL;

    if (!ptr)
        return;
    for (; entry && r < 0 && error.code == CAID_ERR_INVALID;
         entry = torch_find(entry->next, device))
        r = caid_arena_free(entry->arena, (uint64_t)(uintptr_t)ptr, 0, &error);
    if (r < 0)
        keep_failure(r, &error);
}

/* ---- the module's side ---- */

static int
set(int ordinal, struct caid_arena *arena)
{
    struct entry *entry, *present = torch_find(atomic_load(&table), ordinal);

    if (present && present->arena == arena)
        return 0;
    entry = calloc(1, sizeof(*entry));
    if (!entry) {
        PyErr_NoMemory();
        return -1;
    }
    entry->ordinal = ordinal;
    entry->arena = arena;
    entry->next = atomic_load(&table);
    while (!atomic_compare_exchange_weak(&table, &entry->next, entry))
        ;
    return 0;
}

PyObject *
py_torch_set(PyObject *module, PyObject *args)
{
    struct caid_arena *arena;
    PyObject *op;
    int ordinal;

    if (!PyArg_ParseTuple(args, "iO:torch_set", &ordinal, &op))
        return NULL;
    arena = py_arena_pin(PyModule_GetState(module), op);
    if (!arena || set(ordinal, arena) < 0)
        return NULL;
    Py_RETURN_NONE;
}

PyObject *
py_torch_keep(PyObject *Py_UNUSED(module), PyObject *op)
{
    Py_INCREF(op); /* never given back */
    Py_RETURN_NONE;
}

PyObject *
py_torch_error(PyObject *module, PyObject *Py_UNUSED(unused))
{
    struct failure *failure = atomic_exchange(&last, NULL);
    PyObject *type, *value, *traceback;

    if (!failure)
        Py_RETURN_NONE;
    py_error_raise(PyModule_GetState(module), failure->r, &failure->error);
    free(failure);
    PyErr_Fetch(&type, &value, &traceback);
    PyErr_NormalizeException(&type, &value, &traceback);
    Py_XDECREF(type);
    Py_XDECREF(traceback);
    return value;
}
