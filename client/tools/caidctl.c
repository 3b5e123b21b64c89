/* SPDX-License-Identifier: Apache-2.0 */
/* caidctl(1): the command line, and the connection for the verb. */
#include <getopt.h>
#include <locale.h>
#include <signal.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include "ctl.h"
#include "format.h"
#include "report.h"

#define COUNT_MAX 1000000

enum ctl_option {
    OPT_ALL = 1 << 0,
    OPT_POOL = 1 << 1,
    OPT_LONG = 1 << 2,
    OPT_COUNT = 1 << 3,
    OPT_BYTES = 1 << 4,
    OPT_UNNAMED = 1 << 5,
    OPT_DEVICE = 1 << 6,
    OPT_PREFIX = 1 << 7,
    OPT_IGNORE = 1 << 8,
    OPT_LOST = 1 << 9,
    OPT_FORCE = 1 << 10,
    OPT_UNDO = 1 << 11,
    OPT_UID = 1 << 12,
    OPT_METHOD = 1 << 13,
    OPT_SVG = 1 << 14,
    OPT_DELAY = 1 << 15,
    OPT_D = 1 << 16, /* -d, which is --device or --delay */
    OPT_TICKETS = 1 << 17,
    OPT_PID = 1 << 18,
    OPT_GONE = 1 << 19,
    OPT_SORT = 1 << 20,
    OPT_BATCH = 1 << 21,
    OPT_B = 1 << 22, /* -b, which is --batch where that is, else --bytes */
};

struct verb {
    const char *name;
    int (*run)(struct ctl *ctl, int argc, char **argv);
    int min_args, max_args; /* max -1: any number */
    unsigned options;       /* enum ctl_option, beside those that all verbs take */
    bool offline;
};

static const struct verb verbs[] = {
    {"status", verb_status, 0, 0, OPT_BYTES, false},
    {"list", verb_list, 0, 1, OPT_ALL | OPT_POOL | OPT_LONG | OPT_BYTES | OPT_LOST | OPT_SORT,
     false},
    {"show", verb_show, 0, 1, OPT_POOL | OPT_BYTES | OPT_UNNAMED | OPT_TICKETS | OPT_SORT,
     false},
    {"map", verb_map, 0, 0, OPT_POOL | OPT_BYTES | OPT_SVG, false},
    {"top", verb_top, 0, 0, OPT_BYTES | OPT_BATCH | OPT_COUNT | OPT_DELAY | OPT_D, false},
    {"stat", verb_stat, 0, 1, OPT_BYTES | OPT_COUNT, false},
    {"pools", verb_pools, 0, 0, OPT_BYTES, false},
    {"users", verb_users, 0, 0, OPT_BYTES, false},
    {"connections", verb_connections, 0, 0, 0, false},
    {"info", verb_info, 0, 1, OPT_BYTES, false},
    {"timelines", verb_timelines, 0, 0, OPT_ALL | OPT_POOL, false},
    {"channels", verb_channels, 0, 1, OPT_ALL | OPT_POOL, false},
    {"doctor", verb_doctor, 0, 0, OPT_BYTES, true},
    {"monitor", verb_monitor, 0, 0, OPT_UID | OPT_POOL | OPT_METHOD, false},
    {"drain", verb_drain, 0, 0, OPT_FORCE | OPT_UNDO | OPT_BYTES, false},
    {"flush", verb_flush, 0, 0, OPT_DEVICE | OPT_D | OPT_BYTES, false},
    {"watch", verb_watch, 1, 1, OPT_POOL | OPT_COUNT | OPT_PREFIX, false},
    {"unlink", verb_unlink, 1, -1, OPT_POOL | OPT_PREFIX | OPT_IGNORE, false},
    {"withdraw", verb_withdraw, 0, 0, OPT_PID | OPT_GONE, false},
    {"kick", verb_kick, 1, 1, 0, false},
    {"ping", verb_ping, 0, 0, OPT_COUNT, false},
    {"version", verb_version, 0, 0, 0, true},
};

#ifndef CAID_TOP
int
verb_top(struct ctl *ctl UNUSED, int argc UNUSED, char **argv UNUSED)
{
    ctl_complain("top", "left out: caidctl was built without ncurses");
    return CTL_LOCAL;
}
#endif

