/* SPDX-License-Identifier: Apache-2.0 */
#include "explore.h"

#include <setjmp.h>
#include <stdarg.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#define WORDS  144
#define LOG    96 /* steps of a call, at most: a party that makes more never ends */
#define BUFFER 8
#define QUEUE  20
#define UNTIL  5

#define NAME          80
#define ROUND_8(size) (((size) + 7) / 8 * 8)

#define DEAD           0xfffe /* TIMELINE_DEAD */
#define DEAD_SUBMITTED 0xffff

struct area area;
const struct scenario *scenario;

/* What a party's CPU does next. */
enum kind {
    NOTHING,
    LOAD,
    SYNC,
    STORE,
    AWAIT,
    ROOM
};

static const char *const party_names[PARTIES] = {
    "producer 0", "producer 1", "reader 0", "reader 1", "reader 2",
    "daemon 0",   "daemon 1",   "daemon 2", "daemon 3",
};

static const char *const kinds[] = {"nothing", "load", "ask for", "store", "await", "room"};

struct pending {
    enum kind kind;
    bool may_stay;
    uint8_t n;
    uint8_t words[UNTIL];
    uint16_t values[UNTIL];
};

struct cpu {
    _Alignas(8) struct local local;
    uint16_t held[SLOTS]; /* bit i: it uses frame i there */

    struct {
        uint8_t word;
        bool relaxed;
        uint16_t value;
    } buffer[BUFFER];

    bool dead;
    uint8_t at; /* letter of the script */
    uint8_t n_log, n_buffer;
    _Alignas(
        8) uint16_t log[LOG]; /* behind n_log there are zeros; so it is in buffer and jobs */
};

struct job {
    uint8_t work, word, slot, view;
    uint16_t value, sequence;
};

struct stream {
    _Alignas(8) uint8_t n;
    struct job jobs[QUEUE];
};

/* Without padding: it is hashed. What follows from the rest is in struct next. */
struct state {
    _Alignas(8) uint16_t words[WORDS];
    struct cpu cpus[PARTIES];
    struct stream streams[PARTIES];
};

struct frame {
    struct state state;
    struct pending pending[PARTIES];
    uint32_t step; /* that was taken from here last */
    uint32_t next;
    bool goes_on; /* without a death */
};

static struct frame *path; /* from the beginning to here */
static size_t n_path, path_size;

static uint64_t *seen; /* hashes of states, open addressing */
static size_t n_seen, seen_size;

static struct state *now;
static struct pending *pending;

static uint8_t index_of[sizeof(struct area) / 8]; /* of the word in `words`, from 1 */
static size_t n_words;
static char names[WORDS][NAME];

struct local *own;
int me;
static struct local own_copy;
static size_t n_done; /* steps of the call that runs */
static bool may_step, is_hidden, goes_again;
static jmp_buf parked;

/* ---- words ---- */

__attribute__((format(printf, 2, 3))) static void
add_word(const void *p, const char *format, ...)
{
    va_list args;

    if (++n_words >= WORDS)
        abort();
    index_of[((const char *)p - (const char *)&area) / 8] = (uint8_t)n_words;
    va_start(args, format);
    vsnprintf(names[n_words], NAME, format, args);
    va_end(args);
}

static void
add_slot(const struct timeline_slot *slot, const char *of, int i)
{
    add_word(&slot->done, "done of %s %d", of, i);
    add_word(&slot->submitted, "submitted of %s %d", of, i);
    add_word(&slot->landed, "landed of %s %d", of, i);
}

static void
add_producer(int i)
{
    add_slot(&area.producers[i], "producer", i);
    add_word(&table_of(i)->newest, "newest of %d", i);
    add_word(&table_of(i)->landed, "last landed of %d", i);
    add_word(&table_of(i)->closed, "%d is closed", i);
    for (uint32_t j = 0; j < scenario->n_slots; j++) {
        add_word(&table_of(i)->entries[j].sequence, "sequence in entry %u of %d", j, i);
        add_word(&table_of(i)->entries[j].given_up, "void in entry %u of %d", j, i);
        add_word(&table_of(i)->entries[j].info[0], "info in entry %u of %d", j, i);
    }
}

static void
add_reader(int i)
{
    add_slot(&area.readers[i], "reader", i);
    for (uint32_t j = 0; j < scenario->depths[i]; j++) {
        add_word(&area.tails[i].announcements[j].word, "announcement %u of %d", j, i);
    }
    add_word(&area.asked[i], "reader %d wants to be let in", i);
    add_word(&area.let_in[i], "reader %d is let in", i);
    add_word(&area.left[i], "reader %d has left", i);
}

