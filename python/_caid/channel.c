/* SPDX-License-Identifier: Apache-2.0 */
/*
 * Channel: one struct caid_channel, of a producer or of a reader. Frame: one of its frames, which
 * a producer fills, or a reader was given. A Frame is open until its end, and holds its Channel:
 * one that is closed ends with its last open Frame, or with its Client.
 *
 * Buffers and tensors of a Frame are counted. A reader's Frame that ends while it has some is kept
 * until the last of them has gone. A producer's is there for readers all the same. Each has a share
 * of a Lease on the channel's array besides, by which the memory stays mapped, also when the
 * Channel or the Client is closed.
 */
#include "channel.h"

#include <errno.h>
#include <stddef.h>
#include <structmember.h>

#include "handle.h"

#define NDIM_MAX 32 /* of arrays */

struct channel_object {
    struct handle_object handle;
    struct caid_channel *channel; /* NULL: it has ended */
    struct lease_object *lease;   /* of its array; has a share of it until the end */
    bool produces, is_fifo;
    bool has_warned;
    LIST_HEAD(, frame_object) kept; /* frames */
    char format[4];                 /* of elements in buffers; "": there is no word for them */
    int ndim;                       /* of a frame, as are these */
    Py_ssize_t nbytes, itemsize, shape[NDIM_MAX], strides[NDIM_MAX];
    size_t step; /* from slot to slot */
};

enum frame_state {
    FRAME_ENDED, /* or it has not begun */
    FRAME_OPEN,
    FRAME_KEPT, /* ended, but for what is left of its buffers and tensors */
};

struct frame_object {
    PyObject_HEAD
    struct channel_object *channel; /* NULL only after tp_clear */
    struct caid_frame frame;
    enum frame_state state;
    bool is_flat;      /* the buffer that is being made is one of bytes */
    uint64_t number;   /* of its stream; 0: the host */
    PyObject *stream;  /* that it began on, or None; a Stream is held while the frame is open */
    PyObject *last;    /* that it ends on, as `stream`, where it is another one; or NULL */
    PyObject *info;    /* what a producer fills, a bytearray; NULL: nothing yet */
    PyObject *pending; /* as that of a Lease; or NULL */
    Py_ssize_t n_exports;
    LIST_ENTRY(frame_object) link; /* in the channel's list, while it is kept */
};

PY_CAST(channel);
PY_CAST(frame);

/* ---- the channel's life ---- */

static void
kept_remove(struct frame_object *frame)
{
    if (frame->link.le_prev)
        LIST_REMOVE(frame, link);
    frame->link.le_prev = NULL;
}

/* Frames that are kept end on their last stream, those that are open on their own. */
static void
channel_end(struct handle_object *handle, struct caid_client *Py_UNUSED(client))
{
    struct channel_object *self = (struct channel_object *)handle;
    struct caid_channel *ended = self->channel;
    struct frame_object *kept;

    self->channel = NULL;
    while ((kept = LIST_FIRST(&self->kept))) {
        const struct caid_frame frame = kept->frame;
        uint64_t number = kept->number;
        kept_remove(kept);
        WITHOUT_GIL((void)caid_channel_end(ended, &frame, number, NULL));
    }
    WITHOUT_GIL(caid_channel_close(ended));
    if (!self->lease)
        return;
    Py_INCREF(self->lease); /* frames still ask for its memory */
    py_lease_unuse(self->lease);
}

static const struct handle_class channel_class = {.name = "channel", .end = channel_end};

static int
channel_traverse(PyObject *op, visitproc visit, void *arg)
{
    Py_VISIT(channel(op)->lease);
    return py_handle_traverse(op, visit, arg);
}

static int
channel_clear(PyObject *op)
{
    py_handle_clear(op);
    Py_CLEAR(channel(op)->lease);
    return 0;
}

/* ---- streams ---- */

/* The number of a stream; 0 for None, the host. */
static int
number_of(struct channel_object *self, PyObject *stream, uint64_t *ret)
{
    _cleanup_py_ PyObject *number = NULL;

    *ret = 0;
    if (stream == Py_None)
        return 0;
    number = PyObject_CallMethod((PyObject *)self, "_number_of", "(O)", stream);
    if (!number)
        return -1;
    *ret = PyLong_AsUnsignedLongLong(number);
    return PyErr_Occurred() ? -1 : 0;
}

