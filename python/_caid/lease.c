/* SPDX-License-Identifier: Apache-2.0 */
/*
 * Lease: one array that a client holds. The Array that it was made for, every view, every copy
 * under way, every HostView and every tensor that another library has taken have a share of it
 * each. The lease ends, which closes the array, with its last share, or with the object. It holds
 * its Client alive.
 *
 * A Client that is closed ends its leases, so that the daemon may give their memory on at once.
 * Leases with HostViews or tensors are excepted: their memory stays mapped until their last share
 * is given up, and is not read or written in other ways any more.
 */
#include "handle.h"

#include <errno.h>
#include <stddef.h>
#include <structmember.h>

PY_CAST(lease);

static bool
lease_is_closed(const struct lease_object *self)
{
    return !self->array || !self->client || py_client_is_closed(self->client);
}

/* ---- what it tells ---- */

static PyObject *
fact_make(const struct caid_array_info *info, enum lease_fact what)
{
    switch (what) {
    case LEASE_SHAPE: return py_dims_tuple(info->shape, info->ndim);
    case LEASE_STRIDES: return py_dims_tuple(info->strides, info->ndim);
    case LEASE_TYPESTR: return py_text_or_none(info->typestr);
    case LEASE_DESCR: return py_text_or_none(info->descr);
    case LEASE_NAME: return py_text_or_none(info->name);
    case LEASE_POOL: return py_text_or_none(info->pool);
    case LEASE_MEMORY: return py_text_or_none(info->memory);
    default: return py_text_or_none(info->metadata);
    }
}

/* Gives one of the facts, made where it was not yet. Borrowed; NULL with an exception set. */
static PyObject *
fact(struct lease_object *self, enum lease_fact what)
{
    if (!self->facts[what] && self->array)
        self->facts[what] = fact_make(caid_array_get_info(self->array), what);
    else if (!self->facts[what])
        PyErr_SetString(PyExc_MemoryError,
                        "this was not kept when the array was closed: no memory was left");
    return self->facts[what];
}

static PyObject *
lease_get_fact(PyObject *op, void *what)
{
    PyObject *value = fact(lease(op), (enum lease_fact)(uintptr_t)what);

    Py_XINCREF(value);
    return value;
}

/* Makes all facts before the array ends. One for which there is no memory is missing from then
 * on. */
static void
facts_make(struct lease_object *self)
{
    PyObject *type, *value, *traceback;

    PyErr_Fetch(&type, &value, &traceback);
    for (int i = 0; i < LEASE_FACT_MAX; i++)
        if (!fact(self, (enum lease_fact)i))
            PyErr_Clear();
    PyErr_Restore(type, value, traceback);
}

static int
lease_check(struct lease_object *self)
{
    PyObject *name;

    if (!lease_is_closed(self))
        return py_client_check(self->client);
    if (!self->client) {
        PyErr_SetString(PyExc_ReferenceError, "the array was collected");
        return -1;
    }
    name = fact(self, LEASE_NAME);
    if (name)
        py_error_raise_code(self->client->state, CAID_ERR_CLOSED, EBADF,
                            name == Py_None ? "the array is closed" : "the array %R is closed",
                            name);
    return -1;
}

/* ---- its end ---- */

static void
lease_unlink(struct lease_object *self)
{
    if (!self->link.le_prev)
        return;
    LIST_REMOVE(self, link);
    self->link.le_prev = NULL;
}

/* Takes the array out of the lease: one thread alone gets it. */
static struct caid_array *
lease_take_array(struct lease_object *self)
{
    struct caid_array *array = self->array;

    self->array = NULL;
    lease_unlink(self);
    return array;
}

static void
lease_end(struct lease_object *self)
{
    struct caid_array *ended = lease_take_array(self);

    if (ended) {
        WITHOUT_GIL(caid_array_close(ended));
    }
}

/* Ends the lease where only one stream's work has to be waited for. On failure it has not ended. */
static int
lease_end_on(struct lease_object *self, uint64_t stream)
{
    struct caid_array *ended = lease_take_array(self);
    struct caid_error error = {0};
    int r = 0;

    if (!ended)
        return 0;
    WITHOUT_GIL(r = caid_array_close_on(ended, stream, &error));
    if (r == 0)
        return 0;
    self->array = ended;
    LIST_INSERT_HEAD(&self->client->leases, self, link);
    py_error_raise(self->client->state, r, &error);
    return -1;
}

