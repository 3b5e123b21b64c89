/* SPDX-License-Identifier: Apache-2.0 */
#include "keep.h"

#include <stdlib.h>

struct keep {
    LIST_ENTRY(keep) link;        /* in client->keeps */
    struct keep *next_gone;       /* in client->gone, or among those that are being dropped */
    struct client_object *client; /* its struct outlives the libcaid client, which calls back */
    PyObject *op;                 /* NULL: dropped */
};

struct keep *
py_keep_new(struct client_object *client, PyObject *op)
{
    struct keep *self = calloc(1, sizeof(*self));

    if (!self) {
        PyErr_NoMemory();
        return NULL;
    }
    self->client = client;
    Py_INCREF(op);
    self->op = op;
    LIST_INSERT_HEAD(&client->keeps, self, link);
    client->n_keeps++;
    return self;
}

/* Runs without the GIL. */
void
py_keep_gone(void *keep)
{
    struct keep *self = keep;
    struct client_object *client = self->client;

    self->next_gone = atomic_load(&client->gone);
    while (!atomic_compare_exchange_weak(&client->gone, &self->next_gone, self))
        ;
}

static void
keep_unlink(struct keep *self)
{
    LIST_REMOVE(self, link);
    self->client->n_keeps--;
}

void
py_keep_free(struct keep *keep)
{
    if (!keep)
        return;
    keep_unlink(keep);
    Py_XDECREF(keep->op);
    free(keep);
}

/* All keeps leave the client's list before any is dropped, since an object that ends then may
 * close the client. */
static void
drop_all(struct keep *first)
{
    PyObject *type, *value, *traceback;
    struct keep *next;

    for (struct keep *k = first; k; k = k->next_gone)
        keep_unlink(k);
    PyErr_Fetch(&type, &value, &traceback);
    for (; first; first = next) {
        next = first->next_gone;
        Py_XDECREF(first->op);
        free(first);
    }
    PyErr_Restore(type, value, traceback);
}

void
py_keeps_drop(struct client_object *client)
{
    if (atomic_load(&client->gone))
        drop_all(atomic_exchange(&client->gone, NULL));
}

/* Takes all keeps of the client, where no part is noted as gone and nobody notes one. */
static struct keep *
chain_all(struct client_object *client)
{
    struct keep *k;

    LIST_FOREACH(k, &client->keeps, link)
        k->next_gone = LIST_NEXT(k, link);
    return LIST_FIRST(&client->keeps);
}

/* The keeps stay in the list, since libcaid is about to call back with them. */
void
py_keeps_let_go(struct client_object *client)
{
    py_keeps_drop(client);
    for (struct keep *k = chain_all(client); k; k = k->next_gone)
        Py_CLEAR(k->op);
}

void
py_keeps_end(struct client_object *client)
{
    py_keeps_drop(client);
    drop_all(chain_all(client));
}

int
py_keeps_traverse(struct client_object *client, visitproc visit, void *arg)
{
    struct keep *k;

    LIST_FOREACH(k, &client->keeps, link)
        Py_VISIT(k->op);
    return 0;
}