/* The handle of a Stream, else NULL. */
static struct handle_object *
handle_of(const struct channel_object *self, PyObject *stream)
{
    return stream && Py_IS_TYPE(stream, self->handle.client->state->stream_type)
               ? py_handle(stream)
               : NULL;
}

/* ---- the end of a frame ---- */

static int
check_open(const struct frame_object *self)
{
    if (self->state == FRAME_OPEN)
        return py_client_check_process(self->channel->handle.client);
    if (!self->channel) {
        PyErr_SetString(PyExc_ReferenceError, "the frame was collected");
        return -1;
    }
    py_error_raise_code(self->channel->handle.client->state, CAID_ERR_CLOSED, EBADF,
                        "frame %llu has ended", (unsigned long long)self->frame.sequence);
    return -1;
}

static void
stream_release(const struct frame_object *self, PyObject *stream)
{
    struct handle_object *held = handle_of(self->channel, stream);

    if (held)
        py_handle_release(held);
}

/* Gives back what a frame holds that is over. */
static void
frame_settle(struct frame_object *self)
{
    kept_remove(self);
    stream_release(self, self->stream);
    stream_release(self, self->last);
    py_handle_release(&self->channel->handle);
}

/* It ends on this stream, once nothing is left of it. */
static int
take_last(struct frame_object *self, PyObject *stream, uint64_t number)
{
    struct handle_object *held = handle_of(self->channel, stream);
    PyObject *before = self->last;

    if (held && py_handle_hold(held) < 0)
        return -1;
    Py_INCREF(stream);
    self->last = stream;
    self->number = number;
    stream_release(self, before);
    Py_XDECREF(before);
    return 0;
}

static void
info_take(struct frame_object *self)
{
    Py_ssize_t n = self->info ? PyByteArray_GET_SIZE(self->info) : 0;

    if (n > 0)
        memcpy(self->frame.info, PyByteArray_AS_STRING(self->info),
               n < CAID_CHANNEL_INFO ? (size_t)n : CAID_CHANNEL_INFO);
}

/* A reader's that is not whole is one that nobody can end any more. */
static int
call_end(struct frame_object *self, bool is_whole, struct caid_error *error)
{
    struct caid_channel *channel = self->channel->channel;
    int r = 0;

    if (!channel) /* it has ended with its client */
        return 0;
    if (self->channel->produces && is_whole)
        info_take(self);
    if (!self->channel->produces)
        WITHOUT_GIL(r = caid_channel_end(channel, &self->frame, self->number, error));
    if (!self->channel->produces && (is_whole || r == 0 || error->code != CAID_ERR_INVALID))
        return r;
    if (is_whole)
        WITHOUT_GIL(r = caid_channel_commit(channel, &self->frame, error));
    else
        WITHOUT_GIL(r = caid_channel_abandon(channel, &self->frame, error));
    return r;
}

/* *ret_code: of the error, or 0. INTERRUPTED, since a signal handler has raised, and INVALID, since
 * its stream cannot be used here and now: it has not ended. */
static int
frame_try(struct frame_object *self, bool is_whole, int32_t *ret_code)
{
    struct client_object *client = self->channel->handle.client;
    struct caid_error error = {0};
    int r = -1;

    self->state = FRAME_ENDED;
    if (py_client_enter(client))
        r = py_client_leave_with(client, call_end(self, is_whole, &error), &error);
    *ret_code = error.code;
    return r;
}

static int
frame_finish(struct frame_object *self, bool is_whole)
{
    int32_t code;
    int r = frame_try(self, is_whole, &code);

    if (r < 0 && (code == CAID_ERR_INTERRUPTED || code == CAID_ERR_INVALID))
        self->state = FRAME_OPEN;
    else
        frame_settle(self);
    return r;
}

/* What follows on the stream of this number comes after copies of the frame by caid. */
static int
frame_order(struct frame_object *self, uint64_t number)
{
    _cleanup_py_ PyObject *done = NULL;

    if (!self->pending)
        return 0;
    done = PyObject_CallMethod((PyObject *)self, "_order", "K", (unsigned long long)number);
    return done ? 0 : -1;
}