static void
add_words(void)
{
    memset(index_of, 0, sizeof(index_of));
    n_words = 0;
    for (int i = 0; i < 2 && scenario->scripts[i]; i++)
        add_producer(i);
    for (int i = 0; i < READERS && scenario->scripts[READER + i]; i++)
        add_reader(i);
    for (uint32_t i = 0; i < scenario->n_slots; i++)
        add_word(&area.contents[i], "contents of slot %u", i);
    for (int i = 0; i < PARTIES; i++)
        if (scenario->mortals >> i & 1)
            add_word(&area.exited[i], "%s has exited", party_names[i]);
    add_word(&area.departed, "the producer has left");
    add_word(&area.joined, "the second is there");
    add_word(&area.pause, "the user's work");
}

/* 0: nobody looks at it. */
static uint8_t
word_of(const void *p)
{
    size_t at = (size_t)((const char *)p - (const char *)&area);

    if (at >= sizeof(area))
        abort();
    return index_of[at / 8];
}

static uint16_t
pack(uint64_t value)
{
    if (value == TIMELINE_DEAD)
        return DEAD;
    if (value == TIMELINE_DEAD_SUBMITTED)
        return DEAD_SUBMITTED;
    if (value >= DEAD)
        broken("a value that is too large: %#llx", (unsigned long long)value);
    return (uint16_t)value;
}

static uint64_t
unpack(uint16_t value)
{
    return value == DEAD             ? TIMELINE_DEAD
           : value == DEAD_SUBMITTED ? TIMELINE_DEAD_SUBMITTED
                                     : value;
}

/* ---- what came to pass ---- */

/* Steps of a party. */
enum {
    GO,
    DIE,
    WORK,
    FLUSH,
    STEPS = FLUSH + BUFFER
};

static void
print_step(const struct frame *f)
{
    int party = (int)(f->step / STEPS), step = (int)(f->step % STEPS);
    const struct cpu *cpu = &f->state.cpus[party];
    const struct pending *p = &f->pending[party];

    fprintf(stderr, "  %s: ", party_names[party]);
    if (step == GO) {
        fprintf(stderr, "'%c' %s", scenario->scripts[party][cpu->at], kinds[p->kind]);
        for (int i = 0; i < p->n; i++)
            fprintf(stderr, "%s %s %#x (is %#x)", i ? "," : "", names[p->words[i]],
                    (unsigned)p->values[i], (unsigned)f->state.words[p->words[i]]);
    } else if (step == DIE) {
        fprintf(stderr, "dies");
    } else if (step == WORK) {
        const struct job *job = &f->state.streams[party].jobs[0];
        static const char *const works[] = {"waited", "begins to fill", "has filled",
                                            "uses",   "releases",       "releases all"};
        fprintf(stderr, "stream %s slot %u, sequence %u, value %u", works[job->work],
                (unsigned)job->slot, (unsigned)job->sequence, (unsigned)job->value);
    } else {
        fprintf(stderr, "%s = %#x is seen", names[cpu->buffer[step - FLUSH].word],
                (unsigned)cpu->buffer[step - FLUSH].value);
    }
    fprintf(stderr, "\n");
}

void
broken(const char *format, ...)
{
    va_list args;
    char what[200];

    va_start(args, format);
    vsnprintf(what, sizeof(what), format, args);
    va_end(args);
    for (size_t i = 0; i < n_path; i++)
        print_step(&path[i]);
    fprintf(stderr, "%s: %s\n", scenario->name, what);
    exit(1);
}

/* ---- a party's CPU ---- */

static struct cpu *
cpu(void)
{
    return &now->cpus[me];
}

static uint16_t
note(uint16_t value)
{
    struct cpu *c = cpu();

    if (c->n_log == LOG)
        broken("%s: a call that does not end", party_names[me]);
    c->log[c->n_log++] = value;
    n_done++;
    return value;
}

bool
is_new(void)
{
    if (n_done < cpu()->n_log) {
        n_done++;
        return false;
    }
    note(0);
    return true;
}

static uint16_t
load_own(uint8_t word)
{
    for (int i = cpu()->n_buffer; i-- > 0;)
        if (cpu()->buffer[i].word == word)
            return cpu()->buffer[i].value;
    return now->words[word];
}

/* Whether the step has been taken before: *ret is what it gave. Else it is to be taken, now or when
 * it is this party's turn. */
