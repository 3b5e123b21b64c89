/* SPDX-License-Identifier: Apache-2.0 */
/* Client: making, opening and taking arrays, their names, and sets of them. */
#include "handle.h"

/* ---- create ---- */

PyObject *
py_client_create(PyObject *op, PyObject *const *args, Py_ssize_t n_args)
{
    struct client_object *self = py_client(op);
    struct caid_create_options options = CAID_INIT(struct caid_create_options);
    _cleanup_dims_ struct dims shape = {0}, strides = {0};
    PyObject *made;

    if (PY_ARGS(self->state, "create", PY_POOL(options.name), PY_ARG(shape),
                PY_TEXT(options.typestr, INVALID), PY_TEXT(options.descr, INVALID),
                PY_STRIDES(strides, shape), PY_POOL(options.pool), PY_ARG(options.device),
                PY_ARG(options.flags), PY_TEXT(options.memory, INVALID),
                PY_ARG(options.alignment), PY_TEXT(options.metadata, INVALID),
                PY_ARG(options.ttl_ns)) < 0)
        return NULL;
    options.shape = shape.v;
    options.strides = strides.v;
    options.ndim = shape.n;
    made = PY_LEASE_OF(self, caid_array_create(c, &array, &options, &error));
    if (made)
        ((struct lease_object *)made)->created = true;
    return made;
}

/* ---- open, take ---- */

#define PY_MODE(options) PY_TEXT((options).mode, INVALID)
#define PY_ON(options)                                                                        \
    {                                                                                         \
        .kind = 's', .what = "device", .ret = &(options).device_uuid, .code = CAID_ERR_DEVICE \
    }

PyObject *
py_client_open(PyObject *op, PyObject *const *args, Py_ssize_t n_args)
{
    struct client_object *self = py_client(op);
    struct caid_open_options options = CAID_INIT(struct caid_open_options);
    const char *name;

    if (PY_ARGS(self->state, "open", PY_NAME(name), PY_MODE(options), PY_POOL(options.pool),
                PY_ARG(options.generation), PY_ON(options)) < 0)
        return NULL;
    return PY_LEASE_OF(self, caid_array_open(c, &array, name, &options, &error));
}

PyObject *
py_client_take(PyObject *op, PyObject *const *args, Py_ssize_t n_args)
{
    struct client_object *self = py_client(op);
    struct caid_open_options options = CAID_INIT(struct caid_open_options);
    const uint8_t *bytes;
    PyObject *ticket;

    if (PY_ARGS(self->state, "take", PY_ARG(ticket), PY_MODE(options), PY_ON(options),
                PY_ARG(options.keep)) < 0)
        return NULL;
    if (!PyBytes_Check(ticket) || PyBytes_GET_SIZE(ticket) != CAID_TICKET_SIZE)
        return PyErr_Format(PyExc_TypeError, "a ticket is %d bytes", CAID_TICKET_SIZE);
    bytes = (const uint8_t *)PyBytes_AsString(ticket);
    return PY_LEASE_OF(self, caid_array_take(c, &array, bytes, &options, &error));
}

/* ---- open_many ---- */

/* The names and the arrays of one open_many(). */
struct many {
    size_t n;
    const char **names;
    struct caid_array **arrays; /* those that no Lease owns yet are closed with this struct */
};

static void
many_deinit(struct many *many)
{
    WITHOUT_GIL(for (size_t i = 0; many->arrays && i < many->n; i++)
                    caid_array_close(many->arrays[i]));
    PyMem_Free(many->arrays);
    PyMem_Free((void *)many->names);
}

static int
many_init(struct many *many, const struct module_state *state, PyObject *names)
{
    many->n = (size_t)PyTuple_GET_SIZE(names);
    many->names = PyMem_Calloc(many->n + 1, sizeof(many->names[0]));
    many->arrays = PyMem_Calloc(many->n + 1, sizeof(struct caid_array *));
    if (!many->names || !many->arrays) {
        PyErr_NoMemory();
        return -1;
    }
    for (size_t i = 0; i < many->n; i++)
        if (py_name_get(state, PyTuple_GET_ITEM(names, (Py_ssize_t)i), "name",
                        &many->names[i]) < 0)
            return -1;
    return 0;
}