void
py_leases_end(struct client_object *client, bool leave)
{
    struct lease_object *next;

    /* The walk starts anew each time: leases come and go while an array is closed. */
    for (struct lease_object *l = LIST_FIRST(&client->leases); l; l = next) {
        next = LIST_NEXT(l, link);
        if (l->n_views > 0)
            continue;
        Py_INCREF(l);
        facts_make(l);
        if (leave)
            lease_take_array(l);
        else
            lease_end(l);
        Py_DECREF(l);
        next = LIST_FIRST(&client->leases);
    }
}

/* ---- the host's address ---- */

/* The host reaches the software driver's device memory at the device's address. */
uintptr_t
py_lease_host(const struct lease_object *self)
{
    if (self->info.host_ptr || !self->client || !py_client_reaches_device(self->client))
        return (uintptr_t)self->info.host_ptr;
    return self->info.ptr;
}

/* ---- shares ---- */

static void
lease_give_up(struct lease_object *self)
{
    if (self->n_shares > 0 && --self->n_shares == 0) {
        facts_make(self);
        lease_end(self);
    }
}

static void
lease_drop(struct lease_object *self)
{
    self->other_closes = true;
    lease_give_up(self);
}

int
py_lease_pin(struct lease_object *self)
{
    if (lease_check(self) < 0)
        return -1;
    self->n_shares++;
    self->client->n_calls++;
    return 0;
}

struct lease_object *
py_lease_get_pinned(const struct module_state *state, PyObject *op)
{
    if (!Py_IS_TYPE(op, state->lease_type)) {
        PyErr_SetString(PyExc_TypeError, "a Lease is needed");
        return NULL;
    }
    return py_lease_pin(lease(op)) < 0 ? NULL : lease(op);
}

void
py_lease_unpin(struct lease_object *self)
{
    lease_give_up(self); /* the call has waited for its own work */
    py_client_leave(self->client);
}

Py_ssize_t
py_leases_pin(const struct module_state *state, PyObject *leases,
              struct caid_array **ret_arrays)
{
    Py_ssize_t n = 0;

    for (; n < PyTuple_GET_SIZE(leases); n++) {
        struct lease_object *one = py_lease_get_pinned(state, PyTuple_GET_ITEM(leases, n));
        if (!one)
            break;
        if (ret_arrays)
            ret_arrays[n] = one->array;
    }
    return n;
}

void
py_leases_unpin(PyObject *leases, Py_ssize_t n)
{
    while (n > 0)
        py_lease_unpin(lease(PyTuple_GET_ITEM(leases, --n)));
}

void
py_leases_moved(PyObject *leases)
{
    for (Py_ssize_t i = 0; i < PyTuple_GET_SIZE(leases); i++) {
        struct lease_object *one = lease(PyTuple_GET_ITEM(leases, i));
        one->info.ptr = caid_array_get_info(one->array)->ptr;
    }
}

int
py_lease_use(struct lease_object *self)
{
    if (lease_check(self) < 0)
        return -1;
    Py_INCREF(self);
    self->n_shares++;
    return 0;
}

void
py_lease_unuse(struct lease_object *self)
{
    lease_give_up(self); /* the bracket's fence stands for its work: the lease need not wait */
    Py_DECREF(self);
}

void
py_lease_view_begin(struct lease_object *self)
{
    self->n_shares++;
    self->n_views++;
}

void
py_lease_view_end(struct lease_object *self)
{
    self->n_views--;
    lease_drop(self);
}

/* Gives up a share that was last used on a stream. The lease's end waits for that stream alone
 * where all shares named it, else for all work of the context. */
static int
lease_drop_on(struct lease_object *self, uint64_t stream)
{
    bool other = self->other_closes || (self->stream && self->stream != stream);

    if (self->n_shares == 1 && !other) {
        facts_make(self);
        if (lease_end_on(self, stream) < 0)
            return -1;
        self->n_shares = 0;
        return 0;
    }
    lease_drop(self);
    self->other_closes = other;
    self->stream = stream;
    return 0;
}

/* ---- making one ---- */