/* Nobody can be told of an exception here. Whether it was Ctrl-C, which is raised again later. */
static bool
drop_exception(void)
{
    bool is_interrupt = PyErr_ExceptionMatches(PyExc_KeyboardInterrupt);

    PyErr_Clear();
    return is_interrupt;
}

/* Ends a frame that is not whole, whatever comes of it: copies of it are not to go on in the next
 * one, so Ctrl-C does not end this wait. An exception that is set stays. */
static void
frame_give_up(struct frame_object *self)
{
    PyObject *type, *value, *traceback;
    int32_t code = CAID_ERR_INTERRUPTED;
    bool was_pressed = false;

    PyErr_Fetch(&type, &value, &traceback);
    while (self->state == FRAME_OPEN && py_client_is_live(self->channel->handle.client) &&
           frame_order(self, self->number) < 0 && drop_exception())
        was_pressed = true;
    if (self->state != FRAME_ENDED) { /* by another thread */
        while (code == CAID_ERR_INTERRUPTED)
            was_pressed |= frame_try(self, false, &code) < 0 && drop_exception();
        frame_settle(self);
    }
    if (was_pressed)
        PyErr_SetInterrupt();
    PyErr_Restore(type, value, traceback);
}

static int
warn(struct frame_object *self, const char *what)
{
    return PyErr_ResourceWarning((PyObject *)self, 1, "frame %llu %s",
                                 (unsigned long long)self->frame.sequence, what);
}

static int
frame_put(struct frame_object *self)
{
    bool is_first = self->n_exports > 0 && !self->channel->has_warned;

    if (frame_finish(self, true) < 0)
        return -1;
    self->channel->has_warned |= is_first;
    return is_first
               ? warn(self, "is readers' from now on, but a buffer or a tensor of it is left, "
                            "which is not to be written any more")
               : 0;
}

/* stream: None for the frame's own. */
static int
frame_end(struct frame_object *self, PyObject *stream)
{
    uint64_t number = self->number;

    if (check_open(self) < 0 ||
        (stream != Py_None && number_of(self->channel, stream, &number) < 0) ||
        frame_order(self, number) < 0 || check_open(self) < 0 ||
        (stream != Py_None && take_last(self, stream, number) < 0))
        return -1;
    if (self->channel->produces)
        return frame_put(self);
    if (self->n_exports == 0)
        return frame_finish(self, true);
    self->state = FRAME_KEPT;
    LIST_INSERT_HEAD(&self->channel->kept, self, link);
    return warn(self, "stays open as long as a buffer or a tensor of it is left");
}

/* ---- buffers and tensors ---- */

int
py_frame_export_begin(PyObject *op)
{
    struct frame_object *self = frame(op);

    if (check_open(self) < 0)
        return -1;
    py_lease_view_begin(self->channel->lease);
    self->n_exports++;
    return 0;
}

void
py_frame_export_end(PyObject *op)
{
    struct frame_object *self = frame(op);

    self->n_exports--;
    if (self->state == FRAME_KEPT && self->n_exports == 0)
        frame_give_up(self);
    py_lease_view_end(self->channel->lease);
}

/* The host's address of the frame; NULL with BufferError set where it reaches none. */
static char *
frame_on_host(const struct frame_object *self)
{
    const struct channel_object *channel = self->channel;
    uintptr_t host = py_lease_host(channel->lease);

    if (host)
        return (char *)host + (size_t)self->frame.slot * channel->step;
    PyErr_SetString(PyExc_BufferError, "the host does not reach device memory");
    return NULL;
}

