/* SPDX-License-Identifier: Apache-2.0 */
/*
 * The verb top: the output of show, refreshed again and again on a screen of ncurses. Each look at
 * the daemon makes a text; the screen shows as many of its lines as fit.
 */
#include <curses.h>
#include <inttypes.h>
#include <search.h>
#include <stdlib.h>
#include <string.h>
#include <unistd.h>

#include "base/clock.h"
#include "base/presence.h"
#include "channels.h"
#include "format.h"
#include "report.h"

#define BAR     30 /* columns */
#define DELAY_S 2.0

/* What a process holds in a pool. */
struct holding {
    char *pool, *client, *age, *held;
    uint64_t pid, arrays, bytes, reading, writing, waiting, age_ns;
    uint64_t held_ns; /* of the lease that it has had longest */
    uint32_t uid;
};

static const struct field holding_fields[] = {
    FIELD(TEXT, holding, pool, NULL, "POOL"),
    FIELD(COUNT, holding, pid, NULL, "PID"),
    FIELD(UID, holding, uid, NULL, "USER"),
    FIELD(TEXT, holding, client, NULL, "CLIENT"),
    FIELD(TEXT, holding, age, NULL, "AGE"),
    FIELD(TEXT, holding, held, NULL, "HELD"),
    FIELD(COUNT, holding, arrays, NULL, "ARRAYS"),
    FIELD(BYTES, holding, bytes, NULL, "SIZE"),
    FIELD(COUNT, holding, reading, NULL, "READS"),
    FIELD(COUNT, holding, writing, NULL, "WRITES"),
    FIELD(COUNT, holding, waiting, NULL, "WAITS"),
    {0},
};

struct look {
    struct ctl *ctl;
    FILE *out;
    void *tree; /* of holdings, for tsearch(3) */
    struct holding **rows;
    size_t n;
};

struct top {
    struct ctl *ctl;
    int sort;               /* the key that was pressed for the order */
    size_t first;           /* the first line that is shown */
    struct caid_status was; /* at an earlier look */
    uint64_t was_ns;
    bool sees_daemon;    /* the daemon's lock was held at that look */
    double opens, begun; /* per second, since then */
    struct channels channels;
    char *text; /* what the last look that succeeded made */
};

/* ---- by process ---- */

static int
compare(const void *a, const void *b)
{
    const struct holding *x = a, *y = b;
    int c = strcmp(x->pool, y->pool);

    if (c == 0)
        c = (x->pid > y->pid) - (x->pid < y->pid);
    return c ? c : strcmp(x->client, y->client);
}

/* The time since the process was started, by /proc; 0: not known. */
static uint64_t
process_age_ns(uint64_t pid)
{
    _cleanup_free_ char *path = format_text("/proc/%" PRIu64 "/stat", pid);
    char line[1024], *at = NULL;

    FILE *in = fopen(path, "re");
    if (in && fgets(line, sizeof(line), in))
        at = strrchr(line, ')');
    if (in)
        fclose(in);
    for (int field = 2; at && field < 22; field++) /* proc(5) */
        at = strchr(at + 1, ' ');
    uint64_t ticks = at ? strtoull(at, NULL, 10) : 0, hz = (uint64_t)sysconf(_SC_CLK_TCK);
    return at ? clock_boot_ns() - ticks * (NSEC_PER_SEC / hz) : 0;
}

static struct holding *
get_holding(struct look *look, const char *pool, const struct caid_holder *holder)
{
    const char *client = holder->client ? holder->client : "-";
    struct holding *new = calloc(1, sizeof(*new)), **found;

    if (!new)
        out_of_memory();
    *new = (struct holding){.pool = format_text("%s", pool),
                            .client = format_text("%s", client),
                            .pid = holder->pid,
                            .uid = holder->uid};
    found = tsearch(new, &look->tree, compare);
    if (!found)
        out_of_memory();
    if (*found != new) {
        free(new->pool);
        free(new->client);
        free(new);
        return *found;
    }
    new->age_ns = process_age_ns(new->pid);
    new->age = new->age_ns ? format_duration(new->age_ns) : format_text("-");
    look->rows = reallocarray(look->rows, look->n + 1, sizeof(look->rows[0]));
    if (!look->rows)
        out_of_memory();
    look->rows[look->n++] = new;
    return new;
}

