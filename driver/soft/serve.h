/* SPDX-License-Identifier: Apache-2.0 */
/*
 * A thread that answers other processes on a Unix socket: one packet in, one packet and perhaps an
 * fd out, connection closed. It lives as long as the process. A peer that connects and does not
 * ask keeps nobody waiting: it is dropped after a second, or when too many of its kind are there.
 */
#pragma once

#include <stddef.h>
#include <sys/socket.h>
#include <sys/types.h>
#include <sys/un.h>

#define SERVE_MAX_REQUEST 4096
#define SERVE_MAX_REPLY   32768

/* Writes the reply to a request, which has a 0 behind its n bytes. Returns the bytes of the reply,
 * or -1 to hang up. *ret_fd, -1 before, may be set to an fd that goes along; the server owns it. */
typedef ssize_t (*serve_answer)(const struct ucred *peer, const char *request, size_t n,
                                char *reply, int *ret_fd);

struct server {
    int fd; /* listening; 0: not started */
    serve_answer answer;
};

/* A path is for its owner alone. 0 or -errno. */
int serve_start(struct server *server, const struct sockaddr_un *address, socklen_t size,
                serve_answer answer);
/* In a forked child, which has no such thread. */
void serve_forget(struct server *server);

/* The other side: sends a request and waits for the reply, at most some seconds. Returns the bytes
 * of the reply, or -errno: -ECONNREFUSED where nobody serves. ret_fd may be NULL. */
ssize_t serve_ask(const struct sockaddr_un *address, socklen_t size, const void *request,
                  size_t n, void *reply, size_t room, int *ret_fd);
