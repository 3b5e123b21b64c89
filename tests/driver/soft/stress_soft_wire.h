/* SPDX-License-Identifier: Apache-2.0 */
/*
 * What the processes of stress_soft_processes send each other: packets of a fixed size, each
 * perhaps with an fd, on SOCK_SEQPACKET pairs. All ends are the same build.
 *
 * The supervisor orders a lane of one process to make something, and one of another process to
 * take it, and gives each an end of a new pair, the link. Over the link they hand memory back and
 * forth. Whoever dies hangs up, and that is how the other one learns of it.
 */
#pragma once

#include <stdbool.h>
#include <stddef.h>
#include <stdint.h>

#define FIRST_LANE  3 /* fd of a worker's first lane; the others follow */
#define HANDLE_SIZE 64

enum role {
    ROLE_MAKER, /* makes the memory, asks in it and checks the answers */
    ROLE_TAKER, /* opens it, and answers */
};

/* From the supervisor to a lane, with the link. */
struct order {
    enum role role;
    unsigned int memory;      /* its kind; stress_soft_kinds.h has all three */
    unsigned int maker_fence; /* how the maker tells that its part is done, */
    unsigned int taker_fence; /* and how the taker does */
    unsigned int n_rounds;
    uint64_t seed;
};

enum outcome {
    OUTCOME_DONE,
    OUTCOME_ALONE, /* the other end hung up */
    OUTCOME_STUCK, /* the other end hung up, and the lane's stream waits for it for ever */
};

/* From a lane to the supervisor. */
struct report {
    enum outcome outcome;
};

enum what {
    WHAT_MEMORY, /* a handle, or the fd that comes with it */
    WHAT_FENCE,  /* the same */
    WHAT_TURN,   /* the fence of this round was submitted: the other one's turn */
    WHAT_BYE,    /* all that was enqueued has run */
    WHAT_CLOSED, /* the taker has given back what it had opened */
};

/* On a link. */
struct packet {
    enum what what;
    unsigned int round;
    unsigned char handle[HANDLE_SIZE];
};

/* What leads another process to memory or to a fence. */
struct offer {
    unsigned char handle[HANDLE_SIZE];
    int fd; /* -1: none */
};

/* Sends size bytes, and fd unless it is -1. False when the other end has hung up; any other
 * failure ends the process. */
bool wire_send(int socket, const void *data, size_t size, int fd);
/* Waits for a packet of exactly this size. False when the other end has hung up; any other
 * failure ends the process. The caller owns *ret_fd, which is -1 where no fd came along. */
bool wire_receive(int socket, void *data, size_t size, int *ret_fd);
/* Waits some seconds for the other end to hang up. */
bool wire_await_hang_up(int socket);

/* Prints a line with errno's text and ends the process, so that a core or a report shows where. */
_Noreturn void wire_die(const char *what);