/* Who waits for an array, and who has it. */
static void
add_waits(const struct look *look, const struct caid_details *d)
{
    _cleanup_free_ char *name = format_plain(*d->entry->name ? d->entry->name : "(unnamed)");

    for (size_t i = 0; i < d->n_holders; i++) {
        const struct caid_holder *h = d->holders[i];
        _cleanup_free_ char *client = format_plain(h->client ? h->client : "-");
        if (h->waiting || h->writing || h->reading)
            fprintf(look->out, "%s: pid %" PRIu64 " (%s) %s\n", name, h->pid, client,
                    h->waiting   ? "waits"
                    : h->writing ? "writes, and is waited for"
                                 : "reads, and is waited for");
    }
}

static int
add_array(const struct caid_details *d, void *userdata)
{
    struct look *look = userdata;

    for (size_t i = 0; i < d->n_holders; i++) {
        const struct caid_holder *h = d->holders[i];
        struct holding *row = get_holding(look, d->entry->pool, h);
        row->arrays++;
        row->held_ns = h->age_ns > row->held_ns ? h->age_ns : row->held_ns;
        row->bytes += d->entry->nbytes;
        row->reading += h->reading;
        row->writing += h->writing;
        row->waiting += h->waiting;
    }
    if (d->entry->waiting > 0)
        add_waits(look, d);
    return 0;
}

static int sort_key; /* static, since qsort(3) has no userdata */

static int
in_order(const void *a, const void *b)
{
    const struct holding *x = *(struct holding *const *)a, *y = *(struct holding *const *)b;
    int by_age = (x->age_ns < y->age_ns) - (x->age_ns > y->age_ns);
    int by_held = (x->held_ns < y->held_ns) - (x->held_ns > y->held_ns);
    int by_size = (x->bytes < y->bytes) - (x->bytes > y->bytes);
    int by_pid = (x->pid > y->pid) - (x->pid < y->pid);
    int c = sort_key == 's'   ? by_size
            : sort_key == 'a' ? by_age
            : sort_key == 'h' ? by_held
            : sort_key == 'i' ? by_pid
                              : 0;

    return c ? c : compare(x, y);
}

static void
add_processes(struct look *look, int sort)
{
    _cleanup_table_ struct table table;

    sort_key = sort;
    if (look->n > 0)
        qsort(look->rows, look->n, sizeof(look->rows[0]), in_order);
    record_columns(holding_fields, &table);
    for (size_t i = 0; i < look->n; i++) {
        look->rows[i]->held = format_duration(look->rows[i]->held_ns);
        record_row(look->ctl, holding_fields, look->rows[i], &table);
    }
    fputc('\n', look->out);
    table_write(&table, true, look->out);
}

static void
holding_free(void *userdata)
{
    struct holding *holding = userdata;

    free(holding->pool);
    free(holding->client);
    free(holding->age);
    free(holding->held);
    free(holding);
}

/* ---- the daemon ---- */

/* Computes rates since the earlier look, if enough time has passed and the daemon is the same. */
static void
add_status(struct top *top, const struct look *look, const struct caid_status *s)
{
    _cleanup_free_ char *uptime = format_duration(s->uptime_ns);
    uint64_t now_ns = clock_now_ns();
    double seconds = (double)(now_ns - top->was_ns) / NSEC_PER_SEC;

    if (s->pid != top->was.pid || s->opens < top->was.opens) {
        top->opens = top->begun = 0;
    } else if (seconds > 0.05) {
        top->opens = (double)(s->opens - top->was.opens) / seconds;
        top->begun = (double)(s->begun - top->was.begun) / seconds;
    }
    if (seconds > 0.05) {
        top->was = *s;
        top->was_ns = now_ns;
    }
    fprintf(look->out,
            "%s, up %s: %" PRIu64 " clients, %" PRIu64
            " arrays, %.1f opens/s, %.1f hand-offs/s\n",
            s->server, uptime, s->connections, s->arrays, top->opens, top->begun);
}