/* The elements, in C order. */
static int
fill_elements(PyObject *op, Py_buffer *view, char *at, int flags)
{
    struct channel_object *channel = frame(op)->channel;
    bool readonly = channel->lease->info.readonly;

    if ((readonly && flags & PyBUF_WRITABLE) ||
        (channel->ndim > 1 && (flags & PyBUF_F_CONTIGUOUS) == PyBUF_F_CONTIGUOUS)) {
        PyErr_SetString(PyExc_BufferError,
                        readonly ? "the frame is read-only" : "the frame is in C order");
        return -1;
    }
    Py_INCREF(op);
    *view = (Py_buffer){
        .buf = at,
        .obj = op,
        .len = channel->nbytes,
        .itemsize = channel->itemsize,
        .readonly = readonly,
        .ndim = channel->ndim,
        .format = flags & PyBUF_FORMAT ? channel->format : NULL,
        .shape = channel->shape,
        .strides = (flags & PyBUF_STRIDES) == PyBUF_STRIDES ? channel->strides : NULL,
    };
    return 0;
}

/* Where the frame is a stream's, or copies of it are under way, the host waits for them. */
static int
frame_getbuffer(PyObject *op, Py_buffer *view, int flags)
{
    struct frame_object *self = frame(op);
    bool is_flat = self->is_flat || !(flags & PyBUF_ND);
    _cleanup_py_ PyObject *waited = NULL;
    char *at;

    view->obj = NULL;
    if (check_open(self) < 0)
        return -1;
    at = frame_on_host(self);
    if (!at)
        return -1;
    if (!is_flat && !self->channel->format[0]) {
        PyErr_SetString(PyExc_BufferError, "buffers have no word for this type");
        return -1;
    }
    if ((self->number || self->pending) &&
        !(waited = PyObject_CallMethod(op, "_synchronize", NULL)))
        return -1;
    if (py_frame_export_begin(op) < 0)
        return -1;
    if ((is_flat ? PyBuffer_FillInfo(view, op, at, self->channel->nbytes,
                                     self->channel->lease->info.readonly, flags)
                 : fill_elements(op, view, at, flags)) == 0)
        return 0;
    py_frame_export_end(op);
    return -1;
}

static void
frame_releasebuffer(PyObject *op, Py_buffer *Py_UNUSED(view))
{
    py_frame_export_end(op);
}

static PyObject *
frame_bytes(PyObject *op, PyObject *Py_UNUSED(unused))
{
    PyObject *view;

    frame(op)->is_flat = true;
    view = PyMemoryView_FromObject(op);
    frame(op)->is_flat = false;
    return view;
}

/* ---- the begin of a frame ---- */

static struct frame_object *
frame_new(struct channel_object *channel, PyObject *stream)
{
    PyTypeObject *type = channel->handle.client->state->frame_type;
    struct frame_object *self = frame(type->tp_alloc(type, 0));

    if (!self)
        return NULL;
    Py_INCREF(channel);
    Py_INCREF(stream);
    self->channel = channel;
    self->stream = stream;
    return self;
}

/* Waits for the frame, whose stream is held. The frame holds the channel from then on. */
static int
frame_wait(struct frame_object *self, PyObject *timeout, uint32_t flags)
{
    struct channel_object *channel = self->channel;
    struct caid_error error = {0};
    struct caid_channel *c;
    uint64_t timeout_ns;
    int r;

    if (py_timeout_get(timeout, &timeout_ns) < 0 || !py_handle_enter(&channel->handle))
        return -1;
    c = channel->channel;
    r = PY_WAIT(&channel->handle,
                channel->produces
                    ? caid_channel_begin(c, self->number, timeout_ns, &self->frame, &error)
                    : caid_channel_get(c, self->number, timeout_ns, flags, &self->frame,
                                       &error));
    if (r < 0)
        return py_handle_leave_with(&channel->handle, r, &error);
    self->state = FRAME_OPEN;
    Py_INCREF(channel);
    channel->handle.n_calls++;
    py_handle_leave(&channel->handle);
    return 0;
}

static PyObject *
frame_begin(struct channel_object *channel, PyObject *stream, PyObject *timeout, uint32_t flags)
{
    _cleanup_py_ PyObject *made = (PyObject *)frame_new(channel, stream);
    struct handle_object *held = handle_of(channel, stream);

    if (!made || number_of(channel, stream, &frame(made)->number) < 0 ||
        (held && py_handle_hold(held) < 0))
        return NULL;
    if (frame_wait(frame(made), timeout, flags) == 0)
        return py_take(&made);
    if (held)
        py_handle_release(held);
    return NULL;
}

