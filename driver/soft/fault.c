/* SPDX-License-Identifier: Apache-2.0 */
/* Rules: reading them, and applying them to a call. */
#include "soft.h"

#include <stdio.h>
#include <string.h>

#include "base/clock.h"
#include "context.h"
#include "errors.h"

#define MAX_TEXT 4096

/* "N", "N-M" or "N+". */
static int
parse_calls(const char *text, struct fault_rule *rule)
{
    if (settings_number(text, UINT64_MAX, &text, &rule->first) < 0 || rule->first == 0)
        return -EINVAL;
    rule->last = rule->first;
    if (strcmp(text, "+") == 0) {
        rule->last = UINT64_MAX;
        return 0;
    }
    if (*text == '-') {
        if (settings_number(text + 1, UINT64_MAX, &text, &rule->last) < 0 ||
            rule->last < rule->first)
            return -EINVAL;
    }
    return *text ? -EINVAL : 0;
}

static int
parse_action(const char *text, struct fault_rule *rule)
{
    static const struct {
        const char *name;
        enum fault_action action;
    } actions[] = {{"vanish", FAULT_VANISH},  {"skip", FAULT_SKIP},  {"delay:", FAULT_DELAY},
                   {"sticky:", FAULT_STICKY}, {"late:", FAULT_LATE}, {"", FAULT_FAIL}};

    uint64_t delay_us;
    size_t i = 0;
    while (strncmp(text, actions[i].name, strlen(actions[i].name)) != 0)
        i++;
    text += strlen(actions[i].name);
    rule->action = actions[i].action;
    if (rule->action == FAULT_VANISH || rule->action == FAULT_SKIP)
        return *text ? -EINVAL : 0;
    if (rule->action != FAULT_DELAY)
        return result_parse(text, &rule->result);
    if (settings_number(text, MAX_DELAY_US, NULL, &delay_us) < 0)
        return -EINVAL;
    rule->delay_ns = delay_us * NSEC_PER_USEC;
    return 0;
}

static bool
name_is(const char *name, const struct entry_point *entry)
{
    return strcmp(name, "*") == 0 || strcmp(name, entry->name) == 0 ||
           strcmp(name, entry->base) == 0;
}

/* A name that no entry point has would make a rule that never applies. */
static bool
name_is_known(const char *name)
{
    for (int i = 0; i < N_ENTRIES; i++)
        if (*name && name_is(name, &entry_points[i]))
            return true;
    return false;
}

static int
parse_rule(char *text, struct fault_rule *ret)
{
    struct fault_rule rule = {.first = 1, .last = UINT64_MAX};
    char *action = strchr(text, '=');
    if (!action)
        return -EINVAL;
    *action++ = '\0';
    char *calls = strchr(text, '@');
    if (calls)
        *calls++ = '\0';
    if ((calls && parse_calls(calls, &rule) < 0) || parse_action(action, &rule) < 0 ||
        strlen(text) >= sizeof(rule.function) || !name_is_known(text))
        return -EINVAL;
    strcpy(rule.function, text);
    *ret = rule;
    return 0;
}

int
fault_add(struct fault_list *list, const char *text)
{
    char copy[MAX_TEXT], *rest = copy, *rule;
    if (strlen(text) >= sizeof(copy))
        return -EINVAL;
    strcpy(copy, text);
    LOCKED(&list->lock);
    size_t n = list->n_rules;
    while ((rule = strsep(&rest, ","))) {
        if (n == FAULT_MAX_RULES)
            return -ENOSPC;
        if (parse_rule(rule, &list->rules[n]) < 0)
            return -EINVAL;
        n++;
    }
    list->n_rules = n;
    return 0;
}

void
fault_clear(struct fault_list *list)
{
    LOCKED(&list->lock);
    list->n_rules = 0;
}

/* Counts the call for all rules. ret_rule is the one that ends it; one with FAULT_DELAY stands for
 * none. */
static void
match(struct fault_list *list, const struct entry_point *entry, uint64_t *ret_delay_ns,
      struct fault_rule *ret_rule)
{
    *ret_delay_ns = 0;
    *ret_rule = (struct fault_rule){.action = FAULT_DELAY};
    LOCKED(&list->lock);
    for (size_t i = 0; i < list->n_rules; i++) {
        struct fault_rule *rule = &list->rules[i];
        if (!name_is(rule->function, entry))
            continue;
        rule->n_seen++;
        if (rule->n_seen < rule->first || rule->n_seen > rule->last)
            continue;
        if (rule->action == FAULT_DELAY)
            *ret_delay_ns += rule->delay_ns;
        else if (ret_rule->action == FAULT_DELAY)
            *ret_rule = *rule;
    }
}

bool
fault_meet(struct fault_list *list, const struct entry_point *entry, int *ret_result)
{
    struct fault_rule rule;
    uint64_t delay_ns;
    match(list, entry, &delay_ns, &rule);
    clock_pause_ns(delay_ns);
    *ret_result = rule.result;
    switch (rule.action) {
    case FAULT_DELAY:
    case FAULT_LATE: return true;
    case FAULT_SKIP:
    case FAULT_FAIL: return false;
    case FAULT_STICKY: device_fault(context_device(), (CUresult)rule.result); return false;
    case FAULT_VANISH:
        device_vanish(context_device());
        *ret_result = *entry->base ? CUDA_ERROR_DEVICE_UNAVAILABLE : NVML_ERROR_GPU_IS_LOST;
        return false;
    }
    return true;
}