static const char usage[] =
    "usage: caidctl [OPTION]... [VERB]\n"
    "\n"
    "  status               the daemon, its driver and devices (the default)\n"
    "  list [PREFIX]        named arrays of a pool; with *, ? or [, those that match the pattern\n"
    "  show [NAME]          one array and who holds it; without NAME: who holds what,\n"
    "                       or what --pool, --unnamed or --tickets names\n"
    "  map                  memory as a picture: devices, pools, blocks, what lies in them\n"
    "  top                  who holds what, live, with rates, and who waits for whom\n"
    "  stat [SECONDS]       a line for each device each second: rates, clients, memory\n"
    "  pools                pools that may be read\n"
    "  users                what each uid is charged: yours, or all for root and the daemon's own\n"
    "  connections          open connections, and ended ones whose process may use memory\n"
    "  info [DEVICE]        memory per device; DEVICE is an index, UUID or PCI address\n"
    "  timelines            timelines of a pool, and who signals them\n"
    "  channels [PREFIX]    who takes part in the channels of a pool, and how far each is\n"
    "  doctor               what works here, what is slow or at risk, and what to do about it\n"
    "  monitor              messages as they pass, until interrupted\n"
    "  drain                refuse new arrays, and wait until the last one has gone\n"
    "  load MODEL...        put a model's weights under a name, from safetensors files\n"
    "  save MODEL FILE      write a model's weights to a safetensors file\n"
    "  get NAME [FILE]      write an array to a .npy file, or to standard output\n"
    "  put NAME [FILE]      put what a .npy file, or standard input, holds under a name\n"
    "  flush                free what waits in the deallocation queues, and empty blocks\n"
    "  watch [NAME]         each array that gets the name, or one of --prefix, until interrupted\n"
    "  unlink [NAME]...     remove names, or those of --prefix; whoever holds the arrays keeps them\n"
    "  withdraw             end tickets of --pid, --gone or both: arrays sent that nobody has taken\n"
    "  kick CLIENT          end the connections of a process, given by its pid or its client's name\n"
    "  ping                 round trips to the daemon\n"
    "  version              the version of caidctl\n"
    "\n"
    "  -s, --socket=PATH    the daemon's socket\n"
    "  -j, --json           for programs\n"
    "  -p, --pool=POOL      that pool, not your own (list, show, timelines, channels, unlink,\n"
    "                       watch); only that pool (map, monitor)\n"
    "  -b, --batch          text, not a screen, look by look (top)\n"
    "      --bytes          exact sizes; -b says it, too, but of top (all but monitor, ping, timelines, unlink, version, watch)\n"
    "  -a, --all            every pool that may be read (list, timelines, channels)\n"
    "  -u, --unnamed        arrays without a name and the processes that keep them (show)\n"
    "      --tickets        arrays that were sent and nobody has taken (show)\n"
    "  -d, --device=DEVICE  only that device: index, UUID, PCI address (flush)\n"
    "  -l, --long           more columns (list)\n"
    "      --lost           names whose arrays did not come back from an earlier daemon (list)\n"
    "      --sort=KEY       by size, leases, age, published, opened or held, largest first (list, show -u)\n"
    "      --prefix=PREFIX  all names that start with it (unlink, watch)\n"
    "      --svg=PATH       write the picture to a file for a browser (map)\n"
    "  -f, --ignore-missing a missing name is no failure (unlink)\n"
    "      --force          unlink all names, and do not wait for whoever holds arrays (drain)\n"
    "      --undo           allow new arrays again (drain)\n"
    "      --uid=UID        messages of that user, not your own, or of \"all\" (monitor)\n"
    "      --method=METHOD  only requests of that method, and their answers (monitor)\n"
    "      --pid=PID        tickets that the process has sent (withdraw)\n"
    "      --gone           tickets whose sender has gone (withdraw)\n"
    "  -c, --count=N        how many round trips (ping), changes (watch), or looks, also -n (stat, top)\n"
    "      --delay=SECONDS  time between two looks, also -d (top)\n"
    "  -h, --help           this text\n"
    "  -V, --version        the version of caidctl\n"
    "\n"
    "Exit status: 0; 1 for an error here (doctor: a problem); 2 for a refusal by the daemon.\n"
    "See caidctl(1); for the options of load, save, get and put, 'caidctl load --help'.\n";