/* ---- making a channel ---- */

static void
describe(struct channel_object *self, const struct caid_array_info *info)
{
    self->ndim = (int)info->ndim - 1;
    self->itemsize = (Py_ssize_t)info->itemsize;
    self->nbytes = self->itemsize;
    self->step = (size_t)info->strides[0];
    for (int i = 0; i < self->ndim; i++) {
        self->shape[i] = (Py_ssize_t)info->shape[i + 1];
        self->strides[i] = (Py_ssize_t)info->strides[i + 1];
        self->nbytes *= self->shape[i];
    }
}

/* Opens the array once more, for the Lease. */
static int
channel_lease(struct channel_object *self, struct caid_client *c, const char *device_uuid)
{
    const struct caid_array_info *info = caid_array_get_info(caid_channel_array(self->channel));
    struct caid_open_options options = CAID_INIT(struct caid_open_options);
    struct caid_array *array = NULL;
    struct caid_error error = {0};
    int r;

    describe(self, info);
    options.mode = info->readonly ? "r" : "rw";
    options.pool = info->pool;
    options.generation = info->generation;
    options.device_uuid = device_uuid;
    options.host_only = true;
    WITHOUT_GIL(r = caid_array_open(c, &array, info->name, &options, &error));
    if (r < 0) {
        py_error_raise(self->handle.client->state, r, &error);
        return -1;
    }
    self->lease = (struct lease_object *)py_lease_new(self->handle.client, array);
    return self->lease ? 0 : -1;
}

/* What caid_channel_create() and _open() take: seconds that may pass, or None. */
static int
channel_timeout(PyObject *op, struct caid_channel_options *options)
{
    if (py_timeout_get(op, &options->timeout_ns) < 0)
        return -1;
    if (options->timeout_ns == 0)
        options->timeout_ns = 1;
    if (options->timeout_ns == CAID_FOREVER && !options->wait)
        options->timeout_ns = 0;
    return 0;
}

static PyObject *
channel_make(struct client_object *client, bool produces, const char *name,
             const struct caid_channel_options *options)
{
    _cleanup_py_ PyObject *made =
        py_handle_new(client->state->channel_type, client, &channel_class);
    struct caid_client *c = made ? py_client_enter(client) : NULL;
    struct caid_error error = {0};
    int r;

    if (!c)
        return NULL;
    WITHOUT_GIL(
        r = (produces ? caid_channel_create : caid_channel_open)(c, &channel(made)->channel,
                                                                 name, options, &error));
    if (r < 0)
        py_error_raise(client->state, r, &error);
    else {
        channel(made)->produces = produces;
        channel(made)->is_fifo = caid_channel_is_fifo(channel(made)->channel);
        py_handle_begin(py_handle(made));
        r = channel_lease(channel(made), c, options->device_uuid);
    }
    py_client_leave(client);
    return r < 0 ? NULL : py_take(&made);
}

PyObject *
py_client_channel(PyObject *op, PyObject *const *args, Py_ssize_t n_args)
{
    struct client_object *self = py_client(op);
    struct caid_channel_options options = CAID_INIT(struct caid_channel_options);
    _cleanup_dims_ struct dims shape = {0};
    PyObject *timeout;
    const char *name;

    if (PY_ARGS(self->state, "channel", PY_NAME(name), PY_POOL(options.pool), PY_ARG(shape),
                PY_TEXT(options.typestr, INVALID), PY_TEXT(options.descr, INVALID),
                PY_ARG(options.slots), PY_TEXT(options.mode, INVALID),
                PY_TEXT(options.memory, INVALID), PY_ARG(options.device),
                PY_ARG(timeout)) < 0 ||
        channel_timeout(timeout, &options) < 0)
        return NULL;
    options.shape = shape.v;
    options.ndim = shape.n;
    return channel_make(self, true, name, &options);
}

