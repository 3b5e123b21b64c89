/* SPDX-License-Identifier: Apache-2.0 */
/*
 * Ctrl-C while libcaid waits: libcaid calls py_interrupted() without the GIL, on the waiting
 * thread. Python's signal handlers run on the main thread alone, so one exception at most is kept
 * here. It is raised when the call fails with CAID_ERR_INTERRUPTED; where the call has succeeded
 * instead, the interpreter raises it at its next pending call.
 */
#include "module.h"

#include <sys/syscall.h>
#include <unistd.h>

_Thread_local PyThreadState *py_waiting;

static struct {
    PyObject *type, *value, *traceback;
} raised;

bool
py_interrupt_raise(void)
{
    if (!raised.type)
        return false;
    PyErr_Restore(raised.type, raised.value, raised.traceback);
    raised.type = raised.value = raised.traceback = NULL;
    return true;
}

static int
raise_later(void *unused)
{
    (void)unused;
    return py_interrupt_raise() ? -1 : 0;
}

/* Runs the handlers, which may make calls that wait for something else. The caller has the GIL. The
 * exception that was set before stays set. */
static bool
run_handlers(void)
{
    PyObject *type, *value, *traceback;
    struct waiting *outer = py_waits_for;
    bool interrupted = raised.type;

    if (interrupted)
        return true;
    py_waits_for = NULL;
    PyErr_Fetch(&type, &value, &traceback);
    if (PyErr_CheckSignals() < 0) {
        PyErr_Fetch(&raised.type, &raised.value, &raised.traceback);
        Py_AddPendingCall(raise_later, NULL);
        interrupted = true;
    }
    PyErr_Restore(type, value, traceback);
    py_waits_for = outer;
    return interrupted;
}

int
py_interrupted(void *unused)
{
    PyThreadState *thread = py_waiting;
    bool is_main = syscall(SYS_gettid) == getpid();
    bool interrupted;

    (void)unused;
    if (!thread || (!is_main && !py_waits_for))
        return 0;
    PyEval_RestoreThread(thread);
    interrupted = (is_main && run_handlers()) || py_wait_is_cancelled();
    py_waiting = PyEval_SaveThread();
    return interrupted;
}