PyObject *
py_lease_new(struct client_object *client, struct caid_array *array)
{
    PyTypeObject *type = client->state->lease_type;
    PyObject *op = type->tp_alloc(type, 0);

    if (!op) {
        WITHOUT_GIL(caid_array_close(array));
        return NULL;
    }
    Py_INCREF(client);
    lease(op)->client = client;
    lease(op)->array = array;
    lease(op)->n_shares = 1;
    lease(op)->info = *caid_array_get_info(array);
    LIST_INSERT_HEAD(&client->leases, lease(op), link);
    return op;
}

static int
lease_traverse(PyObject *op, visitproc visit, void *arg)
{
    Py_VISIT(Py_TYPE(op));
    Py_VISIT(lease(op)->client);
    Py_VISIT(lease(op)->pending);
    return 0;
}

static int
lease_clear(PyObject *op)
{
    lease_end(lease(op));
    Py_CLEAR(lease(op)->pending);
    Py_CLEAR(lease(op)->client);
    return 0;
}

static void
lease_dealloc(PyObject *op)
{
    struct lease_object *self = lease(op);
    PyTypeObject *type = Py_TYPE(op);

    PyObject_GC_UnTrack(op);
    lease_clear(op);
    for (int i = 0; i < LEASE_FACT_MAX; i++)
        Py_XDECREF(self->facts[i]);
    type->tp_free(op);
    Py_DECREF(type);
}

/* ---- methods ---- */

static PyObject *
lease_check_now(PyObject *op, PyObject *Py_UNUSED(unused))
{
    struct lease_object *self = lease(op);

    if (lease_check(self) < 0)
        return NULL;
    if (!caid_array_is_mapped(self->array))
        return py_error_raise_code(self->client->state, CAID_ERR_CLOSED, EBADF,
                                   "the array %R is unmapped: map() maps it again",
                                   fact(self, LEASE_NAME));
    Py_RETURN_NONE;
}

/* Calls libcaid with the array, as PY_CLIENT_CALL(). The lease is pinned: no other thread closes
 * it. */
#define LEASE_CALL(self, call)                                     \
    ({                                                             \
        struct caid_error error = {0};                             \
        int r_ = py_lease_pin(self);                               \
        if (r_ == 0) {                                             \
            WITHOUT_GIL(r_ = (call));                              \
            py_lease_unpin(self);                                  \
            if (r_ < 0)                                            \
                py_error_raise((self)->client->state, r_, &error); \
        }                                                          \
        r_;                                                        \
    })

static PyObject *
lease_share(PyObject *op, PyObject *Py_UNUSED(unused))
{
    if (lease_check(lease(op)) < 0)
        return NULL;
    lease(op)->n_shares++;
    Py_INCREF(op);
    return op;
}

static PyObject *
lease_close(PyObject *op, PyObject *const *args, Py_ssize_t n_args)
{
    struct lease_object *self = lease(op);
    uint64_t stream;

    if (n_args == 0 || args[0] == Py_None) {
        lease_drop(self);
        Py_RETURN_NONE;
    }
    if (!self->client) /* collected: the lease has ended */
        Py_RETURN_NONE;
    if (PY_ARGS(self->client->state, "close", PY_ARG(stream)) < 0)
        return NULL;
    return py_none(lease_drop_on(self, stream));
}

/* Gives a share of an array without bytes up. Its last one is given up when the other lease's array
 * has been closed and the work on it is done. */
static PyObject *
lease_close_with(PyObject *op, PyObject *other)
{
    struct lease_object *self = lease(op), *with;
    struct caid_array *ended = NULL;
    int r = -1;

    if (self->n_shares != 1 || !self->client) {
        lease_drop(self);
        Py_RETURN_NONE;
    }
    with = py_lease_get_pinned(self->client->state, other);
    if (!with)
        return NULL;
    facts_make(self);
    self->n_shares = 0;
    ended = lease_take_array(self);
    if (ended)
        r = caid_array_close_with(ended, with->array, NULL);
    if (ended && r < 0) {
        WITHOUT_GIL(caid_array_close(ended));
    }
    py_lease_unpin(with);
    Py_RETURN_NONE;
}

