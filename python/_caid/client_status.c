/* SPDX-License-Identifier: Apache-2.0 */
/*
 * Client: the daemon, its devices and their memory. Results are plain tuples in the order of the
 * fields of the classes in caid/_records.py, which name them.
 */
#include "module.h"

static struct client_object *
client(PyObject *op)
{
    return (struct client_object *)op;
}

/* Of a number of 64 bits, for Py_BuildValue()'s K. */
typedef unsigned long long ull;

/* ---- memory ---- */

/* (free, total, used, blocks, arrays, allocated, reserve, available, pending, pending_bytes, pinned,
 * flushes, releases, quarantined, quarantined_bytes, context) */
static PyObject *
memory_tuple(const struct caid_memory_info *i)
{
    return Py_BuildValue("(KKKKKKKKKKKKKKKN)", (ull)i->free, (ull)i->total, (ull)i->used,
                         (ull)i->blocks, (ull)i->arrays, (ull)i->allocated, (ull)i->reserve,
                         (ull)i->available, (ull)i->pending, (ull)i->pending_bytes,
                         (ull)i->pinned, (ull)i->flushes, (ull)i->releases, (ull)i->quarantined,
                         (ull)i->quarantined_bytes, PyBool_FromLong(i->context));
}

PyObject *
py_client_memory_info(PyObject *op, PyObject *device)
{
    struct client_object *self = client(op);
    struct caid_memory_info info = CAID_INIT(struct caid_memory_info);
    struct caid_error error = {0};
    struct caid_client *c;
    int32_t index;
    int r;

    if (py_device_get(self->state, device, &index) < 0)
        return NULL;
    c = py_client_enter(self);
    if (!c)
        return NULL;
    WITHOUT_GIL(r = caid_memory_info(c, index, &info, &error));
    py_client_leave(self);
    return r < 0 ? py_error_raise(self->state, r, &error) : memory_tuple(&info);
}

PyObject *
py_client_flush(PyObject *op, PyObject *device)
{
    struct client_object *self = client(op);
    struct caid_flushed flushed = CAID_INIT(struct caid_flushed);
    struct caid_error error = {0};
    struct caid_client *c;
    int32_t index;
    int r;

    if (py_device_get(self->state, device, &index) < 0)
        return NULL;
    c = py_client_enter(self);
    if (!c)
        return NULL;
    WITHOUT_GIL(r = caid_flush(c, index, &flushed, &error));
    py_client_leave(self);
    if (r < 0)
        return py_error_raise(self->state, r, &error);
    return Py_BuildValue("(KKK)", (ull)flushed.entries, (ull)flushed.blocks,
                         (ull)flushed.bytes);
}

PyObject *
py_client_defer_begin(PyObject *op, PyObject *Py_UNUSED(unused))
{
    return py_client_call(client(op), caid_defer_begin);
}

PyObject *
py_client_defer_end(PyObject *op, PyObject *Py_UNUSED(unused))
{
    return py_client_call(client(op), caid_defer_end);
}

/* ---- the daemon ---- */

/* (server, driver, driver_path, socket, pool, driver_version, pid, uptime_ns, connections, pools,
 * blocks, arrays, names, leases, jobs, release_errors, watches, pending, contexts, brackets, pages,
 * timelines) */
static PyObject *
status_tuple(const struct caid_status *s)
{
    return Py_BuildValue("(NNNNNKKKKKKKKKKKKKKKKK)", py_text_or_none(s->server),
                         py_text_or_none(s->driver), py_text_or_none(s->driver_path),
                         py_text_or_none(s->socket), py_text_or_none(s->pool),
                         (ull)s->driver_version, (ull)s->pid, (ull)s->uptime_ns,
                         (ull)s->connections, (ull)s->pools, (ull)s->blocks, (ull)s->arrays,
                         (ull)s->names, (ull)s->leases, (ull)s->jobs, (ull)s->release_errors,
                         (ull)s->watches, (ull)s->pending, (ull)s->contexts, (ull)s->brackets,
                         (ull)s->pages, (ull)s->timelines);
}

PyObject *
py_client_status(PyObject *op, PyObject *Py_UNUSED(unused))
{
    struct client_object *self = client(op);
    struct caid_status status = CAID_INIT(struct caid_status);
    struct caid_error error = {0};
    struct caid_client *c = py_client_enter(self);
    int r;

    if (!c)
        return NULL;
    WITHOUT_GIL(r = caid_client_status(c, &status, &error));
    py_client_leave(self);
    return r < 0 ? py_error_raise(self->state, r, &error) : status_tuple(&status);
}

/* "" is what is not known. */
static PyObject *
known_or_none(const char *s)
{
    return py_text_or_none(*s ? s : NULL);
}

/* (uuid, name, total, granularity, handoff, kinds, memops, readonly_host, mps, persistence,
 * compute_mode) */
static PyObject *
device_tuple(const struct caid_device *device)
{
    return Py_BuildValue("(NNKKNNNNNNN)", py_text_or_none(device->uuid),
                         py_text_or_none(device->name), (ull)device->total,
                         (ull)device->granularity, py_text_or_none(device->handoff),
                         py_text_or_none(device->kinds), PyBool_FromLong(device->memops),
                         PyBool_FromLong(device->readonly_host), PyBool_FromLong(device->mps),
                         known_or_none(device->persistence),
                         known_or_none(device->compute_mode));
}

PyObject *
py_client_devices(PyObject *op, PyObject *Py_UNUSED(unused))
{
    struct client_object *self = client(op);
    const struct caid_device *devices;
    struct caid_client *c = py_client_enter(self);
    _cleanup_py_ PyObject *list = c ? PyList_New(0) : NULL;
    int n;

    if (!c)
        return NULL;
    n = list ? caid_client_devices(c, &devices) : 0;
    for (int i = 0; i < n; i++) {
        _cleanup_py_ PyObject *device = device_tuple(&devices[i]);
        if (!device || PyList_Append(list, device) < 0) {
            Py_CLEAR(list);
            break;
        }
    }
    py_client_leave(self);
    return py_take(&list);
}

PyObject *
py_client_find_device(PyObject *op, PyObject *ordinal_op)
{
    struct client_object *self = client(op);
    struct caid_error error = {0};
    int32_t ordinal, index = -1;
    struct caid_client *c;
    int r;

    if (py_device_get(self->state, ordinal_op, &ordinal) < 0)
        return NULL;
    c = py_client_enter(self);
    if (!c)
        return NULL;
    WITHOUT_GIL(r = caid_client_find_device(c, ordinal, &index, &error));
    py_client_leave(self);
    return r < 0 ? py_error_raise(self->state, r, &error) : PyLong_FromLong(index);
}