static PyObject *
many_leases(struct many *many, struct client_object *client)
{
    _cleanup_py_ PyObject *list = PyList_New((Py_ssize_t)many->n);

    if (!list)
        return NULL;
    for (size_t i = 0; i < many->n; i++) {
        struct caid_array *array = many->arrays[i];
        PyObject *lease;

        many->arrays[i] = NULL;
        lease = py_lease_new(client, array);
        if (!lease)
            return NULL;
        PyList_SET_ITEM(list, (Py_ssize_t)i, lease);
    }
    return py_take(&list);
}

static PyObject *
open_many(struct client_object *self, struct many *many, struct lease_object *set,
          const struct caid_open_options *options)
{
    struct caid_client *c = py_client_enter(self);
    struct caid_error error = {0};
    PyObject *list;
    int r;

    if (!c)
        return NULL;
    WITHOUT_GIL(
        r = set ? caid_set_open_many(set->array, many->arrays, many->names, many->n, options,
                                     &error)
                : caid_array_open_many(c, many->arrays, many->names, many->n, options, &error));
    list = r < 0 ? py_error_raise(self->state, r, &error) : many_leases(many, self);
    py_client_leave(self);
    return list;
}

/* Opens names; where a set is given, keys of that set. */
PyObject *
py_client_open_many(PyObject *op, PyObject *const *args, Py_ssize_t n_args)
{
    struct client_object *self = py_client(op);
    __attribute__((cleanup(many_deinit))) struct many many = {0};
    struct caid_open_options options = CAID_INIT(struct caid_open_options);
    PyObject *set_op, *names, *list;
    struct lease_object *set = NULL;

    if (PY_ARGS(self->state, "open_many", PY_TUPLE(names), PY_MODE(options),
                PY_POOL(options.pool), PY_ON(options), PY_ARG(set_op)) < 0 ||
        many_init(&many, self->state, names) < 0 ||
        (set_op != Py_None && !(set = py_lease_get_pinned(self->state, set_op))))
        return NULL;
    list = open_many(self, &many, set, &options);
    if (set)
        py_lease_unpin(set);
    return list;
}

/* ---- publish_many ---- */

/* Leases that are pinned for the time of a call, and their arrays. */
struct given {
    PyObject *leases; /* a tuple */
    struct caid_array **arrays;
    Py_ssize_t n;
};

static void
given_deinit(struct given *given)
{
    py_leases_unpin(given->leases, given->n);
    PyMem_Free(given->arrays);
}

static int
given_init(struct given *given, const struct client_object *self, PyObject *leases)
{
    Py_ssize_t n = PyTuple_GET_SIZE(leases);

    given->leases = leases;
    given->arrays = PyMem_Calloc((size_t)n + 1, sizeof(struct caid_array *));
    if (!given->arrays) {
        PyErr_NoMemory();
        return -1;
    }
    given->n = py_leases_pin(self->state, leases, given->arrays);
    return given->n == n ? 0 : -1;
}

static PyObject *
publish_many(struct client_object *self, const char *name, struct many *many, PyObject *leases,
             const struct caid_publish_options *options)
{
    __attribute__((cleanup(given_deinit))) struct given given = {0};
    uint64_t generation = 0;

    if (given_init(&given, self, leases) < 0 ||
        PY_CLIENT_CALL(self, caid_publish_many(c, name, many->names, given.arrays, many->n,
                                               options, &generation, &error)) < 0)
        return NULL;
    return PyLong_FromUnsignedLongLong(generation);
}