static const struct option long_options[] = {
    {"socket", required_argument, NULL, 's'}, {"json", no_argument, NULL, 'j'},
    {"bytes", no_argument, NULL, 'B'},        {"pool", required_argument, NULL, 'p'},
    {"all", no_argument, NULL, 'a'},          {"long", no_argument, NULL, 'l'},
    {"unnamed", no_argument, NULL, 'u'},      {"device", required_argument, NULL, 'E'},
    {"delay", required_argument, NULL, 'D'},  {"count", required_argument, NULL, 'c'},
    {"help", no_argument, NULL, 'h'},         {"version", no_argument, NULL, 'V'},
    {"prefix", required_argument, NULL, 'P'}, {"ignore-missing", no_argument, NULL, 'f'},
    {"lost", no_argument, NULL, 'L'},         {"force", no_argument, NULL, 'F'},
    {"undo", no_argument, NULL, 'U'},         {"uid", required_argument, NULL, 'I'},
    {"method", required_argument, NULL, 'M'}, {"svg", required_argument, NULL, 'S'},
    {"tickets", no_argument, NULL, 'T'},      {"pid", required_argument, NULL, 'i'},
    {"gone", no_argument, NULL, 'G'},         {"sort", required_argument, NULL, 'O'},
    {"batch", no_argument, NULL, 'H'},        {0},
};

static int
bad_usage(const char *what, const char *why)
{
    ctl_complain(what, why);
    fputs("Try 'caidctl --help'.\n", stderr);
    return CTL_LOCAL;
}

static const struct verb *
find_verb(const char *name)
{
    for (size_t i = 0; i < ARRAY_SIZE(verbs); i++)
        if (strcmp(verbs[i].name, name) == 0)
            return &verbs[i];
    return NULL;
}

static int
parse_count(struct ctl *ctl, const char *text)
{
    unsigned long count;

    if (!ctl_number(text, COUNT_MAX, &count) || count == 0)
        return bad_usage(text, "not a count from 1 to 1000000");
    ctl->count = (uint32_t)count;
    return CTL_OK;
}

/* Returns CTL_OK or the exit status. *ret_done: there is nothing left to do, also with CTL_OK. */
static int
parse_options(struct ctl *ctl, int argc, char **argv, unsigned *ret_given, bool *ret_done)
{
    int c, status = CTL_OK;

    while (status == CTL_OK &&
           (c = getopt_long(argc, argv, "s:jbp:alufd:c:n:hV", long_options, NULL)) >= 0)
        switch (c) {
        case 's': ctl->socket = optarg; break;
        case 'j': ctl->json = true; break;
        case 'b': *ret_given |= OPT_B; break;
        case 'B': *ret_given |= OPT_BYTES; break;
        case 'H': *ret_given |= OPT_BATCH; break;
        case 'p': *ret_given |= OPT_POOL, ctl->pool = optarg; break;
        case 'a': *ret_given |= OPT_ALL, ctl->all = true; break;
        case 'l': *ret_given |= OPT_LONG, ctl->long_ = true; break;
        case 'u': *ret_given |= OPT_UNNAMED, ctl->unnamed = true; break;
        case 'd': *ret_given |= OPT_D, ctl->device = ctl->delay = optarg; break;
        case 'E': *ret_given |= OPT_DEVICE, ctl->device = optarg; break;
        case 'D': *ret_given |= OPT_DELAY, ctl->delay = optarg; break;
        case 'P': *ret_given |= OPT_PREFIX, ctl->prefix = optarg; break;
        case 'L': *ret_given |= OPT_LOST, ctl->lost = true; break;
        case 'F': *ret_given |= OPT_FORCE, ctl->force = true; break;
        case 'S': *ret_given |= OPT_SVG, ctl->svg = optarg; break;
        case 'U': *ret_given |= OPT_UNDO, ctl->undo = true; break;
        case 'I': *ret_given |= OPT_UID, ctl->uid = optarg; break;
        case 'T': *ret_given |= OPT_TICKETS, ctl->tickets = true; break;
        case 'i': *ret_given |= OPT_PID, ctl->pid = optarg; break;
        case 'O': *ret_given |= OPT_SORT, ctl->sort = optarg; break;
        case 'G': *ret_given |= OPT_GONE, ctl->gone = true; break;
        case 'M': *ret_given |= OPT_METHOD, ctl->method = optarg; break;
        case 'f': *ret_given |= OPT_IGNORE, ctl->ignore_missing = true; break;
        case 'n':
        case 'c': *ret_given |= OPT_COUNT, status = parse_count(ctl, optarg); break;
        case 'h': fputs(usage, stdout), *ret_done = true; return CTL_OK;
        case 'V': printf("caidctl %s\n", caid_version()), *ret_done = true; return CTL_OK;
        default: fputs("Try 'caidctl --help'.\n", stderr); return CTL_LOCAL;
        }
    return status;
}