static bool
is_old(const struct pending *what, uint16_t *ret)
{
    if (n_done < cpu()->n_log) {
        *ret = cpu()->log[n_done++];
        return true;
    }
    if (!may_step) {
        pending[me] = *what;
        longjmp(parked, 1);
    }
    may_step = false;
    return false;
}

static struct pending
one(enum kind kind, uint8_t word, uint16_t value)
{
    return (struct pending){.kind = kind, .n = 1, .words = {word}, .values = {value}};
}

static uint64_t
load(enum kind kind, const void *p)
{
    uint8_t word = word_of(p);
    struct pending what = one(kind, word, 0);
    uint16_t value;

    if (!word)
        return 0;
    if (!is_old(&what, &value))
        value = note(load_own(word));
    return unpack(value);
}

/* No other CPU, nor a stream, ever stores to it: to load it is no step. */
static bool
is_own(const void *p)
{
    size_t at = (size_t)((const char *)p - (const char *)area.tails);

    return at < sizeof(area.tails) && (int)(at / sizeof(area.tails[0])) == me - READER;
}

uint64_t
explore_load(const void *p)
{
    if (is_hidden)
        return peek(p);
    if (is_own(p)) {
        uint8_t word = word_of(p);
        if (n_done < cpu()->n_log)
            return unpack(cpu()->log[n_done++]);
        return unpack(note(load_own(word)));
    }
    return load(LOAD, p);
}

void
explore_hide(bool hidden)
{
    is_hidden = hidden;
}

void
explore_again(void)
{
    goes_again = true;
}

uint64_t
explore_sync(const void *p)
{
    return load(SYNC, p);
}

void
explore_store(void *p, uint64_t value)
{
    uint8_t word = word_of(p);
    struct pending what = one(STORE, word, pack(value));
    uint16_t ignored;

    if (is_hidden) {
        poke(p, value);
        return;
    }
    if (is_old(&what, &ignored))
        return;
    now->words[word] = pack(value);
    note(0);
}

/* A store leaves a buffer that is full, before the CPU goes on. */
static void
wait_for_room(void)
{
    if (cpu()->n_buffer == BUFFER) {
        pending[me] = (struct pending){.kind = ROOM};
        longjmp(parked, 1);
    }
    if (pending[me].kind == ROOM)
        may_step = false;
}

static void
put_in_buffer(void *p, uint64_t value, bool relaxed)
{
    uint8_t word = word_of(p);
    struct cpu *c = cpu();

    if (is_hidden) {
        poke(p, value);
        return;
    }
    if (!word)
        return;
    if (n_done < c->n_log) {
        n_done++;
        return;
    }
    if (relaxed && load_own(word) == pack(value)) {
        note(0); /* nobody can tell */
        return;
    }
    wait_for_room();
    note(0);
    c->buffer[c->n_buffer].word = word;
    c->buffer[c->n_buffer].relaxed = relaxed;
    c->buffer[c->n_buffer++].value = pack(value);
}

void
explore_store_relaxed(void *p, uint64_t value)
{
    put_in_buffer(p, value, true);
}

void
explore_store_release(void *p, uint64_t value)
{
    put_in_buffer(p, value, false);
}

uint64_t
peek(const void *p)
{
    return unpack(now->words[word_of(p)]);
}

void
poke(void *p, uint64_t value)
{
    if (word_of(p) && is_new())
        now->words[word_of(p)] = pack(value);
}

void
explore_pause(void)
{
    load(LOAD, &area.pause);
}

void
explore_await(bool may_stay, size_t n, const struct until until[])
{
    struct pending what = {.kind = AWAIT, .may_stay = may_stay, .n = (uint8_t)n};
    uint16_t ignored;

    for (size_t i = 0; i < n; i++) {
        what.words[i] = word_of(until[i].p);
        what.values[i] = pack(until[i].value);
    }
    if (!is_old(&what, &ignored))
        note(0);
}

void
hold(uint32_t slot, uint64_t sequence)
{
    if (is_new())
        cpu()->held[slot] |= (uint16_t)(1 << sequence);
}

void
let_go(int party, uint32_t slot, uint64_t sequence)
{
    now->cpus[party].held[slot] &= (uint16_t) ~(1 << sequence);
}

void
must_be_unused(uint32_t slot, uint64_t sequence)
{
    for (int i = 0; i < PARTIES; i++)
        if (now->cpus[i].held[slot] & ((1 << sequence) - 1))
            broken("slot %u is filled while %s uses it", (unsigned)slot, party_names[i]);
}