PyObject *
py_client_channel_open(PyObject *op, PyObject *const *args, Py_ssize_t n_args)
{
    struct client_object *self = py_client(op);
    struct caid_channel_options options = CAID_INIT(struct caid_channel_options);
    PyObject *timeout;
    const char *name;

    if (PY_ARGS(self->state, "channel_open", PY_NAME(name), PY_POOL(options.pool),
                PY_ARG(options.depth), PY_ARG(options.wait),
                PY_TEXT(options.device_uuid, DEVICE), PY_ARG(timeout)) < 0 ||
        channel_timeout(timeout, &options) < 0)
        return NULL;
    return channel_make(self, false, name, &options);
}

/* ---- the channel's type ---- */

/* Whether it is a producer, or a reader, as the call is for. */
static int
check_role(struct channel_object *self, bool produces)
{
    struct client_object *client = self->handle.client;

    if (self->produces == produces)
        return 0;
    if (py_client_check_process(client) == 0)
        py_error_raise_code(client->state, CAID_ERR_INVALID, EINVAL,
                            produces ? "put() of a channel that was opened, which gives frames"
                                     : "get() of a channel that is its producer's");
    return -1;
}

static PyObject *
channel_put(PyObject *op, PyObject *const *args, Py_ssize_t n_args)
{
    PyObject *stream, *timeout;

    if (PY_ARGS(py_handle_state(op), "put", PY_ARG(stream), PY_ARG(timeout)) < 0 ||
        check_role(channel(op), true) < 0)
        return NULL;
    return frame_begin(channel(op), stream, timeout, 0);
}

static PyObject *
channel_get(PyObject *op, PyObject *const *args, Py_ssize_t n_args)
{
    PyObject *stream, *timeout;
    bool ahead;

    if (PY_ARGS(py_handle_state(op), "get", PY_ARG(stream), PY_ARG(timeout), PY_ARG(ahead)) <
            0 ||
        check_role(channel(op), false) < 0)
        return NULL;
    return frame_begin(channel(op), stream, timeout, ahead ? CAID_CHANNEL_AHEAD : 0);
}

static PyObject *
channel_fileno(PyObject *op, PyObject *Py_UNUSED(unused))
{
    struct channel_object *self = channel(op);
    struct caid_error error = {0};
    int r;

    if (!py_handle_enter(&self->handle))
        return NULL;
    WITHOUT_GIL(r = caid_channel_get_fd(self->channel, &error));
    if (r < 0)
        py_error_raise(self->handle.client->state, r, &error);
    py_handle_leave(&self->handle);
    return r < 0 ? NULL : PyLong_FromLong(r);
}

/* Which format buffers tell: a letter of the module struct, or "". */
static PyObject *
channel_set_format(PyObject *op, PyObject *text)
{
    const char *format = PyUnicode_AsUTF8(text);

    if (!format)
        return NULL;
    snprintf(channel(op)->format, sizeof(channel(op)->format), "%s", format);
    Py_RETURN_NONE;
}

static PyMethodDef channel_methods[] = {
    {"_put", PY_FASTCALL(channel_put), METH_FASTCALL, PyDoc_STR("Begins to put a Frame.")},
    {"_get", PY_FASTCALL(channel_get), METH_FASTCALL, PyDoc_STR("Waits for a Frame.")},
    {"fileno", channel_fileno, METH_NOARGS,
     PyDoc_STR(
         "fileno()\n--\n\nOf a reader: readable while get() would give a frame, or raise, by the\n"
         "host or on a stream as the last time. A get(timeout=0) that finds nothing clears it.")},
    {"_set_format", channel_set_format, METH_O,
     PyDoc_STR("What buffers of frames say of their elements.")},
    PY_HANDLE_CLOSE("Gives the place in the channel up, when the frames that are open have\n"
                    "ended. Idempotent."),
    {0},
};

static PyMemberDef channel_members[] = {
    {"produces", T_BOOL, offsetof(struct channel_object, produces), READONLY,
     PyDoc_STR("bool: whether it puts frames, and does not get them.")},
    {"_is_fifo", T_BOOL, offsetof(struct channel_object, is_fifo), READONLY, NULL},
    {"_lease", T_OBJECT, offsetof(struct channel_object, lease), READONLY, NULL},
    {0},
};