PyObject *
py_client_publish_many(PyObject *op, PyObject *const *args, Py_ssize_t n_args)
{
    struct client_object *self = py_client(op);
    __attribute__((cleanup(many_deinit))) struct many many = {0};
    struct caid_publish_options options = CAID_INIT(struct caid_publish_options);
    PyObject *keys, *leases;
    const char *name;
    bool is_new;

    if (PY_ARGS(self->state, "publish_many", PY_NAME(name), PY_TUPLE(keys), PY_TUPLE(leases),
                PY_TEXT(options.metadata, INVALID), PY_ARG(options.stream),
                PY_ARG(is_new)) < 0 ||
        many_init(&many, self->state, keys) < 0)
        return NULL;
    if ((size_t)PyTuple_GET_SIZE(leases) != many.n)
        return PyErr_Format(PyExc_TypeError, "leases: one is needed for each key");
    options.flags = is_new ? CAID_PUBLISH_NEW : 0;
    return publish_many(self, name, &many, leases, &options);
}

/* ---- set_create ---- */

struct member_dims {
    struct dims shape, strides;
};

void
py_members_deinit(struct member_list *list)
{
    for (size_t i = 0; list->dims && i < list->n; i++) {
        py_dims_deinit(&list->dims[i].shape);
        py_dims_deinit(&list->dims[i].strides);
    }
    PyMem_Free(list->dims);
    PyMem_Free(list->v);
}

static int
member_get(const struct module_state *state, PyObject *op, struct caid_member *ret,
           struct member_dims *dims)
{
    if (!PyTuple_Check(op) || PyTuple_GET_SIZE(op) != 6) {
        PyErr_SetString(PyExc_TypeError,
                        "a member is (key, offset, typestr, descr, shape, strides)");
        return -1;
    }
    PyObject *const args[] = {PyTuple_GET_ITEM(op, 0), PyTuple_GET_ITEM(op, 1),
                              PyTuple_GET_ITEM(op, 2), PyTuple_GET_ITEM(op, 3),
                              PyTuple_GET_ITEM(op, 4), PyTuple_GET_ITEM(op, 5)};
    const Py_ssize_t n_args = 6;
    if (PY_ARGS(state, "member", PY_NAME(ret->key), PY_ARG(ret->offset),
                PY_TEXT(ret->typestr, INVALID), PY_TEXT(ret->descr, INVALID),
                PY_ARG(dims->shape), PY_STRIDES(dims->strides, dims->shape)) < 0)
        return -1;
    ret->ndim = dims->shape.n;
    ret->shape = dims->shape.v;
    ret->strides = dims->strides.v;
    return 0;
}

int
py_members_init(struct member_list *list, const struct module_state *state, PyObject *members)
{
    list->n = (size_t)PyTuple_GET_SIZE(members);
    list->v = PyMem_Calloc(list->n + 1, sizeof(list->v[0]));
    list->dims = PyMem_Calloc(list->n + 1, sizeof(list->dims[0]));
    if (!list->v || !list->dims) {
        PyErr_NoMemory();
        return -1;
    }
    for (size_t i = 0; i < list->n; i++)
        if (member_get(state, PyTuple_GET_ITEM(members, (Py_ssize_t)i), &list->v[i],
                       &list->dims[i]) < 0)
            return -1;
    return 0;
}

PyObject *
py_client_set_create(PyObject *op, PyObject *const *args, Py_ssize_t n_args)
{
    struct client_object *self = py_client(op);
    _cleanup_members_ struct member_list list = {0};
    PyObject *whole_op, *members, *made;
    struct lease_object *whole;

    if (PY_ARGS(self->state, "set_create", PY_ARG(whole_op), PY_TUPLE(members)) < 0 ||
        py_members_init(&list, self->state, members) < 0 ||
        !(whole = py_lease_get_pinned(self->state, whole_op)))
        return NULL;
    made = PY_LEASE_OF(self, caid_set_create(c, &array, whole->array, list.v, list.n, &error));
    py_lease_unpin(whole);
    return made;
}

/* ---- addresses ---- */

static PyObject *
map_many(PyObject *op, PyObject *leases, bool map)
{
    __attribute__((cleanup(given_deinit))) struct given given = {0};
    struct client_object *self = py_client(op);

    if (!PyTuple_Check(leases))
        return PyErr_Format(PyExc_TypeError, "leases: a tuple is needed");
    if (given_init(&given, self, leases) < 0)
        return NULL;
    size_t n = (size_t)given.n;
    return py_none(PY_CLIENT_CALL(self, map ? caid_map_many(given.arrays, n, &error)
                                            : caid_unmap_many(given.arrays, n, &error)));
}