void
enqueue(enum work work, void *p, uint64_t value, uint32_t slot, uint64_t sequence, int view)
{
    struct stream *s = &now->streams[me];

    if (!is_new())
        return;
    if (s->n == QUEUE)
        broken("a queue that is too small");
    s->jobs[s->n++] = (struct job){
        .work = (uint8_t)work,
        .word = p ? word_of(p) : 0,
        .slot = (uint8_t)slot,
        .view = (uint8_t)view,
        .value = pack(value),
        .sequence = (uint16_t)sequence,
    };
}

/* The party goes on to where its next step is. */
static void
go_on(int party, bool step)
{
    struct cpu *c = &now->cpus[party];
    const char *script = scenario->scripts[party];

    me = party;
    may_step = step;
    if (setjmp(parked))
        return;
    while (script[c->at]) {
        n_done = 0;
        own_copy = c->local;
        own = &own_copy;
        goes_again = false;
        act(party, script[c->at]);
        c->local = own_copy;
        memset(c->log, 0, sizeof(c->log));
        c->n_log = 0;
        c->at += !goes_again;
    }
    pending[party] = (struct pending){.kind = NOTHING};
}

/* ---- steps ---- */

static bool
can_go(int party)
{
    const struct pending *p = &pending[party];

    if (now->cpus[party].dead)
        return false;
    if (p->kind == SYNC || p->kind == STORE)
        return now->cpus[party].n_buffer == 0;
    if (p->kind == ROOM)
        return now->cpus[party].n_buffer < BUFFER;
    if (p->kind != AWAIT)
        return p->kind == LOAD;
    for (int i = 0; i < p->n; i++)
        if (now->words[p->words[i]] >= p->values[i])
            return true;
    return false;
}

/* A processor has done all stores when its process has exited. */
static bool
can_die(int party)
{
    return scenario->mortals >> party & 1 && !now->cpus[party].dead &&
           now->cpus[party].n_buffer == 0;
}

static void
die(int party)
{
    struct cpu *c = &now->cpus[party];

    memset(c, 0, sizeof(*c));
    c->dead = true;
    pending[party] = (struct pending){.kind = NOTHING};
    now->streams[party] = (struct stream){0};
    now->words[word_of(&area.exited[party])] = 1;
}

static bool
can_work(int party)
{
    const struct job *job = &now->streams[party].jobs[0];

    if (!now->streams[party].n)
        return false;
    if (job->work == WORK_WAIT)
        return now->words[job->word] >= job->value;
    if (job->work == WORK_USE || job->work == WORK_RELEASE)
        return now->words[word_of(&area.producers[job->view].done)] >= job->sequence;
    return true;
}

static void
work(int party)
{
    struct stream *s = &now->streams[party];
    struct job job = s->jobs[0];
    uint16_t *content = &now->words[word_of(&area.contents[job.slot])];

    if (job.work == WORK_BEGIN) {
        must_be_unused(job.slot, job.sequence);
        *content = TORN;
    } else if (job.work == WORK_FILL && job.sequence) {
        *content = job.sequence;
    } else if (job.work == WORK_USE || job.work == WORK_RELEASE) {
        frame_is_there(job.slot, job.sequence, job.view);
        if (job.work == WORK_RELEASE)
            let_go(party, job.slot, job.sequence);
    } else if (job.work == WORK_RELEASE_ALL) {
        for (uint32_t i = now->words[job.word] + 1; i <= job.value; i++)
            let_go(party, i % scenario->n_slots, i);
    }
    if (job.work == WORK_FILL || job.work >= WORK_RELEASE)
        now->words[job.word] = job.value;
    memmove(s->jobs, s->jobs + 1, --s->n * sizeof(s->jobs[0]));
    s->jobs[s->n] = (struct job){0};
}

static bool
can_flush(int party, int i)
{
    const struct cpu *c = &now->cpus[party];

    if (i >= c->n_buffer)
        return false;
    if (i > 0 && !(scenario->weak && c->buffer[i].relaxed))
        return false;
    for (int j = 0; j < i; j++)
        if (c->buffer[j].word == c->buffer[i].word)
            return false;
    return true;
}

static void
flush(int party, int i)
{
    struct cpu *c = &now->cpus[party];

    now->words[c->buffer[i].word] = c->buffer[i].value;
    memmove(c->buffer + i, c->buffer + i + 1,
            (size_t)(--c->n_buffer - i) * sizeof(c->buffer[0]));
    memset(&c->buffer[c->n_buffer], 0, sizeof(c->buffer[0]));
}

