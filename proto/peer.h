/* SPDX-License-Identifier: Apache-2.0 */
/*
 * The process at the other end of a socket, as the kernel says (SO_PEERCRED, SO_PEERGROUPS,
 * SO_PEERPIDFD; unix(7)). It is fixed at connect(2), and does not depend on what the client says.
 * Users and groups that our user namespace does not map have the overflow ids (user_namespaces(7)).
 */
#pragma once

#include <sys/types.h>

#define PEER_GROUPS_MAX 1024 /* the kernel takes 70 us for so many, and other clients wait */

struct peer {
    uid_t uid;
    gid_t gid;
    pid_t pid;     /* 0: in a pid namespace that ours does not contain */
    gid_t *groups; /* supplementary groups */
    size_t n_groups;
    int pidfd; /* readable when the process has exited; -ESRCH: it was gone already; -ENOTSUP: pid
                * is 0, and this kernel has no SO_PEERPIDFD */
};

/* -E2BIG: the process has more than PEER_GROUPS_MAX groups. */
int peer_init(struct peer *ret, int sock);
void peer_deinit(struct peer *p);