PyObject *
py_client_map(PyObject *op, PyObject *leases)
{
    return map_many(op, leases, true);
}

PyObject *
py_client_unmap(PyObject *op, PyObject *leases)
{
    return map_many(op, leases, false);
}

PyObject *
py_client_suspend(PyObject *op, PyObject *timeout)
{
    struct client_object *self = py_client(op);
    struct caid_error error = {0};
    struct caid_client *client;
    uint64_t timeout_ns;

    if (py_timeout_get(timeout, &timeout_ns) < 0 || !(client = py_client_enter(self)))
        return NULL;
    int r = PY_WAIT_IN(self, NULL, caid_client_suspend(client, timeout_ns, &error));
    return py_none(py_client_leave_with(self, r, &error));
}

static void
collect_change(const struct caid_change *change, void *userdata)
{
    PyObject **list = userdata, *item;

    PyEval_RestoreThread(py_waiting);
    item = *list ? Py_BuildValue("(ssK)", change->name, change->pool,
                                 (unsigned long long)change->generation)
                 : NULL;

    if (*list && (!item || PyList_Append(*list, item) < 0))
        Py_CLEAR(*list);
    Py_XDECREF(item);
    py_waiting = PyEval_SaveThread();
}

PyObject *
py_client_resume(PyObject *op, PyObject *Py_UNUSED(unused))
{
    struct client_object *self = py_client(op);
    PyObject *list = PyList_New(0);

    if (!list)
        return NULL;
    if (PY_CLIENT_CALL(self, caid_client_resume(c, collect_change, &list, &error)) < 0)
        Py_CLEAR(list);
    return list;
}

/* The streams that the client has, held for the time of a call: alive, and maybe capturing. */
struct held {
    struct stream_object **objects;
    uint64_t *streams;
    size_t n;
};

static void
held_deinit(struct held *held)
{
    for (size_t i = 0; i < held->n; i++)
        py_handle_release(&held->objects[i]->handle);
    PyMem_Free(held->objects);
    PyMem_Free(held->streams);
}

static int
held_init(struct held *held, struct client_object *self)
{
    PyTypeObject *type = self->state->stream_type;
    struct handle_object *handle;
    size_t n = 0;

    LIST_FOREACH(handle, &self->handles, link)
        n += PyObject_TypeCheck((PyObject *)handle, type);
    held->objects = PyMem_Calloc(n + 1, sizeof(held->objects[0]));
    held->streams = PyMem_Calloc(n + 1, sizeof(held->streams[0]));
    if (!held->objects || !held->streams) {
        PyErr_NoMemory();
        return -1;
    }
    LIST_FOREACH(handle, &self->handles, link) {
        if (!PyObject_TypeCheck((PyObject *)handle, type))
            continue;
        if (py_handle_hold(handle) < 0) {
            PyErr_Clear(); /* it is closed, and will end */
            continue;
        }
        held->objects[held->n] = (struct stream_object *)handle;
        held->streams[held->n] = held->objects[held->n]->stream;
        held->n++;
    }
    return 0;
}

PyObject *
py_client_exchange(PyObject *op, PyObject *const *args, Py_ssize_t n_args)
{
    __attribute__((cleanup(given_deinit))) struct given from = {0}, to = {0};
    __attribute__((cleanup(held_deinit))) struct held held = {0};
    struct client_object *self = py_client(op);
    PyObject *old, *new;
    int r;

    if (PY_ARGS(self->state, "exchange", PY_TUPLE(old), PY_TUPLE(new)) < 0 ||
        py_client_check(self) < 0 || given_init(&from, self, old) < 0 ||
        given_init(&to, self, new) < 0 || held_init(&held, self) < 0)
        return NULL;
    r = PY_CLIENT_CALL(self, caid_exchange(c, from.arrays, (size_t)from.n, to.arrays,
                                           (size_t)to.n, held.streams, held.n, &error));
    py_leases_moved(old);
    py_leases_moved(new);
    return py_none(r);
}

