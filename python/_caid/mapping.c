/* SPDX-License-Identifier: Apache-2.0 */
/*
 * Mapping: a block that stays mapped here without a lease, one struct caid_mapping. Made by
 * Lease._keep_mapping(), ended by close(), with the object or with the client.
 */
#include "handle.h"

struct mapping_object {
    struct handle_object handle;
    struct caid_mapping *mapping;
};

PY_CAST(mapping);

static void
mapping_end(struct handle_object *self, struct caid_client *Py_UNUSED(client))
{
    struct caid_mapping *ended = ((struct mapping_object *)self)->mapping;

    WITHOUT_GIL(caid_mapping_release(ended));
}

static const struct handle_class mapping_class = {.name = "mapping", .end = mapping_end};

PyObject *
py_mapping_new(struct lease_object *lease)
{
    return PY_HANDLE_MAKE(lease->client, mapping,
                          ((void)c, caid_array_keep_mapping(lease->array,
                                                            &mapping(made)->mapping, &error)));
}

static PyMethodDef mapping_methods[] = {
    PY_HANDLE_CLOSE("Gives the mapping up."),
    {0},
};

PY_SPEC(mapping, "caid._caid.Mapping", PY_HANDLE_FLAGS, "A block that stays mapped.",
        PY_HANDLE_LIFE, {Py_tp_methods, mapping_methods}, {Py_tp_getset, py_handle_getset});