static int
add_device(const struct look *look, int32_t index)
{
    struct ctl *ctl = look->ctl;
    struct caid_memory_info m = CAID_INIT(m);

    if (caid_memory_info(ctl->client, index, &m, &ctl->error) < 0)
        return -1;
    _cleanup_free_ char *used = format_bytes(m.used, ctl->bytes);
    _cleanup_free_ char *left = format_bytes(m.free, ctl->bytes);
    _cleanup_free_ char *total = format_bytes(m.total, ctl->bytes);
    double unit = m.total ? (double)BAR / (double)m.total : 0;
    int caid = (int)((double)m.used * unit + 0.99),
        taken = (int)((double)(m.total - m.free) * unit);

    fprintf(look->out, "device %" PRId32 " ", index);
    for (int i = 0; i < BAR; i++)
        fputs(i < caid ? "█" : i < taken ? "▒" : "·", look->out);
    fprintf(look->out, " caid %s, free %s of %s\n", used, left, total);
    return 0;
}

/* Where somebody takes part in one. */
static int
add_channels(struct top *top, const struct look *look, const struct caid_list_options *options)
{
    _cleanup_table_ struct table table = {0};

    if (channels_report(&top->channels, look->ctl, NULL, options, NULL, &table) != CTL_OK)
        return -1;
    if (top->channels.n > 0) {
        fputc('\n', look->out);
        table_write(&table, true, look->out);
    }
    return 0;
}

static int
look_at(struct top *top, struct look *look)
{
    struct ctl *ctl = look->ctl;
    struct caid_status status = CAID_INIT(status);
    struct caid_list_options options = CAID_INIT(options);
    _cleanup_table_ struct table pools = {0};
    const struct caid_device *const *devices;
    int32_t n = caid_client_devices(ctl->client, &devices);

    options.all = true;
    rewind(ctl->out.out); /* drops the JSON that the reports have written */
    if (caid_client_status(ctl->client, &status, &ctl->error) < 0)
        return -1;
    add_status(top, look, &status);
    for (int32_t i = 0; i < n; i++)
        if (add_device(look, i) < 0)
            return -1;
    if (report_pools(ctl, NULL, POOLS_BY_MEMORY, &pools) != CTL_OK)
        return -1;
    fputc('\n', look->out);
    table_write(&pools, true, look->out);
    fputc('\n', look->out);
    if (caid_ranges(ctl->client, &options, add_array, look, &ctl->error) < 0)
        return -1;
    add_processes(look, top->sort);
    return add_channels(top, look, &options);
}

/* Connects again after the daemon has gone, unless that would start a service that was stopped. */
static int
connect_again(struct top *top)
{
    if (!top->sees_daemon || presence_is_taken(top->was.socket))
        return ctl_connect(top->ctl);
    snprintf(top->ctl->error.message, sizeof(top->ctl->error.message),
             "%s: the daemon has gone", top->was.socket);
    return -1;
}

/* < 0: ctl->error says why there is no new text. */
static int
refresh_text(struct top *top)
{
    struct look look = {.ctl = top->ctl};
    char *text = NULL;
    size_t size;

    look.out = open_memstream(&text, &size);
    if (!look.out)
        out_of_memory();
    int r = top->ctl->client ? 0 : connect_again(top);
    if (r == 0)
        r = look_at(top, &look);
    if (fclose(look.out) != 0)
        out_of_memory();
    tdestroy(look.tree, holding_free);
    free(look.rows);
    if (r < 0) {
        caid_client_close(top->ctl->client);
        top->ctl->client = NULL;
        free(text);
        return r;
    }
    top->sees_daemon = presence_is_taken(top->was.socket);
    free(top->text);
    top->text = text;
    return 0;
}

