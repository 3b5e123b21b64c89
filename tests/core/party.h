/* SPDX-License-Identifier: Apache-2.0 */
/*
 * Clients of one uid that use two arrays by brackets, for the tests of that.
 */
#pragma once

#include "harness.h"

#define N_CLIENTS 4

/* Each has a lease for writing on each of the arrays "a" and "b", and a page. */
struct party {
    struct harness h;
    uint64_t conn[N_CLIENTS];
    uint64_t a[N_CLIENTS], b[N_CLIENTS];
    uint64_t page[N_CLIENTS];
};

void party_init(struct party *p, void (*tweak)(struct core_config *));

/* A test of a party; body: of a `struct party *p`. */
#define PARTY_TEST(suite, name, tweak)                \
    static void suite##_##name##_of(struct party *p); \
    CAID_TEST(suite, name)                            \
    {                                                 \
        static struct party p;                        \
        party_init(&p, tweak);                        \
        suite##_##name##_of(&p);                      \
        h_deinit(&p.h);                               \
    }                                                 \
    static void suite##_##name##_of(struct party *p)

/* By the last that was sent for client i: its begin is open; it is not answered; its error. */
bool party_is_open(const struct party *p, int i);
bool party_waits(const struct party *p, int i);
uint32_t party_error(const struct party *p, int i);

/* The bracket's number; begun: it is open. */
uint64_t party_begin(struct party *p, int i, uint64_t lease, bool write);
uint64_t party_begun(struct party *p, int i, uint64_t lease, bool write);
uint64_t party_begin_many(struct party *p, int i, struct msg_u64s read, struct msg_u64s write,
                          uint64_t thread);
/* Of some of the array's 100 bytes. */
uint64_t party_begin_range(struct party *p, int i, uint64_t lease, bool write, uint64_t from,
                           uint64_t end);
/* Without a fence; with one, the next value of a slot of the client's page. */
void party_end(struct party *p, int i, uint64_t bracket);
uint64_t party_end_at(struct party *p, int i, uint64_t bracket, uint64_t slot);

#define LEASES(...)                                          \
    ((struct msg_u64s){.v = (const uint64_t[]){__VA_ARGS__}, \
                       .n = sizeof((const uint64_t[]){__VA_ARGS__}) / sizeof(uint64_t)})
#define NO_LEASES ((struct msg_u64s){0})

/* What others see of an array. */
const struct msg_entry *party_entry(struct party *p, const char *name);
bool party_is_abandoned(struct party *p); /* "a" */
