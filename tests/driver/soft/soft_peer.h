/* SPDX-License-Identifier: Apache-2.0 */
/*
 * Other processes in a test: forked before the driver is initialised, each with a socket to the
 * test. They end when the test does, however it ends.
 */
#pragma once

#include <stdbool.h>
#include <stddef.h>
#include <sys/types.h>

struct peer {
    pid_t pid;
    int socket;
};

/* Runs body(socket) in a new process, which ends when it returns. All peers of a test, and the
 * test, are on the same device. */
struct peer peer_start(void (*body)(int socket));
/* Hangs up and waits for it, waits for it and hangs up, or kills it. Ends the test where it ended
 * otherwise, or with another status than 0. */
void peer_end(struct peer *peer);
void peer_wait(struct peer *peer);
void peer_kill(struct peer *peer);

/* Packets, on either side. A peer ends where the test hangs up; a test fails where a peer has. */
void peer_say(int socket, const void *data, size_t size);
void peer_hear(int socket, void *data, size_t size);
/* False when the other side has hung up. */
bool peer_hear_if_any(int socket, void *data, size_t size);

/* An fd, alone; whoever hears it owns it. */
void peer_say_fd(int socket, int fd);
int peer_hear_fd(int socket);

/* Ends a peer, and with it the test, where something is not so. */
#define peer_check(expression) peer_assert(expression, #expression, __LINE__)
void peer_assert(bool right, const char *what, int line);
