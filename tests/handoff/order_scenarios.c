/* SPDX-License-Identifier: Apache-2.0 */
#include "order.h"

#include "base/macros.h"

#define X 1u
#define Y 2u

/* Steps of the process `by`, on its stream `on`. */
#define WRITE(by, on, arrays)                            \
    {                                                    \
        .role = (by), .stream = (on), .writes = (arrays) \
    }
#define READ(by, on, arrays)                            \
    {                                                   \
        .role = (by), .stream = (on), .reads = (arrays) \
    }
#define WRITE_AFTER(by, on, arrays)                                     \
    {                                                                   \
        .role = (by), .stream = (on), .writes = (arrays), .waits = true \
    }
#define READ_AFTER(by, on, arrays)                                     \
    {                                                                  \
        .role = (by), .stream = (on), .reads = (arrays), .waits = true \
    }
#define COPY_AFTER(by, on, from, to)                                                 \
    {                                                                                \
        .role = (by), .stream = (on), .reads = (from), .writes = (to), .waits = true \
    }
/* The same by streams alone: where the host waits, the process has waited before, or nobody
 * looks. */
#define BY_STREAM(...)                                \
    {                                                 \
        __VA_ARGS__, .waits = true, .by_stream = true \
    }

#define SCENARIO(title, how, roles, ...)                                                  \
    {                                                                                     \
        .name = (title), .kind = ORDER_##how, .n_roles = (roles), .steps = {__VA_ARGS__}, \
        .n_steps = ARRAY_SIZE(((struct order_step[]){__VA_ARGS__}))                       \
    }

