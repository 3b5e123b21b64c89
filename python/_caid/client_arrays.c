/* SPDX-License-Identifier: Apache-2.0 */
/* Client: making, opening and taking arrays, their names, and sets of them. */
#include "module.h"

/* The Lease of the array that a call of libcaid makes: as PY_CLIENT_CALL(). It is there before a
 * close() of the client that came meanwhile ends all of them. */
#define LEASE_OF(self, call)                                           \
    ({                                                                 \
        struct caid_client *c = py_client_enter(self);                 \
        struct caid_array *array = NULL;                               \
        struct caid_error error = {0};                                 \
        PyObject *lease = NULL;                                        \
        int r_;                                                        \
        if (c) {                                                       \
            WITHOUT_GIL(r_ = (call));                                  \
            lease = r_ < 0 ? py_error_raise((self)->state, r_, &error) \
                           : py_lease_new(self, array);                \
            py_client_leave(self);                                     \
        }                                                              \
        lease;                                                         \
    })

/* ---- create ---- */

/* The texts among the arguments of create(). */
static int
create_texts(const struct module_state *state, PyObject *const *args,
             struct caid_create_options *options)
{
    if (py_text_get(state, args[0], "name", CAID_ERR_INVALID_NAME, &options->name) < 0 ||
        py_text_get(state, args[2], "typestr", CAID_ERR_INVALID, &options->typestr) < 0 ||
        py_text_get(state, args[3], "descr", CAID_ERR_INVALID, &options->descr) < 0 ||
        py_text_get(state, args[5], "pool", CAID_ERR_INVALID_NAME, &options->pool) < 0 ||
        py_text_get(state, args[8], "memory", CAID_ERR_INVALID, &options->memory) < 0 ||
        py_text_get(state, args[10], "metadata", CAID_ERR_INVALID, &options->metadata) < 0)
        return -1;
    return 0;
}

/* The numbers. */
static int
create_numbers(const struct module_state *state, PyObject *const *args,
               struct caid_create_options *options)
{
    uint64_t flags;

    if (py_device_get(state, args[6], &options->device) < 0 ||
        py_u64_get(state, args[7], "flags", &flags) < 0 ||
        py_u64_get(state, args[9], "alignment", &options->alignment) < 0 ||
        py_u64_get(state, args[11], "ttl", &options->ttl_ns) < 0)
        return -1;
    options->flags = (uint32_t)flags;
    return 0;
}

PyObject *
py_client_create(PyObject *op, PyObject *const *args, Py_ssize_t n_args)
{
    struct client_object *self = py_client(op);
    struct caid_create_options options = CAID_INIT(struct caid_create_options);
    _cleanup_dims_ struct dims shape = {0}, strides = {0};
    PyObject *made;

    if (py_args_check("create", n_args, 12) < 0 ||
        create_texts(self->state, args, &options) < 0 ||
        create_numbers(self->state, args, &options) < 0 ||
        py_dims_get(self->state, args[1], "shape", &shape) < 0 ||
        py_strides_get(self->state, args[4], "strides", &shape, &strides) < 0)
        return NULL;
    options.shape = shape.v;
    options.strides = strides.v;
    options.ndim = shape.n;
    made = LEASE_OF(self, caid_array_create(c, &array, &options, &error));
    if (made)
        ((struct lease_object *)made)->created = true;
    return made;
}

/* ---- open ---- */

static int
open_options(const struct module_state *state, PyObject *mode, PyObject *pool,
             PyObject *device_uuid, struct caid_open_options *ret)
{
    *ret = (struct caid_open_options)CAID_INIT(struct caid_open_options);
    if (py_text_get(state, mode, "mode", CAID_ERR_INVALID, &ret->mode) < 0 ||
        py_text_get(state, pool, "pool", CAID_ERR_INVALID_NAME, &ret->pool) < 0 ||
        py_text_get(state, device_uuid, "device", CAID_ERR_DEVICE, &ret->device_uuid) < 0)
        return -1;
    return 0;
}