PyObject *
py_client_vacate(PyObject *op, PyObject *const *args, Py_ssize_t n_args)
{
    __attribute__((cleanup(given_deinit))) struct given sets = {0}, own = {0};
    struct client_object *self = py_client(op);
    PyObject *of_sets, *of_own;
    uint64_t timeout_ns;
    size_t which;

    if (PY_ARGS(self->state, "vacate", PY_TUPLE(of_sets), PY_TUPLE(of_own),
                PY_ARG(timeout_ns)) < 0 ||
        py_client_check(self) < 0 || given_init(&sets, self, of_sets) < 0 ||
        given_init(&own, self, of_own) < 0 ||
        PY_CLIENT_CALL(self, caid_set_vacate(c, sets.arrays, (size_t)sets.n, own.arrays,
                                             (size_t)own.n, timeout_ns, &which, &error)) < 0)
        return NULL;
    return PyLong_FromSize_t(which);
}

#define RESERVATION "caid.reservation"

static void
reservation_free(PyObject *capsule)
{
    WITHOUT_GIL(caid_reservation_free(PyCapsule_GetPointer(capsule, RESERVATION)));
}

PyObject *
py_client_reserve(PyObject *op, PyObject *const *args, Py_ssize_t n_args)
{
    struct client_object *self = py_client(op);
    struct caid_reservation *made = NULL;
    uint64_t nbytes, address;
    PyObject *capsule;

    if (PY_ARGS(self->state, "reserve", PY_ARG(nbytes), PY_ARG(address)) < 0 ||
        PY_CLIENT_CALL(self, caid_reserve(c, nbytes, address, &made, &address, &error)) < 0)
        return NULL;
    capsule = PyCapsule_New(made, RESERVATION, reservation_free);
    if (!capsule) {
        caid_reservation_free(made);
        return NULL;
    }
    return Py_BuildValue("NK", capsule, (unsigned long long)address);
}

PyObject *
py_client_use_reservation(PyObject *op, PyObject *capsule)
{
    struct client_object *self = py_client(op);
    struct caid_reservation *reservation = NULL;

    if (capsule != Py_None && !(reservation = PyCapsule_GetPointer(capsule, RESERVATION)))
        return NULL;
    return py_none(PY_CLIENT_CALL(self, caid_reservation_use(c, reservation, &error)));
}

/* ---- names ---- */

PyObject *
py_client_unlink(PyObject *op, PyObject *const *args, Py_ssize_t n_args)
{
    struct client_object *self = py_client(op);
    const char *name, *pool;

    if (PY_ARGS(self->state, "unlink", PY_NAME(name), PY_POOL(pool)) < 0)
        return NULL;
    return py_none(PY_CLIENT_CALL(self, caid_unlink(c, name, pool, &error)));
}

PyObject *
py_client_rename(PyObject *op, PyObject *const *args, Py_ssize_t n_args)
{
    struct client_object *self = py_client(op);
    const char *old, *new, *pool;
    uint64_t generation;
    bool replace;

    if (PY_ARGS(self->state, "rename", PY_NAME(old), PY_NAME(new), PY_POOL(pool),
                PY_ARG(replace)) < 0 ||
        PY_CLIENT_CALL(self, caid_rename(c, old, new, pool, replace, &generation, &error)) < 0)
        return NULL;
    return PyLong_FromUnsignedLongLong(generation);
}

PyObject *
py_client_expire(PyObject *op, PyObject *const *args, Py_ssize_t n_args)
{
    struct client_object *self = py_client(op);
    const char *name, *pool;
    uint64_t generation, ttl;

    if (PY_ARGS(self->state, "expire", PY_NAME(name), PY_POOL(pool), PY_ARG(generation),
                PY_ARG(ttl)) < 0 ||
        PY_CLIENT_CALL(self, caid_expire(c, name, pool, generation, ttl, &generation, &error)) <
            0)
        return NULL;
    return PyLong_FromUnsignedLongLong(generation);
}
