/* SPDX-License-Identifier: Apache-2.0 */
/* Faults on demand: rules that say which calls go wrong, and how. README.md, "Faults", has their
 * language. */
#pragma once

#include <pthread.h>
#include <stdbool.h>
#include <stddef.h>
#include <stdint.h>

#define FAULT_MAX_RULES 32
#define FAULT_NAME_SIZE 64

enum fault_action {
    FAULT_FAIL,
    FAULT_STICKY,
    FAULT_LATE,
    FAULT_SKIP,
    FAULT_VANISH,
    FAULT_DELAY
};

struct fault_rule {
    char function[FAULT_NAME_SIZE];
    uint64_t first, last; /* calls that it is about */
    uint64_t n_seen;
    enum fault_action action;
    int result;
    uint64_t delay_ns;
};

struct entry_point;

struct fault_list {
    pthread_mutex_t lock;
    struct fault_rule rules[FAULT_MAX_RULES];
    size_t n_rules;
};

/* All of them or none: -EINVAL for a rule that is not one, -ENOSPC for too many. */
int fault_add(struct fault_list *list, const char *text);
void fault_clear(struct fault_list *list);
/* Meets what the rules have for a call of this entry point: takes the time they say.
 * False: the call is not made. *ret_result is what it returns then, or, unless it is 0, instead of
 * success. The first rule that is not a delay decides. */
bool fault_meet(struct fault_list *list, const struct entry_point *entry, int *ret_result);