PY_SPEC(channel, "caid._caid.Channel", PY_HANDLE_FLAGS,
        "The place of a producer or of a reader in a channel.", {Py_tp_new, py_tp_new},
        {Py_tp_traverse, channel_traverse}, {Py_tp_clear, channel_clear},
        {Py_tp_dealloc, py_tp_dealloc}, {Py_tp_methods, channel_methods},
        {Py_tp_getset, py_handle_getset}, {Py_tp_members, channel_members});

/* ---- the frame's type ---- */

static PyObject *
frame_do_end(PyObject *op, PyObject *stream)
{
    return py_none(frame_end(frame(op), stream));
}

static PyObject *
frame_abandon(PyObject *op, PyObject *Py_UNUSED(unused))
{
    if (check_open(frame(op)) < 0)
        return NULL;
    if (!frame(op)->channel->produces)
        return frame_do_end(op, Py_None);
    if (frame_order(frame(op), frame(op)->number) < 0 || check_open(frame(op)) < 0)
        return NULL;
    return py_none(frame_finish(frame(op), false));
}

static PyObject *
frame_enter(PyObject *op, PyObject *Py_UNUSED(unused))
{
    if (check_open(frame(op)) < 0)
        return NULL;
    Py_INCREF(op);
    return op;
}

/* After an exception a producer's frame is given up. What takes that exception's place is one that
 * left the frame open: Ctrl-C. */
static PyObject *
frame_exit(PyObject *op, PyObject *const *args, Py_ssize_t n_args)
{
    struct frame_object *self = frame(op);
    PyObject *done;

    if (self->state != FRAME_OPEN) /* it was ended in the block */
        Py_RETURN_NONE;
    if (n_args == 0 || args[0] == Py_None)
        return frame_do_end(op, Py_None);
    done = frame_abandon(op, NULL);
    if (done || (self->state == FRAME_OPEN && py_client_is_live(self->channel->handle.client)))
        return done;
    PyErr_Clear();
    if (self->state == FRAME_OPEN) /* in a forked child */
        frame_give_up(self);
    Py_RETURN_NONE;
}

/* An open frame is about to be collected. */
static void
frame_finalize(PyObject *op)
{
    struct frame_object *self = frame(op);
    PyObject *type, *value, *traceback;

    if (self->state != FRAME_OPEN)
        return;
    PyErr_Fetch(&type, &value, &traceback);
    if (py_client_is_live(self->channel->handle.client) &&
        warn(self, "was not ended before it was collected") < 0)
        PyErr_WriteUnraisable(op);
    PyErr_Restore(type, value, traceback);
    frame_give_up(self);
}

static int
frame_traverse(PyObject *op, visitproc visit, void *arg)
{
    Py_VISIT(Py_TYPE(op));
    if (frame(op)->n_exports == 0) /* else it is not collected before what ends them */
        Py_VISIT(frame(op)->channel);
    Py_VISIT(frame(op)->stream);
    Py_VISIT(frame(op)->last);
    Py_VISIT(frame(op)->pending);
    return 0;
}

static int
frame_clear(PyObject *op)
{
    struct frame_object *self = frame(op);

    if (self->state != FRAME_ENDED)
        frame_give_up(self);
    if (self->n_exports == 0)
        Py_CLEAR(self->channel);
    Py_CLEAR(self->stream);
    Py_CLEAR(self->last);
    Py_CLEAR(self->pending);
    Py_CLEAR(self->info);
    return 0;
}

static PyObject *
frame_pending_or(PyObject *op, PyObject *pending)
{
    if (!frame(op)->pending) {
        Py_INCREF(pending);
        frame(op)->pending = pending;
    }
    Py_INCREF(frame(op)->pending);
    return frame(op)->pending;
}

/* A producer's is its own, until it is put; a reader's is what was put. */
static PyObject *
frame_get_info(PyObject *op, void *Py_UNUSED(closure))
{
    struct frame_object *self = frame(op);

    if (self->channel && !self->channel->produces)
        return PyBytes_FromStringAndSize((const char *)self->frame.info, CAID_CHANNEL_INFO);
    if (!self->info) {
        static const char zeros[CAID_CHANNEL_INFO];
        self->info = PyByteArray_FromStringAndSize(zeros, CAID_CHANNEL_INFO);
    }
    return self->info ? PyMemoryView_FromObject(self->info) : NULL;
}