/* Whether the lease stays when its Client is closed, as one with HostViews does. */
static PyObject *
lease_outlive(PyObject *op, PyObject *does)
{
    lease(op)->n_views += does == Py_True ? 1 : -1;
    Py_RETURN_NONE;
}

/* Bytes from the first element to the end of the last; strides of arrays are not negative. */
static uint64_t
info_span(const struct caid_array_info *info)
{
    uint64_t span = info->itemsize;

    if (info->nbytes == 0)
        return 0;
    for (uint32_t i = 0; i < info->ndim; i++)
        span += (uint64_t)(info->shape[i] - 1) * (uint64_t)info->strides[i];
    return span;
}

static PyObject *
lease_host_view(PyObject *op, PyObject *args)
{
    struct lease_object *self = lease(op);
    uintptr_t host = py_lease_host(self);
    unsigned long long offset, nbytes;
    uint64_t span;
    int readonly;

    if (!PyArg_ParseTuple(args, "KKp:host_view", &offset, &nbytes, &readonly) ||
        lease_check(self) < 0)
        return NULL;
    span = info_span(caid_array_get_info(self->array));
    if (offset > span || nbytes > span - offset) {
        PyErr_Format(PyExc_ValueError, "host_view: [%llu, +%llu) exceeds %llu bytes", offset,
                     nbytes, (unsigned long long)span);
        return NULL;
    }
    if (nbytes > 0 && !host)
        return py_error_raise_code(self->client->state, CAID_ERR_UNSUPPORTED, ENOTSUP,
                                   "the host does not reach this memory");
    return py_host_view_new(self, host + offset, nbytes, readonly || self->info.readonly);
}

/* (handle, offset, size) */
static PyObject *
lease_ipc_handle(PyObject *op, PyObject *Py_UNUSED(unused))
{
    struct lease_object *self = lease(op);
    struct caid_ipc_handle handle;

    if (LEASE_CALL(self, caid_array_ipc_handle(self->array, &handle, &error)) < 0)
        return NULL;
    return py_ipc_handle_tuple(&handle);
}

/* ---- work that may not be done ---- */

/* Gives the list of marks that the lease has, or sets the one that is given: the first thread
 * wins. */
static PyObject *
lease_pending_or(PyObject *op, PyObject *pending)
{
    struct lease_object *self = lease(op);

    if (!self->pending) {
        Py_INCREF(pending);
        self->pending = pending;
    }
    Py_INCREF(self->pending);
    return self->pending;
}

/* ---- publish ---- */

/* Renews the facts that publish() has changed. Both are made before either is replaced. */
static int
facts_renew(struct lease_object *self)
{
    const struct caid_array_info *info = caid_array_get_info(self->array);
    _cleanup_py_ PyObject *name = fact_make(info, LEASE_NAME);
    _cleanup_py_ PyObject *metadata = fact_make(info, LEASE_METADATA);

    if (!name || !metadata)
        return -1;
    Py_XSETREF(self->facts[LEASE_NAME], py_take(&name));
    Py_XSETREF(self->facts[LEASE_METADATA], py_take(&metadata));
    self->info.generation = info->generation;
    return 0;
}

static PyObject *
lease_publish_as(struct lease_object *self, const char *name,
                 const struct caid_publish_options *options)
{
    uint64_t generation = 0;
    int r;

    if (py_lease_pin(self) < 0)
        return NULL;
    r = LEASE_CALL(self, caid_array_publish(self->array, name, options, &generation, &error));
    if (r >= 0)
        r = facts_renew(self);
    py_lease_unpin(self);
    return r < 0 ? NULL : PyLong_FromUnsignedLongLong(generation);
}

static PyObject *
lease_publish(PyObject *op, PyObject *const *args, Py_ssize_t n_args)
{
    struct lease_object *self = lease(op), *companion = NULL;
    struct caid_publish_options options = CAID_INIT(struct caid_publish_options);
    PyObject *with, *ret;
    const char *name;
    bool is_new;

    if (lease_check(self) < 0 ||
        PY_ARGS(self->client->state, "publish", PY_NAME(name),
                PY_TEXT(options.metadata, INVALID), PY_ARG(options.stream), PY_ARG(is_new),
                PY_ARG(with), PY_ARG(options.ttl_ns)) < 0)
        return NULL;
    options.flags = is_new ? CAID_PUBLISH_NEW : 0;
    if (with != Py_None) {
        companion = py_lease_get_pinned(self->client->state, with);
        if (!companion)
            return NULL;
        options.companion = companion->array;
    }
    ret = lease_publish_as(self, name, &options);
    if (companion)
        py_lease_unpin(companion);
    return ret;
}