const struct order_scenario order_scenarios[] = {
    SCENARIO("write-read", BRACKETS, 2, WRITE(0, 0, X), READ_AFTER(1, 0, X)),
    SCENARIO("read-write", BRACKETS, 2, READ(0, 0, X), WRITE_AFTER(1, 0, X)),
    SCENARIO("write-write", BRACKETS, 2, WRITE(0, 0, X), WRITE_AFTER(1, 0, X)),
    SCENARIO("there-and-back", BRACKETS, 2, WRITE(0, 0, X), READ_AFTER(1, 0, X),
             WRITE_AFTER(0, 1, X), READ_AFTER(1, 1, X)),
    SCENARIO("one-process", BRACKETS, 1, WRITE(0, 0, X), READ_AFTER(0, 1, X),
             WRITE_AFTER(0, 2, X)),

    /* Three processes. */
    SCENARIO("write-read-read", BRACKETS, 3, WRITE(0, 0, X), READ_AFTER(1, 0, X),
             READ_AFTER(2, 0, X)),
    SCENARIO("read-read-write", BRACKETS, 3, READ(0, 0, X), READ(1, 0, X),
             WRITE_AFTER(2, 0, X)),
    SCENARIO("write-write-write", BRACKETS, 3, WRITE(0, 0, X),
             BY_STREAM(.role = 1, .writes = X), WRITE_AFTER(2, 0, X)),
    SCENARIO("write-write-read", BRACKETS, 3, WRITE(0, 0, X), WRITE_AFTER(1, 0, X),
             READ_AFTER(2, 0, X)),
    SCENARIO("write-read-write", BRACKETS, 3, WRITE(0, 0, X), READ_AFTER(1, 0, X),
             WRITE_AFTER(2, 0, X)),
    /* Who reads the copy has nothing to do with who wrote the original. */
    SCENARIO("relay", BRACKETS, 3, WRITE(0, 0, X), COPY_AFTER(1, 0, X, Y), READ_AFTER(2, 0, Y)),

    /* Several streams. */
    SCENARIO("writes-on-streams", BRACKETS, 2, WRITE(0, 0, 1), WRITE(0, 1, 2), WRITE(0, 2, 4),
             WRITE(0, 3, 8), READ_AFTER(1, 0, 15)),
    SCENARIO("reads-on-streams", BRACKETS, 2, READ(0, 0, X), READ(0, 1, X), READ(0, 2, X),
             READ(0, 3, X), WRITE_AFTER(1, 0, X)),
    SCENARIO("read-by-streams", BRACKETS, 2, WRITE(0, 0, X), READ_AFTER(1, 0, X),
             BY_STREAM(.role = 1, .stream = 1, .reads = X),
             BY_STREAM(.role = 1, .stream = 2, .reads = X),
             BY_STREAM(.role = 1, .stream = 3, .reads = X)),
    /* Streams of three processes on four arrays, in brackets of two. */
    SCENARIO("crossing", BRACKETS, 3, WRITE(0, 0, 1 | 2), WRITE(1, 0, 4 | 8),
             READ_AFTER(2, 0, 1 | 4), WRITE_AFTER(0, 1, 4), WRITE_AFTER(1, 1, 1),
             READ_AFTER(2, 1, 1 | 2 | 4 | 8)),
    /* More streams at work than a page has slots. */
    SCENARIO("many-streams", BRACKETS, 2, WRITE(0, 0, 1u << 0), WRITE(0, 1, 1u << 1),
             WRITE(0, 2, 1u << 2), WRITE(0, 3, 1u << 3), WRITE(0, 4, 1u << 4),
             WRITE(0, 5, 1u << 5), WRITE(0, 6, 1u << 6), WRITE(0, 7, 1u << 7),
             WRITE(0, 8, 1u << 8), WRITE(0, 9, 1u << 9), WRITE(0, 10, 1u << 10),
             WRITE(0, 11, 1u << 11), WRITE(0, 12, 1u << 12), WRITE(0, 13, 1u << 13),
             WRITE(0, 14, 1u << 14), WRITE(0, 15, 1u << 15), WRITE(0, 16, 1u << 16),
             WRITE(0, 17, 1u << 17), READ_AFTER(1, 0, (1u << 18) - 1)),

    /* The host at one end. */
    SCENARIO("write-read-on-host", BRACKETS, 2, WRITE(0, 0, X),
             {.role = 1, .host = true, .reads = X, .waits = true}),
    SCENARIO("read-write-on-host", BRACKETS, 2, READ(0, 0, X),
             {.role = 1, .host = true, .writes = X, .waits = true}),
    SCENARIO("write-on-host-read", BRACKETS, 2, {.role = 0, .host = true, .writes = X},
             {.role = 1, .reads = X, .waits = true, .by_call = true}),

    /* Timelines. */
    SCENARIO("timeline-write-read", TIMELINES, 2, WRITE(0, 0, X), READ_AFTER(1, 0, X)),
    SCENARIO("timeline-read-write", TIMELINES, 2, READ(0, 0, X), WRITE_AFTER(1, 0, X)),
    SCENARIO("timeline-write-write", TIMELINES, 2, WRITE(0, 0, X), WRITE_AFTER(1, 0, X)),
    SCENARIO("timeline-three", TIMELINES, 3, WRITE(0, 0, X), READ_AFTER(1, 0, X),
             WRITE_AFTER(2, 0, X)),
    SCENARIO("timeline-wait-on-host", TIMELINES, 2, WRITE(0, 0, X),
             {.role = 1, .host = true, .reads = X, .waits = true}),
    SCENARIO("timeline-signal-on-host", TIMELINES, 2, {.role = 0, .host = true, .writes = X},
             {.role = 1, .reads = X, .waits = true, .by_call = true}),
    SCENARIO("ahead-write-read", AHEAD, 2, WRITE(0, 0, X), READ_AFTER(1, 0, X)),
    SCENARIO("ahead-read-write", AHEAD, 2, READ(0, 0, X), WRITE_AFTER(1, 0, X)),
    SCENARIO("ahead-three", AHEAD, 3, WRITE(0, 0, X), READ_AFTER(1, 0, X),
             WRITE_AFTER(2, 0, X)),
};

const size_t n_order_scenarios = ARRAY_SIZE(order_scenarios);