PyObject *
py_client_open(PyObject *op, PyObject *const *args, Py_ssize_t n_args)
{
    struct client_object *self = py_client(op);
    struct caid_open_options options;
    const char *name;

    if (py_args_check("open", n_args, 5) < 0 || py_name_get(self->state, args[0], &name) < 0 ||
        open_options(self->state, args[1], args[2], args[4], &options) < 0 ||
        py_u64_get(self->state, args[3], "generation", &options.generation) < 0)
        return NULL;
    return LEASE_OF(self, caid_array_open(c, &array, name, &options, &error));
}

/* ---- take ---- */

PyObject *
py_client_take(PyObject *op, PyObject *const *args, Py_ssize_t n_args)
{
    struct client_object *self = py_client(op);
    struct caid_open_options options;
    const uint8_t *ticket;

    if (py_args_check("take", n_args, 3) < 0 ||
        open_options(self->state, args[1], Py_None, args[2], &options) < 0)
        return NULL;
    if (!PyBytes_Check(args[0]) || PyBytes_GET_SIZE(args[0]) != CAID_TICKET_SIZE)
        return PyErr_Format(PyExc_TypeError, "a ticket is %d bytes", CAID_TICKET_SIZE);
    ticket = (const uint8_t *)PyBytes_AsString(args[0]);
    return LEASE_OF(self, caid_array_take(c, &array, ticket, &options, &error));
}

/* ---- open_many ---- */

/* Room for the names and the arrays of one open_many(). */
struct many {
    size_t n;
    const char **names;
    struct caid_array **arrays; /* those that no Lease has taken are ended with this */
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
        if (py_name_get(state, PyTuple_GET_ITEM(names, (Py_ssize_t)i), &many->names[i]) < 0)
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

/* Of a set where one is given, which is pinned. */
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

static int
check_tuple(PyObject *op, const char *what)
{
    if (PyTuple_Check(op))
        return 0;
    PyErr_Format(PyExc_TypeError, "%s: a tuple is needed", what);
    return -1;
}

PyObject *
py_client_open_many(PyObject *op, PyObject *const *args, Py_ssize_t n_args)
{
    struct client_object *self = py_client(op);
    __attribute__((cleanup(many_deinit))) struct many many = {0};
    struct caid_open_options options;

    if (py_args_check("open_many", n_args, 4) < 0 || check_tuple(args[0], "names") < 0 ||
        many_init(&many, self->state, args[0]) < 0 ||
        open_options(self->state, args[1], args[2], args[3], &options) < 0)
        return NULL;
    return open_many(self, &many, NULL, &options);
}

/* ---- sets ---- */

PyObject *
py_client_set_open(PyObject *op, PyObject *const *args, Py_ssize_t n_args)
{
    struct client_object *self = py_client(op);
    __attribute__((cleanup(many_deinit))) struct many many = {0};
    struct caid_open_options options;
    struct lease_object *set;
    PyObject *list;

    if (py_args_check("set_open", n_args, 4) < 0 || check_tuple(args[1], "keys") < 0 ||
        many_init(&many, self->state, args[1]) < 0 ||
        open_options(self->state, args[2], Py_None, args[3], &options) < 0)
        return NULL;
    set = py_lease_get_pinned(self->state, args[0]);
    if (!set)
        return NULL;
    list = open_many(self, &many, set, &options);
    py_lease_unpin(set);
    return list;
}

/* The arrays of some leases, for the time of a call. */
struct given {
    PyObject *leases; /* a tuple */
    struct caid_array **arrays;
    Py_ssize_t n_pinned;
};

static void
given_deinit(struct given *given)
{
    while (given->n_pinned > 0)
        py_lease_unpin(
            (struct lease_object *)PyTuple_GET_ITEM(given->leases, --given->n_pinned));
    PyMem_Free(given->arrays);
}

/* Pins them. -1 with an exception set. */
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
    for (; given->n_pinned < n; given->n_pinned++) {
        struct lease_object *lease =
            py_lease_get_pinned(self->state, PyTuple_GET_ITEM(leases, given->n_pinned));
        if (!lease)
            return -1;
        given->arrays[given->n_pinned] = lease->array;
    }
    return 0;
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
    const char *name;