static PyObject *
lease_publish_droppable(PyObject *op, PyObject *const *args, Py_ssize_t n_args)
{
    struct lease_object *self = lease(op);
    struct caid_publish_options options = CAID_INIT(struct caid_publish_options);
    const char *name;

    if (lease_check(self) < 0 ||
        PY_ARGS(self->client->state, "publish_droppable", PY_NAME(name),
                PY_TEXT(options.metadata, INVALID), PY_ARG(options.stream),
                PY_ARG(options.after), PY_ARG(options.priority), PY_ARG(options.reload_ns)) < 0)
        return NULL;
    options.flags = CAID_PUBLISH_DROPPABLE;
    return lease_publish_as(self, name, &options);
}

/* Publishes behind the work that is on the stream by now; what becomes of it: _publish_wait(). */
static PyObject *
lease_publish_behind(PyObject *op, PyObject *const *args, Py_ssize_t n_args)
{
    struct lease_object *self = lease(op);
    struct caid_publish_options options = CAID_INIT(struct caid_publish_options);
    const char *name;

    if (lease_check(self) < 0 ||
        PY_ARGS(self->client->state, "publish_behind", PY_NAME(name),
                PY_TEXT(options.metadata, INVALID), PY_ARG(options.stream)) < 0)
        return NULL;
    return py_none(
        LEASE_CALL(self, caid_array_publish_behind(self->array, name, &options, &error)));
}

static PyObject *
lease_publish_wait(PyObject *op, PyObject *timeout)
{
    struct lease_object *self = lease(op);
    uint64_t generation = 0, timeout_ns;
    int r;

    if (py_timeout_get(timeout, &timeout_ns) < 0 || py_lease_pin(self) < 0)
        return NULL;
    r = LEASE_CALL(self, caid_array_publish_wait(self->array, timeout_ns, &generation, &error));
    if (r >= 0)
        r = facts_renew(self);
    py_lease_unpin(self);
    return r < 0 ? NULL : PyLong_FromUnsignedLongLong(generation);
}

static PyObject *
lease_open_companion(PyObject *op, PyObject *Py_UNUSED(unused))
{
    struct lease_object *self = lease(op);
    PyObject *ret;

    if (py_lease_pin(self) < 0)
        return NULL;
    ret = PY_LEASE_OF(self->client, caid_array_open_companion(self->array, &array, &error));
    py_lease_unpin(self);
    return ret;
}

/* ---- send ---- */

/* A ticket for the elements at an offset, as an array of its own: for this client alone. */
static PyObject *
lease_part(PyObject *op, PyObject *const *args, Py_ssize_t n_args)
{
    struct lease_object *self = lease(op);
    struct caid_part_options options = CAID_INIT(struct caid_part_options);
    _cleanup_dims_ struct dims shape = {0}, strides = {0};
    uint8_t ticket[CAID_TICKET_SIZE];
    uint64_t offset;

    if (lease_check(self) < 0 ||
        PY_ARGS(self->client->state, "part", PY_ARG(offset), PY_TEXT(options.typestr, INVALID),
                PY_TEXT(options.descr, INVALID), PY_ARG(shape), PY_STRIDES(strides, shape),
                PY_ARG(options.stream)) < 0)
        return NULL;
    options.shape = shape.v;
    options.strides = strides.v;
    options.ndim = shape.n;
    options.own = true;
    options.ret_ticket = ticket;
    if (LEASE_CALL(self, caid_array_publish_part(self->array, offset, NULL, &options, NULL,
                                                 &error)) < 0)
        return NULL;
    return PyBytes_FromStringAndSize((const char *)ticket, sizeof(ticket));
}

static PyObject *
lease_send(PyObject *op, PyObject *many)
{
    uint8_t ticket[CAID_TICKET_SIZE];

    if (LEASE_CALL(lease(op),
                   (many == Py_True ? caid_array_refer : caid_array_send)(lease(op)->array,
                                                                          ticket, &error)) < 0)
        return NULL;
    return PyBytes_FromStringAndSize((const char *)ticket, sizeof(ticket));
}