static bool
can_step(uint32_t step)
{
    int party = (int)(step / STEPS), which = (int)(step % STEPS);

    return which == GO     ? can_go(party)
           : which == DIE  ? can_die(party)
           : which == WORK ? can_work(party)
                           : can_flush(party, which - FLUSH);
}

static void
take_step(uint32_t step)
{
    int party = (int)(step / STEPS), which = (int)(step % STEPS);

    if (which == GO)
        go_on(party, true);
    else if (which == DIE)
        die(party);
    else if (which == WORK)
        work(party);
    else
        flush(party, which - FLUSH);
}

/* ---- states ---- */

static uint64_t
mix(uint64_t h, const void *p, size_t size)
{
    uint64_t word;

    for (size_t i = 0; i < size; i += 8) {
        memcpy(&word, (const char *)p + i, 8);
        h = (h ^ word) * 0xff51afd7ed558ccd;
        h ^= h >> 32;
    }
    return h;
}

static uint64_t
hash(const struct state *s)
{
    uint64_t h =
        mix(0x9e3779b97f4a7c15, s->words, ROUND_8((n_words + 1) * sizeof(s->words[0])));

    for (int i = 0; i < PARTIES; i++)
        if (scenario->scripts[i]) {
            h = mix(h, &s->cpus[i], offsetof(struct cpu, log));
            h = mix(h, s->cpus[i].log, ROUND_8(s->cpus[i].n_log * sizeof(s->cpus[i].log[0])));
            h = mix(h, &s->streams[i], ROUND_8((s->streams[i].n + 1u) * sizeof(struct job)));
        }
    return h ? h : 1;
}

static bool
insert(uint64_t h)
{
    size_t i = h & (seen_size - 1);

    while (seen[i] && seen[i] != h)
        i = (i + 1) & (seen_size - 1);
    if (seen[i])
        return false;
    seen[i] = h;
    n_seen++;
    return true;
}

static void
grow(void)
{
    uint64_t *old = seen;
    size_t old_size = seen_size;

    seen_size = seen_size ? seen_size * 2 : 1 << 16;
    seen = calloc(seen_size, sizeof(*seen));
    if (!seen)
        abort();
    n_seen = 0;
    for (size_t i = 0; i < old_size; i++)
        if (old[i])
            insert(old[i]);
    free(old);
}

static bool
is_seen(const struct state *s)
{
    if (n_seen * 2 >= seen_size)
        grow();
    return !insert(hash(s));
}

/* A copy of the last state of the path, which is the next one. */
static void
push(void)
{
    if (n_path + 1 >= path_size) {
        path_size = path_size ? path_size * 2 : 256;
        path = realloc(path, path_size * sizeof(*path));
        if (!path)
            abort();
    }
    if (n_path)
        path[n_path] = path[n_path - 1];
    now = &path[n_path].state;
    pending = path[n_path].pending;
}

static void
begin(void)
{
    n_path = 0;
    push();
    memset(path, 0, sizeof(*path));
    for (int i = 0; i < PARTIES; i++)
        if (scenario->scripts[i]) {
            begin_party(i, &now->cpus[i].local);
            go_on(i, false);
        }
}

/* Nothing goes on from here. */
static void
check_end(void)
{
    for (int i = 0; i < PARTIES; i++)
        if (pending[i].kind != NOTHING && !pending[i].may_stay)
            broken("%s waits for ever, at '%c'", party_names[i],
                   scenario->scripts[i][now->cpus[i].at]);
    for (int i = READER; i < KILLER; i++)
        if (pending[i].kind == AWAIT)
            check_waits(&now->cpus[i].local, &now->cpus[now->cpus[i].local.view].local);
}

static bool
take_next_step(struct frame *f)
{
    for (uint32_t step = f->next; step < PARTIES * STEPS; step++)
        if (can_step(step)) {
            f->step = step;
            f->next = step + 1;
            f->goes_on |= step % STEPS != DIE;
            push();
            take_step(step);
            return true;
        }
    return false;
}

void
explore(const struct scenario *which, size_t *ret_states)
{
    scenario = which;
    add_words();
    begin();
    for (n_path = 1; n_path;) {
        struct frame *f = &path[n_path - 1];
        now = &f->state;
        pending = f->pending;
        if (take_next_step(f)) {
            if (is_seen(now))
                continue;
            path[n_path].next = 0;
            path[n_path++].goes_on = false;
        } else {
            n_path--;
            if (!f->goes_on)
                check_end();
        }
    }
    *ret_states = n_seen;
    free(path);
    free(seen);
    path = NULL;
    seen = NULL;
    path_size = n_seen = seen_size = 0;
}