    if (py_args_check("publish_many", n_args, 6) < 0 ||
        py_name_get(self->state, args[0], &name) < 0 || check_tuple(args[1], "keys") < 0 ||
        check_tuple(args[2], "leases") < 0 || many_init(&many, self->state, args[1]) < 0 ||
        py_text_get(self->state, args[3], "metadata", CAID_ERR_INVALID, &options.metadata) <
            0 ||
        py_u64_get(self->state, args[4], "stream", &options.stream) < 0)
        return NULL;
    if ((size_t)PyTuple_GET_SIZE(args[2]) != many.n)
        return PyErr_Format(PyExc_TypeError, "leases: one for each key is needed");
    options.flags = args[5] == Py_True ? CAID_PUBLISH_NEW : 0;
    return publish_many(self, name, &many, args[2], &options);
}

/* ---- addresses ---- */

static PyObject *
map_many(PyObject *op, PyObject *leases, bool map)
{
    __attribute__((cleanup(given_deinit))) struct given given = {0};
    struct client_object *self = py_client(op);

    if (check_tuple(leases, "leases") < 0 || given_init(&given, self, leases) < 0)
        return NULL;
    size_t n = (size_t)given.n_pinned;
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
    uint64_t size, address;
    PyObject *capsule;

    if (py_args_check("reserve", n_args, 2) < 0 ||
        py_u64_get(self->state, args[0], "nbytes", &size) < 0 ||
        py_u64_get(self->state, args[1], "address", &address) < 0 ||
        PY_CLIENT_CALL(self, caid_reserve(c, size, address, &made, &address, &error)) < 0)
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

    if (py_args_check("unlink", n_args, 2) < 0 ||
        py_name_get(self->state, args[0], &name) < 0 ||
        py_text_get(self->state, args[1], "pool", CAID_ERR_INVALID_NAME, &pool) < 0)
        return NULL;
    return py_none(PY_CLIENT_CALL(self, caid_unlink(c, name, pool, &error)));
}

PyObject *
py_client_rename(PyObject *op, PyObject *const *args, Py_ssize_t n_args)
{
    struct client_object *self = py_client(op);
    const char *name, *to, *pool;
    uint64_t generation;
    int replace;

    if (py_args_check("rename", n_args, 4) < 0 ||
        py_name_get(self->state, args[0], &name) < 0 ||
        py_name_get(self->state, args[1], &to) < 0 ||
        py_text_get(self->state, args[2], "pool", CAID_ERR_INVALID_NAME, &pool) < 0)
        return NULL;
    replace = PyObject_IsTrue(args[3]);
    if (replace < 0 ||
        PY_CLIENT_CALL(self, caid_rename(c, name, to, pool, replace, &generation, &error)) < 0)
        return NULL;
    return PyLong_FromUnsignedLongLong(generation);
}

PyObject *
py_client_expire(PyObject *op, PyObject *const *args, Py_ssize_t n_args)
{
    struct client_object *self = py_client(op);
    const char *name, *pool;
    uint64_t generation, ttl_ns;

    if (py_args_check("expire", n_args, 4) < 0 ||
        py_name_get(self->state, args[0], &name) < 0 ||
        py_text_get(self->state, args[1], "pool", CAID_ERR_INVALID_NAME, &pool) < 0 ||
        py_u64_get(self->state, args[2], "generation", &generation) < 0 ||
        py_u64_get(self->state, args[3], "ttl", &ttl_ns) < 0 ||
        PY_CLIENT_CALL(self,
                       caid_expire(c, name, pool, generation, ttl_ns, &generation, &error)) < 0)
        return NULL;
    return PyLong_FromUnsignedLongLong(generation);
}