/* ---- the screen ---- */

static void
put_line(int row, const char *line, int attributes)
{
    _cleanup_free_ char *plain = format_plain(line);
    _cleanup_free_ char *cut = format_cut(plain, (size_t)COLS);

    attrset((attr_t)attributes);
    mvaddstr(row, 0, cut);
    attrset(A_NORMAL);
}

static void
draw(struct top *top, bool is_old)
{
    static const char help[] =
        "q quit  sort by: p pool  i process  a age  h held  s size  up, down";
    _cleanup_free_ char *text = format_text("%s", top->text);
    char *rest = text, *line;
    size_t i = 0;

    erase();
    for (int row = 0; row < LINES - 1 && (line = strsep(&rest, "\n"));)
        if (i++ >= top->first || i == 1)
            put_line(row++, line, i == 1 ? A_BOLD : A_NORMAL);
    put_line(LINES - 1, is_old ? top->ctl->error.message : help, A_REVERSE);
    refresh();
}

/* Returns whether to go on. */
static bool
take_key(struct top *top, int key)
{
    switch (key) {
    case 'q': return false;
    case 'p':
    case 'i':
    case 'a':
    case 'h':
    case 's': top->sort = key; break;
    case KEY_DOWN: top->first++; break;
    case KEY_UP: top->first -= top->first > 0; break;
    default: break;
    }
    return true;
}

static int
top_run(struct top *top, int delay_ms)
{
    uint32_t n = 0;
    bool goes_on = true;

    while (goes_on) {
        int r = refresh_text(top);
        if (r < 0 && !top->text)
            return ctl_status(top->ctl);
        draw(top, r < 0);
        if (++n == top->ctl->count)
            break;
        timeout(delay_ms);
        goes_on = take_key(top, getch());
    }
    return CTL_OK;
}

/* Prints looks one after the other, for files and pipes. */
static int
top_batch(struct top *top, double delay_s)
{
    const struct timespec delay = {.tv_sec = (time_t)delay_s,
                                   .tv_nsec =
                                       (long)((delay_s - (double)(time_t)delay_s) * 1e9)};

    for (uint32_t n = 0; !ferror(stdout); nanosleep(&delay, NULL)) {
        if (refresh_text(top) < 0)
            return ctl_failed(top->ctl, "top");
        printf("%s%s", n > 0 ? "\n" : "", top->text);
        fflush(stdout);
        if (++n == top->ctl->count)
            break;
    }
    return CTL_OK; /* main() reports an error of stdout at the end */
}

int
verb_top(struct ctl *ctl, int argc UNUSED, char **argv UNUSED)
{
    double delay = DELAY_S;
    struct top top = {.ctl = ctl, .sort = 's'};

    if (ctl->delay && !ctl_seconds(ctl->delay, &delay))
        return CTL_LOCAL;
    if (ctl->batch && !ctl->json) {
        int batch = top_batch(&top, delay);
        free(top.text);
        channels_deinit(&top.channels);
        return batch;
    }
    SCREEN *screen = isatty(STDOUT_FILENO) ? newterm(NULL, stdout, stdin) : NULL;
    if (!screen || ctl->json) {
        ctl_complain("top", "needs a terminal or --batch, and has no --json; see caidctl stat");
        return CTL_LOCAL;
    }
    cbreak();
    noecho();
    keypad(stdscr, true);
    curs_set(0);
    ctl->is_quiet = true;
    int status = top_run(&top, (int)(delay * 1000));
    endwin();
    delscreen(screen);
    free(top.text);
    channels_deinit(&top.channels);
    ctl->is_quiet = false;
    return status == CTL_OK ? CTL_OK : ctl_failed(ctl, "top");
}
