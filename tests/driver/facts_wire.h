/* SPDX-License-Identifier: Apache-2.0 */
/*
 * How a test commands a process that uses CUDA: one packet there, one back, on the socket that
 * the process has as fd 3. An fd travels with either. Both ends are the same build.
 */
#pragma once

#include <stdint.h>
#include <string.h>
#include <sys/socket.h>

#include "base/macros.h"

#define FACTS_SOCKET 3

enum facts_op {
    FACTS_SET_UID,     /* a: uid */
    FACTS_OPEN,        /* the driver that $CAID_CUDA_DRIVER names, device 0 */
    FACTS_CONTEXT,     /* retains the primary context and makes it current */
    FACTS_HAS_CONTEXT, /* value: 1 when a context is current or the primary one is active */
    FACTS_GRANULARITY, /* value: bytes */
    FACTS_FREE_BYTES,  /* value: free bytes of the device, from NVML */
    FACTS_TOTAL_BYTES, /* value: all bytes of the device, from NVML */
    FACTS_CREATE,      /* a: bytes */
    FACTS_EXPORT,      /* fd back; value: its descriptor flags */
    FACTS_IMPORT,      /* fd there; a: bytes */
    FACTS_RELEASE,
    FACTS_RESERVE,     /* a: bytes, b: hint; value: address */
    FACTS_MAP,         /* a: bytes, at the start of the reserved range */
    FACTS_ACCESS,      /* a: CUmemAccess_flags */
    FACTS_UNMAP,       /* and frees the range */
    FACTS_FILL,        /* a: 32-bit word */
    FACTS_COUNT,       /* a: 32-bit word; value: how many words of the mapping are that */
    FACTS_KEEP,        /* fd there: held without CUDA */
    FACTS_GIVE,        /* fd back: the one kept */
    FACTS_EXPORT_MANY, /* a: number; all are alive at once; value: how many worked */
};

struct facts_command {
    enum facts_op op;
    uint64_t a, b;
};

struct facts_reply {
    int result; /* CUresult, or -errno where no driver call failed */
    uint64_t value;
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
