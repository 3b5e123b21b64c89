/* SPDX-License-Identifier: Apache-2.0 */
/*
 * How a test commands a process that uses CUDA: one packet there, one back, on the socket that
 * the process has as fd 3. An fd travels with either. Both ends are the same build, so handles
 * and addresses of the process are plain numbers to the test.
 */
#pragma once

#include <stdint.h>
#include <string.h>
#include <sys/socket.h>

#include "base/macros.h"

#define FACTS_SOCKET 3
#define FACTS_N_ARGS 8
#define FACTS_BYTES  512

enum facts_op {
#define CALL(name, ...) FACTS_##name,
#define MAKE(name, ...) FACTS_##name,
#define STEP(name)      FACTS_##name,
#include "facts_calls.def"
#include "facts_steps.def"
#undef CALL
#undef MAKE
#undef STEP
    FACTS_N_OPS
};

enum facts_host_function {
    FACTS_HOLD,  /* waits until the 64 bits at its argument are not 0 */
    FACTS_COUNT, /* adds 1 to them */
    FACTS_CALL,  /* stores there what cuCtxGetCurrent() returns, plus 1 */
};

struct facts_command {
    enum facts_op op;
    uint64_t args[FACTS_N_ARGS];
    unsigned char bytes[FACTS_BYTES];
};

struct facts_reply {
    int result; /* CUresult, or -errno where no driver call failed; -ENOSYS: no such function */
    uint64_t value;
    unsigned char bytes[FACTS_BYTES];
};

/* Sends one packet; fd may be -1. */
static inline int
facts_send(int socket, const void *data, size_t size, int fd)
{
    union {
        struct cmsghdr align;
        char bytes[CMSG_SPACE(sizeof(int))];
    } control = {0};
    struct iovec iov = {.iov_base = (void *)(uintptr_t)data, .iov_len = size};
    struct msghdr msg = {.msg_iov = &iov, .msg_iovlen = 1};
    if (fd >= 0) {
        msg.msg_control = control.bytes;
        msg.msg_controllen = sizeof(control.bytes);
        struct cmsghdr *header = CMSG_FIRSTHDR(&msg);
        header->cmsg_level = SOL_SOCKET;
        header->cmsg_type = SCM_RIGHTS;
        header->cmsg_len = CMSG_LEN(sizeof(fd));
        memcpy(CMSG_DATA(header), &fd, sizeof(fd));
    }
    return sendmsg(socket, &msg, MSG_NOSIGNAL) == (ssize_t)size ? 0 : -EIO;
}

/* Receives one packet; *ret_fd is -1 where none came. -EIO: hang-up or another size. */
static inline int
facts_receive(int socket, void *data, size_t size, int *ret_fd)
{
    union {
        struct cmsghdr align;
        char bytes[CMSG_SPACE(sizeof(int))];
    } control;
    struct iovec iov = {.iov_base = data, .iov_len = size};
    struct msghdr msg = {.msg_iov = &iov,
                         .msg_iovlen = 1,
                         .msg_control = control.bytes,
                         .msg_controllen = sizeof(control.bytes)};
    ssize_t n = recvmsg(socket, &msg, MSG_CMSG_CLOEXEC);
    *ret_fd = -1;
    if (n < 0)
        return -errno;
    struct cmsghdr *header = CMSG_FIRSTHDR(&msg);
    if (header && header->cmsg_type == SCM_RIGHTS)
        memcpy(ret_fd, CMSG_DATA(header), sizeof(*ret_fd));
    return n == (ssize_t)size ? 0 : -EIO;
}