static int
frame_set_info(PyObject *op, PyObject *value, void *Py_UNUSED(closure))
{
    struct frame_object *self = frame(op);
    Py_buffer from;
    int r = -1;

    if (!value || (self->channel && !self->channel->produces)) {
        PyErr_SetString(PyExc_AttributeError,
                        "info is written by the producer, and not deleted");
        return -1;
    }
    if (check_open(self) < 0 || PyObject_GetBuffer(value, &from, PyBUF_SIMPLE) < 0)
        return -1;
    _cleanup_py_ PyObject *made = PyByteArray_FromStringAndSize(NULL, CAID_CHANNEL_INFO);
    if (from.len > CAID_CHANNEL_INFO)
        PyErr_Format(PyExc_ValueError, "info: %zd bytes, of %d", from.len, CAID_CHANNEL_INFO);
    else if (made) {
        memset(PyByteArray_AS_STRING(made), 0, CAID_CHANNEL_INFO);
        memcpy(PyByteArray_AS_STRING(made), from.buf, (size_t)from.len);
        Py_XSETREF(self->info, py_take(&made));
        r = 0;
    }
    PyBuffer_Release(&from);
    return r;
}

static PyObject *
frame_get_is_open(PyObject *op, void *Py_UNUSED(closure))
{
    return PyBool_FromLong(frame(op)->state == FRAME_OPEN);
}

static PyMethodDef frame_methods[] = {
    {"_end", frame_do_end, METH_O, PyDoc_STR("Ends it on a stream; None: on its own.")},
    {"abandon", frame_abandon, METH_NOARGS,
     PyDoc_STR("abandon()\n--\n\nEnds the frame. One that is put is not there for readers.")},
    {"_bytes", frame_bytes, METH_NOARGS, PyDoc_STR("Its memory: a memoryview of bytes.")},
    {"_pending_or", frame_pending_or, METH_O,
     PyDoc_STR("Sets `_pending` where it is not set: what it is.")},
    {"__enter__", frame_enter, METH_NOARGS, NULL},
    {"__exit__", PY_FASTCALL(frame_exit), METH_FASTCALL, NULL},
    {0},
};

static PyGetSetDef frame_getset[] = {
    {"info", frame_get_info, frame_set_info,
     PyDoc_STR(
         "64 bytes of the program's for each frame. Its producer's are a writable memoryview, zeros\n"
         "at first; assigning bytes sets the first of them, and the others to zero. A reader's are\n"
         "bytes."),
     NULL},
    {"is_open", frame_get_is_open, NULL, PyDoc_STR("bool: whether it has not ended."), NULL},
    {0},
};

static PyMemberDef frame_members[] = {
    {"sequence", T_ULONGLONG, offsetof(struct frame_object, frame.sequence), READONLY,
     PyDoc_STR("int: its number in the channel, from 1. None is used twice.")},
    {"missed", T_ULONGLONG, offsetof(struct frame_object, frame.missed), READONLY,
     PyDoc_STR(
         "int: how many sequences of a \"latest\" the reader did not get, between this one\n"
         "and the one before; also those of puts that were given up.")},
    {"_slot", T_UINT, offsetof(struct frame_object, frame.slot), READONLY, NULL},
    {"_channel", T_OBJECT, offsetof(struct frame_object, channel), READONLY, NULL},
    {"_stream", T_OBJECT, offsetof(struct frame_object, stream), READONLY, NULL},
    {"_pending", T_OBJECT, offsetof(struct frame_object, pending), READONLY, NULL},
    {0},
};

PY_SPEC(frame, "caid._caid.Frame", PY_HANDLE_FLAGS, "A frame of a channel.",
        {Py_tp_new, py_tp_new}, {Py_tp_traverse, frame_traverse}, {Py_tp_clear, frame_clear},
        {Py_tp_finalize, frame_finalize}, {Py_tp_dealloc, py_tp_dealloc},
        {Py_bf_getbuffer, frame_getbuffer}, {Py_bf_releasebuffer, frame_releasebuffer},
        {Py_tp_methods, frame_methods}, {Py_tp_getset, frame_getset},
        {Py_tp_members, frame_members});