static PyObject *
lease_keep_mapping(PyObject *op, PyObject *Py_UNUSED(unused))
{
    PyObject *made;

    if (py_lease_pin(lease(op)) < 0)
        return NULL;
    made = py_mapping_new(lease(op));
    py_lease_unpin(lease(op));
    return made;
}

static PyObject *
lease_dmabuf(PyObject *op, PyObject *Py_UNUSED(unused))
{
    uint64_t offset = 0;
    int fd = -1;

    if (LEASE_CALL(lease(op), caid_array_dmabuf(lease(op)->array, &fd, &offset, &error)) < 0)
        return NULL;
    return Py_BuildValue("iK", fd, (unsigned long long)offset);
}

/* ---- waits ---- */

static PyObject *
lease_cancel(PyObject *op, PyObject *Py_UNUSED(unused))
{
    return py_none(
        LEASE_CALL(lease(op),
                   (caid_set_cancel(lease(op)->client->client, lease(op)->array), 0)));
}

/* ---- memory of the host ---- */

static PyObject *
lease_register(PyObject *op, PyObject *Py_UNUSED(unused))
{
    return py_none(LEASE_CALL(lease(op), caid_array_register(lease(op)->array, &error)));
}

/* ---- discard ---- */

static PyObject *
lease_discard(PyObject *op, PyObject *Py_UNUSED(unused))
{
    return py_none(LEASE_CALL(lease(op), caid_array_discard(lease(op)->array, &error)));
}

/* ---- the type ---- */

static PyObject *
lease_get_closed(PyObject *op, void *Py_UNUSED(closure))
{
    return PyBool_FromLong(lease_is_closed(lease(op)));
}

static PyObject *
lease_get_live(PyObject *op, void *Py_UNUSED(closure))
{
    return PyBool_FromLong(!lease_is_closed(lease(op)) && py_client_is_live(lease(op)->client));
}

static PyObject *
lease_get_host(PyObject *op, void *Py_UNUSED(closure))
{
    return PyLong_FromUnsignedLongLong(py_lease_host(lease(op)));
}

static PyObject *
lease_get_ptr(PyObject *op, void *Py_UNUSED(closure))
{
    if (lease_check(lease(op)) < 0)
        return NULL;
    return PyLong_FromUnsignedLongLong(lease(op)->info.ptr);
}

static PyMethodDef lease_methods[] = {
    {"check", lease_check_now, METH_NOARGS,
     PyDoc_STR("Raises ClosedError, also of one that is unmapped, or ForkedError.")},
    {"share", lease_share, METH_NOARGS,
     PyDoc_STR("One share more, to be given up by close(). Returns self.")},
    {"close", PY_FASTCALL(lease_close), METH_FASTCALL,
     PyDoc_STR("Gives a share up, last used on a stream; the last one ends the lease.")},
    {"_close_with", lease_close_with, METH_O,
     PyDoc_STR(
         "Gives up a share of an array of no bytes; the last one ends behind that lease.")},
    {"_outlive", lease_outlive, METH_O,
     PyDoc_STR("True: it stays when its Client is closed. False takes one True back.")},
    {"_register", lease_register, METH_NOARGS,
     PyDoc_STR("Memory that was mapped for the host alone is a device's, too.")},
    {"host_view", lease_host_view, METH_VARARGS,
     PyDoc_STR("Memory that the host can reach as a buffer.")},
    {"ipc_handle", lease_ipc_handle, METH_NOARGS,
     PyDoc_STR("(handle, offset, size) of legacy memory.")},
    {"pending_or", lease_pending_or, METH_O,
     PyDoc_STR("Sets `pending` where it is not set: what it is.")},
    {"publish", PY_FASTCALL(lease_publish), METH_FASTCALL,
     PyDoc_STR("Puts the array under a name: its generation.")},
    {"_publish_droppable", PY_FASTCALL(lease_publish_droppable), METH_FASTCALL,
     PyDoc_STR("publish(), of a set that the daemon may drop.")},
    {"_publish_behind", PY_FASTCALL(lease_publish_behind), METH_FASTCALL,
     PyDoc_STR("Puts the array under a name when a stream's work has landed.")},
    {"_publish_wait", lease_publish_wait, METH_O,
     PyDoc_STR("Waits for what the last _publish_behind() has come to: the generation.")},
    {"open_companion", lease_open_companion, METH_NOARGS,
     PyDoc_STR("The Lease of the array that this one keeps.")},
    {"part", PY_FASTCALL(lease_part), METH_FASTCALL,
     PyDoc_STR("A ticket for this client, for elements of the array as an array of its own.")},
    {"send", lease_send, METH_O,
     PyDoc_STR("A ticket by which another process takes it; True: by which many may.")},
    {"_keep_mapping", lease_keep_mapping, METH_NOARGS,
     PyDoc_STR("A Mapping, which keeps the block mapped without a lease.")},
    {"_dmabuf", lease_dmabuf, METH_NOARGS,
     PyDoc_STR("(fd, offset) of the block as a dma-buf.")},
    {"_cancel", lease_cancel, METH_NOARGS,
     PyDoc_STR("Ends waits of Client._vacate() for the set, now and from now on.")},
    {"discard", lease_discard, METH_NOARGS, PyDoc_STR("Takes the contents as they are.")},
    {0},
};

