/* SPDX-License-Identifier: Apache-2.0 */
/*
 * Another process of a test: a program of the build's tests/, or a child. A program dies with the
 * test. Failures end the test.
 */
#pragma once

#include <stdbool.h>
#include <sys/types.h>

struct process {
    pid_t pid;
    int in, out; /* its standard input and output */
};

/* A program by its name and its arguments; the last one is NULL. */
void process_start(struct process *process, const char *program, ...) __attribute__((sentinel));
/* The next that it says is this. */
void process_expect(const struct process *process, const char *answer);
/* Closes its input, or sends it a signal, and waits; as process_wait(). */
int process_end(const struct process *process, int signal);

/* Its exit status, or less than 0: the signal that has killed it. */
int process_wait(pid_t pid);
/* Runs a program to its end. */
int process_run(const char *program, ...) __attribute__((sentinel));

/* Whether a thread of this process has come to wait: it sleeps whenever one looks. */
bool thread_waits(pid_t thread);
/* Until all others of this process do. */
void threads_wait(void);
