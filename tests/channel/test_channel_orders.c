/* SPDX-License-Identifier: Apache-2.0 */
/*
 * The protocol of channels in all orders (explore.h). What the letters of a script are: actors.c.
 * Those that are long run where CAID_TEST_SEQUENCES is above 10,000; the one that is named, alone.
 */
#include "explore.h"

#include <stdio.h>
#include <stdlib.h>
#include <string.h>

static const struct scenario scenarios[] = {
    {
        .name = "latest: a stream reads",
        .scripts = {"PPPPP", [READER] = "GEGE"},
        .n_slots = 1 + CORE_SPARE,
        .depths = {1},
        .weak = true,
    },
    {
        .name = "latest: a stream reads two at once",
        .scripts = {"PPPPPP", [READER] = "GGeGEE"},
        .n_slots = 2 + CORE_SPARE,
        .depths = {2},
    },
    {
        .name = "latest: the host reads what streams fill",
        .scripts = {"PPPPP", [READER] = "GEGE"},
        .n_slots = 1 + CORE_SPARE,
        .depths = {1},
        .hosts = 1,
    },
    {
        .name = "latest: the host fills and reads",
        .scripts = {"PPPPP", [READER] = "GEGE"},
        .n_slots = 1 + CORE_SPARE_HOST,
        .depths = {1},
        .host_producers = true,
        .hosts = 1,
        .weak = true,
    },
    {
        .name = "latest: puts that are given up",
        .scripts = {"PVPVP", [READER] = "GEGE"},
        .n_slots = 1 + CORE_SPARE,
        .depths = {1},
        .hosts = 1,
    },
    {
        .name = "latest: a slot that is taken for nothing",
        .scripts = {"PPPPTP", [READER] = "GE"},
        .n_slots = 1 + CORE_SPARE,
        .depths = {1},
        .hosts = 1,
    },
    {
        .name = "latest: two readers",
        .scripts = {"PPP", [READER] = "GE", "GE"},
        .n_slots = 2 + CORE_SPARE,
        .depths = {1, 1},
        .hosts = 2,
    },
    {
        .name = "latest: two readers, one deep",
        .scripts = {"PPP", [READER] = "GGEE", "GE"},
        .n_slots = 3 + CORE_SPARE,
        .depths = {2, 1},
    },
    {
        .name = "latest: one joins and leaves",
        .scripts = {"PPPPM", [READER] = "JGEL"},
        .n_slots = 1 + CORE_SPARE,
        .depths = {1},
        .late = 1,
    },
    {
        .name = "latest: one announces anything",
        .scripts = {"PPP", [READER] = "GE", "H"},
        .n_slots = 2 + CORE_SPARE,
        .depths = {1, 1},
    },
    {
        .name = "latest: a reader dies",
        .scripts = {"PPPP", [READER] = "GEGE", [KILLER + 1] = "K"},
        .n_slots = 1 + CORE_SPARE,
        .depths = {1},
        .mortals = 1 << READER,
    },
    {
        .name = "latest: the producer dies",
        .scripts = {"PPP", "JPP", [READER] = "GEGE", [KILLER] = "K"},
        .n_slots = 1 + CORE_SPARE,
        .depths = {1},
        .mortals = 1 << FIRST,
    },
    {
        .name = "latest: two readers, and the producer dies",
        .scripts = {"PP", "JP", [READER] = "GE", "GE", [KILLER] = "K"},
        .n_slots = 2 + CORE_SPARE,
        .depths = {1, 1},
        .mortals = 1 << FIRST,
    },
    {
        .name = "latest: the producer of the host dies",
        .scripts = {"PPPP", "JPP", [READER] = "GEGE", [KILLER] = "K"},
        .n_slots = 1 + CORE_SPARE_HOST,
        .depths = {1},
        .host_producers = true,
        .hosts = 1,
        .mortals = 1 << FIRST,
    },
    {
        .name = "latest: nothing comes after the producer dies",
        .scripts = {"PP", "J", [READER] = "GEGE", [KILLER] = "K"},
        .n_slots = 1 + CORE_SPARE,
        .depths = {1},
        .mortals = 1 << FIRST,
    },
    {
        .name = "latest: the producer closes",
        .scripts = {"PC", "JPPPP", [READER] = "GEGE"},
        .n_slots = 1 + CORE_SPARE,
        .depths = {1},
    },
    {
        .name = "latest: the producer of the host closes",
        .scripts = {"PC", "JPPPP", [READER] = "GEGE"},
        .n_slots = 1 + CORE_SPARE_HOST,
        .depths = {1},
        .host_producers = true,
        .hosts = 1,
    },
    {
        .name = "latest: the producer closes, or dies",
        .scripts = {"PPC", "JPP", [READER] = "GEGE", [KILLER] = "K"},
        .n_slots = 1 + CORE_SPARE,
        .depths = {1},
        .mortals = 1 << FIRST,
    },
    {
        .name = "latest: both die",
        .scripts = {"PP", "JPP", [READER] = "GEGE", [KILLER] = "K", "K"},
        .n_slots = 1 + CORE_SPARE,
        .depths = {1},
        .mortals = 1 << FIRST | 1 << READER,
    },
    {
        .name = "latest: the producer dies, and the host reads",
        .scripts = {"PPP", "JPP", [READER] = "GEGE", [KILLER] = "K"},
        .n_slots = 1 + CORE_SPARE,
        .depths = {1},
        .hosts = 1,
        .mortals = 1 << FIRST,
        .weak = true,
    },
    {
        .name = "fifo: a stream reads",
        .scripts = {"PPPP", [READER] = "GEGEGEGE"},
        .n_slots = 2,
        .depths = {1},
        .fifo = true,
        .weak = true,
    },
    {
        .name = "fifo: a stream reads out of order",
        .scripts = {"PPPPPP", [READER] = "GGeEGGeEGGEE"},
        .n_slots = 3,
        .depths = {2},
        .fifo = true,
    },
    {
        .name = "fifo: the host reads what streams fill",
        .scripts = {"PPPP", [READER] = "GEGEGEGE"},
        .n_slots = 2,
        .depths = {1},
        .fifo = true,
        .hosts = 1,
        .weak = true,
    },
    {
        .name = "fifo: the host fills and reads",
        .scripts = {"PPPP", [READER] = "GEGEGEGE"},
        .n_slots = 2,
        .depths = {1},
        .fifo = true,
        .host_producers = true,
        .hosts = 1,
        .weak = true,
    },
    {
        .name = "fifo: puts that are given up",
        .scripts = {"PVPTVP", [READER] = "GEGEGE"},
        .n_slots = 2,
        .depths = {1},
        .fifo = true,
        .weak = true,
    },
    {
        .name = "fifo: as many as there are slots",
        .scripts = {"PPP", [READER] = "GE"},
        .n_slots = 2,
        .depths = {1},
        .fifo = true,
    },
    {
        .name = "fifo: two readers",
        .scripts = {"PPP", [READER] = "GEGEGE", "GEGEGE"},
        .n_slots = 2,
        .depths = {1, 1},
        .fifo = true,
        .hosts = 2,
    },
    {
        .name = "fifo: two readers, one deep",
        .scripts = {"PPPP", [READER] = "GEGEGEGE", "GGeEGGEE"},
        .n_slots = 2,
        .depths = {1, 2},
        .fifo = true,
    },
    {
        .name = "fifo: one joins and leaves",
        .scripts = {"PPPPPM", [READER] = "JGEGEL"},
        .n_slots = 2,
        .depths = {1},
        .fifo = true,
        .late = 1,
    },
    {
        .name = "fifo: a reader dies",
        .scripts = {"PPPP", [READER] = "GEGEGEGE", [KILLER + 1] = "K"},
        .n_slots = 2,
        .depths = {1},
        .fifo = true,
        .mortals = 1 << READER,
    },
    {
        .name = "fifo: the producer dies",
        .scripts = {"PPP", "JPPP", [READER] = "GEGEGEGEGEGE", [KILLER] = "K"},
        .n_slots = 2,
        .depths = {1},
        .fifo = true,
        .mortals = 1 << FIRST,
    },
    {
        .name = "fifo: the producer of the host dies",
        .scripts = {"PPP", "JPPP", [READER] = "GEGEGEGEGEGE", [KILLER] = "K"},
        .n_slots = 2,
        .depths = {1},
        .fifo = true,
        .host_producers = true,
        .hosts = 1,
        .mortals = 1 << FIRST,
    },
    {
        .name = "fifo: the producer closes",
        .scripts = {"PPPC", "JPPP", [READER] = "GEGEGEGEGEGE"},
        .n_slots = 2,
        .depths = {1},
        .fifo = true,
    },
    {
        .name = "fifo: the producer closes, or dies",
        .scripts = {"PC", "JP", [READER] = "GEGE", [KILLER] = "K"},
        .n_slots = 2,
        .depths = {1},
        .fifo = true,
        .mortals = 1 << FIRST,
    },
    {
        .name = "fifo: both die",
        .scripts = {"PPP", "JPP", [READER] = "GEGEGEGEGE", [KILLER] = "K", "K"},
        .n_slots = 2,
        .depths = {1},
        .fifo = true,
        .mortals = 1 << FIRST | 1 << READER,
    },
    {
        .name = "long: latest: two readers",
        .scripts = {"PPPP", [READER] = "GE", "GE"},
        .n_slots = 2 + CORE_SPARE,
        .depths = {1, 1},
        .hosts = 2,
        .is_long = true,
    },
    {
        .name = "long: latest: two readers, one deep",
        .scripts = {"PPPP", [READER] = "GGEE", "GE"},
        .n_slots = 3 + CORE_SPARE,
        .depths = {2, 1},
        .is_long = true,
    },
    {
        .name = "long: latest: the producer dies",
        .scripts = {"PPP", "JPPP", [READER] = "GEGE", [KILLER] = "K"},
        .n_slots = 1 + CORE_SPARE,
        .depths = {1},
        .mortals = 1 << FIRST,
        .weak = true,
        .is_long = true,
    },
};

static bool
is_wanted(const struct scenario *s, const char *name)
{
    const char *n = getenv("CAID_TEST_SEQUENCES");

    if (name)
        return strcmp(name, s->name) == 0;
    return !s->is_long || (n && atoll(n) > 10000);
}

int
main(int argc, char **argv)
{
    setlinebuf(stdout);
    for (size_t i = 0; i < sizeof(scenarios) / sizeof(scenarios[0]); i++) {
        size_t n;
        if (!is_wanted(&scenarios[i], argc > 1 ? argv[1] : NULL))
            continue;
        explore(&scenarios[i], &n);
        printf("%s: %zu states\n", scenarios[i].name, n);
    }
    return 0;
}