#define TELLS(name, what)                                           \
    {                                                               \
        name, lease_get_fact, NULL, NULL, (void *)(uintptr_t)(what) \
    }

static PyGetSetDef lease_getset[] = {
    {"closed", lease_get_closed, NULL, PyDoc_STR("Whether the lease, or its client, ended."),
     NULL},
    {"_live", lease_get_live, NULL, PyDoc_STR("Whether it can be used in this process."), NULL},
    {"ptr", lease_get_ptr, NULL, PyDoc_STR("Device address of the first element."), NULL},
    {"host", lease_get_host, NULL, PyDoc_STR("The same for the host; 0: it reaches none."),
     NULL},
    TELLS("shape", LEASE_SHAPE),
    TELLS("strides", LEASE_STRIDES),
    TELLS("typestr", LEASE_TYPESTR),
    TELLS("descr", LEASE_DESCR),
    TELLS("name", LEASE_NAME),
    TELLS("pool", LEASE_POOL),
    TELLS("memory", LEASE_MEMORY),
    TELLS("metadata", LEASE_METADATA),
    {0},
};

#define AT(field) offsetof(struct lease_object, field)

static PyMemberDef lease_members[] = {
    {"client", T_OBJECT_EX, AT(client), READONLY, NULL},
    {"nbytes", T_ULONGLONG, AT(info.nbytes), READONLY, NULL},
    {"itemsize", T_ULONGLONG, AT(info.itemsize), READONLY, NULL},
    {"generation", T_ULONGLONG, AT(info.generation), READONLY, NULL},
    {"block", T_ULONGLONG, AT(info.block), READONLY, NULL},
    {"offset", T_ULONGLONG, AT(info.offset), READONLY, NULL},
    {"block_size", T_ULONGLONG, AT(info.block_size), READONLY, NULL},
    {"device", T_INT, AT(info.device), READONLY, NULL},
    {"mapped_ordinal", T_INT, AT(info.mapped_ordinal), READONLY, NULL},
    {"mapped_device", T_INT, AT(info.mapped_device), READONLY, NULL},
    {"uid", T_UINT, AT(info.uid), READONLY, NULL},
    {"members", T_ULONGLONG, AT(info.members), READONLY, NULL},
    {"layout", T_ULONGLONG, AT(info.layout), READONLY, NULL},
    {"readonly", T_BOOL, AT(info.readonly), READONLY, NULL},
    {"created", T_BOOL, AT(created), READONLY, NULL},
    {"pending", T_OBJECT, AT(pending), READONLY, NULL},
    {0},
};

PY_SPEC(lease, "caid._caid.Lease", Py_TPFLAGS_HAVE_GC, "An array that a client holds.",
        {Py_tp_new, py_tp_new}, {Py_tp_traverse, lease_traverse}, {Py_tp_clear, lease_clear},
        {Py_tp_dealloc, lease_dealloc}, {Py_tp_methods, lease_methods},
        {Py_tp_getset, lease_getset}, {Py_tp_members, lease_members});