static int
check_usage(const struct ctl *ctl, const struct verb *verb, unsigned given, int n_args)
{
    if (given & ~verb->options)
        return bad_usage(verb->name, "does not take one of these options");
    if (ctl->prefix && (n_args > 0 || !*ctl->prefix))
        return bad_usage(verb->name, n_args > 0 ? "--prefix and names exclude each other"
                                                : "an empty --prefix would be all names");
    if (n_args < verb->min_args && !ctl->prefix)
        return bad_usage(verb->name, "needs an argument");
    if (verb->max_args >= 0 && n_args > verb->max_args)
        return bad_usage(verb->name, "too many arguments");
    if (ctl->all && ctl->pool)
        return bad_usage(verb->name, "--all and --pool exclude each other");
    if (ctl->force && ctl->undo)
        return bad_usage(verb->name, "--force and --undo exclude each other");
    if (ctl->svg && ctl->json)
        return bad_usage(verb->name, "--svg and --json exclude each other");
    if (ctl->sort && ctl->json)
        return bad_usage(verb->name, "--sort and --json exclude each other");
    if (ctl->sort && (ctl->lost || ctl->tickets || (verb->run == verb_show && !ctl->unnamed)))
        return bad_usage(verb->name, "--sort is for list and show --unnamed");
    if (ctl->sort && !report_can_sort(ctl->sort, ctl->unnamed))
        return bad_usage(ctl->sort, "not size, leases, age, published, opened, or held (show)");
    if ((ctl->unnamed || ctl->tickets) && n_args > 0)
        return bad_usage(verb->name,
                         "--unnamed, --tickets and the name of an array exclude each other");
    if (ctl->tickets && (ctl->unnamed || ctl->pool))
        return bad_usage(verb->name, "--tickets excludes --unnamed and --pool");
    if (verb->run == verb_withdraw && !ctl->pid && !ctl->gone)
        return bad_usage(verb->name, "needs --pid or --gone");
    return CTL_OK;
}

static int
run_verb(struct ctl *ctl, const struct verb *verb, int argc, char **argv)
{
    if (!verb->offline && ctl_connect(ctl) < 0) {
        _cleanup_free_ char *why = format_plain(ctl->error.message);
        fprintf(stderr, "caidctl: %s\n", why); /* the message starts with the socket */
        return ctl_status(ctl);
    }
    int status = verb->run(ctl, argc, argv);
    caid_client_close(ctl->client);
    return status;
}

/* Writes JSON when the document is complete: a verb that fails on the way prints no half of it. */
static int
run_with_json(struct ctl *ctl, const struct verb *verb, int argc, char **argv)
{
    _cleanup_free_ char *text = NULL;
    size_t size;

    FILE *out = open_memstream(&text, &size);
    if (!out)
        out_of_memory();
    json_init(&ctl->out, out);
    int status = run_verb(ctl, verb, argc, argv);
    if (fclose(out) != 0)
        out_of_memory();
    if (ctl->json && ctl->out.depth == 0)
        fputs(text, stdout);
    return status;
}

/* A full disk is an error, too. */
static int
flush_stdout(int status)
{
    if (fflush(stdout) == 0 && !ferror(stdout))
        return status;
    ctl_complain("stdout", strerror(errno));
    return CTL_LOCAL;
}

int
main(int argc, char **argv)
{
    struct ctl ctl = {0};
    unsigned given = 0;
    bool done = false;

    signal(SIGXFSZ, SIG_IGN); /* a write beyond the limit is then an error, as on a full disk */
    if (!setlocale(LC_CTYPE, "") || MB_CUR_MAX == 1)
        setlocale(LC_CTYPE, "C.UTF-8"); /* names are UTF-8 in any case */
    int status = verbs_package(argc, argv);
    if (status == CTL_OK)
        status = parse_options(&ctl, argc, argv, &given, &done);
    if (status != CTL_OK || done)
        return flush_stdout(status);

    argc -= optind;
    argv += optind;
    const char *name = argc > 0 ? argv[0] : "status";
    const struct verb *verb = find_verb(name);
    if (!verb)
        return bad_usage(name, "no such verb");
    if (argc > 0)
        argc--, argv++;
    if (given & OPT_B)
        given ^= OPT_B | (verb->options & OPT_BATCH ? OPT_BATCH : OPT_BYTES);
    ctl.bytes = given & OPT_BYTES;
    ctl.batch = given & OPT_BATCH;
    status = check_usage(&ctl, verb, given, argc);
    if (status == CTL_OK)
        status = run_with_json(&ctl, verb, argc, argv);
    return flush_stdout(status);
}
