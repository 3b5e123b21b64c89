/* SPDX-License-Identifier: Apache-2.0 */
/*
 * Fuzzes the core: any requests of some users, with pages whose owners write what they like into
 * them, a driver that fails at times, and deaths at any moment. Between any two events all of its
 * sums and references are right (core_check()), and when all have gone nothing is left.
 */
#include <stdlib.h>

#include "../fuzz/input.h"
#include "harness.h"

#define N_CONNS  24
#define N_JOBS   256
#define N_PAGES  64
#define N_EVENTS 300

int LLVMFuzzerTestOneInput(const uint8_t *data, size_t size);

static const char *const texts[] = {
    "a",      "b",        "c",      "|u1",    "<f8",
    "|V8",    "r",        "rw",     "open",   "shared",
    "uid:1",  "uid:1000", "legacy", "pinned", "mapped",
    "device", "",         "GPU-0",  "GPU-1",  "[[\"x\",\"<f8\"]]",
    "\x1b",   "|O8",      "<f4",
};

struct page {
    uint64_t id;
    struct timeline_slot *slots;
};

static struct {
    struct core *core;
    uint64_t now_ns;
    uint64_t next_handle;
    uint32_t next_id;
    uint64_t n_brackets;
    uint64_t n_conns;          /* ever; their numbers are 1 to that */
    bool is_open[N_CONNS + 1]; /* has not hung up */
    bool lives[N_CONNS + 1];   /* its process */
    bool to_close[N_CONNS + 1];
    struct core_action jobs[N_JOBS];
    size_t n_jobs;
    struct page pages[N_PAGES];
    size_t n_pages;
    struct input input;
} f;

/* ---- the shell ---- */

static struct page *
page_of(uint64_t id)
{
    for (size_t i = 0; i < f.n_pages; i++)
        if (f.pages[i].id == id)
            return &f.pages[i];
    abort();
}

static void
page_new(uint64_t id, uint64_t tail)
{
    struct core_page_result result = {.error = -ENOMEM,
                                      .text = "an error",
                                      .write = -1,
                                      .read = -1};

    if (f.n_pages < N_PAGES) {
        struct page *page = &f.pages[f.n_pages++];
        page->id = id;
        page->slots = h_slots_new();
        result = (struct core_page_result){.write = (int)++f.next_handle,
                                           .read = (int)++f.next_handle,
                                           .size = TIMELINE_PAGE_BYTES + tail,
                                           .slots = page->slots};
    }
    core_page_done(f.core, id, &result);
}

static void
page_kill(uint64_t id)
{
    for (int i = 0; i < TIMELINE_SLOTS; i++)
        timeline_kill(&page_of(id)->slots[i]);
}

static void
page_end(uint64_t id)
{
    struct page *page = page_of(id);

    free(page->slots);
    *page = f.pages[--f.n_pages];
}

static void
check_packet(const struct core_action *a)
{
    struct msg m;

    require(f.is_open[a->conn]);
    require(a->n_packet <= PROTO_PACKET_MAX && a->n_fds <= PROTO_FDS_MAX);
    require(msg_parse(&m, a->packet, a->n_packet) == 0);
    require(m.type == MSG_RESPONSE);
    msg_deinit(&m);
}

static void
carry_out(const struct core_action *a)
{
    switch (a->type) {
    case CORE_SEND: check_packet(a); break;
    case CORE_CLOSE: f.to_close[a->conn] = true; break;
    case CORE_ALLOC:
    case CORE_RELEASE:
    case CORE_MEMORY:
        require(f.n_jobs < N_JOBS);
        f.jobs[f.n_jobs++] = *a;
        break;
    case CORE_KEEP:
    case CORE_LET_GO: break; /* of a core with a journal */
    case CORE_FORGET: require(!f.is_open[a->conn]); break;
    case CORE_PAGE_NEW: page_new(a->page, a->size); break;
    case CORE_PAGE_SEAL: page_of(a->page); break;
    case CORE_PAGE_KILL: page_kill(a->page); break;
    case CORE_PAGE_FREE: page_end(a->page); break;
    case CORE_AUDIT: break;
    }
}

static void
drain(void)
{
    struct core_action a;

    while (core_next(f.core, &a))
        carry_out(&a);
    core_check(f.core);
}

static void
hang_up(uint64_t conn)
{
    if (!f.is_open[conn])
        return;
    f.is_open[conn] = false;
    core_hangup(f.core, conn);
    drain();
}

static void
exit_of(uint64_t conn)
{
    if (!f.lives[conn])
        return;
    f.is_open[conn] = f.lives[conn] = false;
    core_exited(f.core, conn);
    drain();
}

/* ---- the driver ---- */

static void
finish_alloc(const struct core_action *a, bool fails)
{
    struct core_alloc_result result = {.fd = -1, .text = "model", .free = 1};

    if (fails) {
        result.error = -ENOMEM;
    } else {
        result.handle = result.ipc[0] = ++f.next_handle;
        result.fd = a->kind == KIND_LEGACY ? -1 : (int)result.handle;
    }
    core_alloc_done(f.core, a->job, &result);
}

static void
finish(size_t i, bool fails)
{
    static const struct core_memory_result memory[H_DEVICES] = {{.total = H_MEMORY},
                                                                {.error = -EIO}};
    struct core_action a = f.jobs[i];

    f.jobs[i] = f.jobs[--f.n_jobs];
    if (a.type == CORE_ALLOC)
        finish_alloc(&a, fails);
    else if (a.type == CORE_RELEASE)
        core_release_done(f.core, a.job, fails ? -EIO : 0, fails ? 999 : 0, "model");
    else
        core_memory_done(f.core, a.job, memory, a.device < H_DEVICES ? 1 : H_DEVICES);
    drain();
}

/* ---- events ---- */

static void
send_packet(uint64_t conn, enum msg_method method, const void *params)
{
    struct msg_buf buf = {0};
    int r = msg_method_is_request(method)
                ? msg_encode_request(&buf, ++f.next_id, method, params)
                : msg_encode_notify(&buf, method, params);

    if (r == 0 && f.is_open[conn] && !f.to_close[conn])
        core_receive(f.core, conn, buf.data, buf.n, f.now_ns);
    msg_buf_deinit(&buf);
    drain();
}

static void
on_connect(void)
{
    static const uid_t uids[] = {1000, 1000, 1001, 1, 0};
    static const gid_t group = 10;
    uid_t uid = uids[input_below(&f.input, ARRAY_SIZE(uids))];
    const struct core_peer peer = {.uid = uid,
                                   .gid = uid,
                                   .pid = 100 + (pid_t)f.n_conns,
                                   .groups = &group,
                                   .n_groups = uid != 1000};
    const struct msg_hello_params hello = {.version_min = 1, .version_max = 1};

    if (f.n_conns == N_CONNS || core_connect(f.core, f.n_conns + 1, &peer, f.now_ns) < 0)
        return drain();
    f.n_conns++;
    f.is_open[f.n_conns] = f.lives[f.n_conns] = true;
    if (input_u8(&f.input) != 255)
        send_packet(f.n_conns, MSG_HELLO, &hello);
}

static void
on_message(uint64_t conn)
{
    enum msg_method method = (enum msg_method)input_below(&f.input, MSG_N_METHODS);

    send_packet(conn, method, input_record(&f.input, proto_methods[method].params));
}

static void
on_create(uint64_t conn)
{
    static const int64_t sizes[] = {1, 1000, 1 << 20, 3 << 20, 20 << 20, 0};
    const char *name = texts[input_below(&f.input, 4)];
    const struct msg_create_params params = {
        .name = name[0] == '|' ? (struct msg_str){0} : MSG_STR(name),
        .typestr = MSG_STR("|u1"),
        .shape = {&sizes[input_below(&f.input, ARRAY_SIZE(sizes))], 1},
    };

    send_packet(conn, MSG_CREATE, &params);
}

/* ---- what takes some numbers that agree ---- */

static uint64_t
some_lease(void)
{
    return 1 + input_below(&f.input, 24);
}

/* NULL: there is none. */
static const struct page *
some_page(void)
{
    return f.n_pages ? &f.pages[input_below(&f.input, (uint32_t)f.n_pages)] : NULL;
}

static void
on_begin(uint64_t conn)
{
    const uint64_t lease = some_lease();
    struct msg_begin_params params = {.bracket = ++f.n_brackets};

    *(input_u8(&f.input) % 2 ? &params.write : &params.read) = (struct msg_u64s){&lease, 1};
    params.timeout_ns = input_u8(&f.input) % 4 == 3 ? 1 + input_u64(&f.input) : 0;
    params.thread = input_below(&f.input, 3);
    send_packet(conn, MSG_BEGIN, &params);
}

/* One of the last ones; where the owner is honest, he submits the value before he says so. */
static void
on_end(uint64_t conn)
{
    uint64_t back = input_below(&f.input, 4), value = input_below(&f.input, 4);
    struct msg_end_params params = {.bracket = f.n_brackets - back};
    const struct page *page = some_page();

    if (value && page) {
        params.page = page->id;
        params.value = value;
        if (input_u8(&f.input) % 8)
            atomic_store(&page->slots[0].submitted, value);
    }
    send_packet(conn, MSG_END, &params);
}

static void
on_publish(uint64_t conn)
{
    const int64_t shape = 100;
    const struct msg_publish_part_params part = {.lease = some_lease(),
                                                 .offset = input_u8(&f.input),
                                                 .name =
                                                     MSG_STR(texts[input_below(&f.input, 3)]),
                                                 .typestr = MSG_STR("|u1"),
                                                 .shape = {&shape, 1}};
    const struct msg_publish_params whole = {.lease = part.lease, .name = part.name};

    if (part.offset % 2)
        send_packet(conn, MSG_PUBLISH, &whole);
    else
        send_packet(conn, MSG_PUBLISH_PART, &part);
}

static void
on_timeline(uint64_t conn)
{
    const struct page *page = some_page();
    const struct msg_timeline_params made = {.name = MSG_STR(texts[input_below(&f.input, 3)]),
                                             .page = page ? page->id : 1};
    const struct msg_name_params opened = {.name = made.name};

    if (input_u8(&f.input) % 2)
        send_packet(conn, MSG_TIMELINE, &made);
    else
        send_packet(conn, MSG_OPEN_TIMELINE, &opened);
}

static void
on_open(uint64_t conn)
{
    const struct msg_str name = MSG_STR(texts[input_below(&f.input, 3)]);
    const struct msg_open_params params = {.names = {&name, 1},
                                           .mode =
                                               MSG_STR(input_u8(&f.input) % 2 ? "rw" : "r")};

    send_packet(conn, MSG_OPEN, &params);
}

static void
on_page(uint64_t conn)
{
    const struct page *page = input_u8(&f.input) % 4 == 3 ? some_page() : NULL;
    const struct msg_pages_params given_up = {.pages = {page ? &page->id : NULL, 1}};

    if (page)
        send_packet(conn, MSG_DROP_PAGES, &given_up);
    else
        send_packet(conn, MSG_PAGE, &(struct msg_page_params){});
}

static void
on_store(void)
{
    size_t i = input_below(&f.input, N_PAGES), word = input_u8(&f.input) % 3;
    struct timeline_slot *slot;

    if (i >= f.n_pages)
        return;
    slot = &f.pages[i].slots[input_below(&f.input, TIMELINE_SLOTS)];
    atomic_store(word == 0   ? &slot->done
                 : word == 1 ? &slot->submitted
                             : &slot->landed,
                 input_u64(&f.input));
}

static void
on_time(void)
{
    f.now_ns += (uint64_t)input_u8(&f.input) << input_below(&f.input, 32);
    core_set_boottime(f.core, f.now_ns);
    core_tick(f.core, f.now_ns);
    drain();
}

static void (*const of_conn[])(uint64_t conn) = {
    on_message, on_message, on_message, on_message, on_create,  on_create,   on_open, on_page,
    on_begin,   on_begin,   on_end,     on_end,     on_publish, on_timeline, hang_up, exit_of,
};

static void
on_event(void)
{
    uint32_t choice = input_below(&f.input, 12 + ARRAY_SIZE(of_conn));
    uint64_t conn = f.n_conns ? 1 + input_below(&f.input, (uint32_t)f.n_conns) : 0;

    if (choice == 0 || conn == 0)
        on_connect();
    else if (choice < 5 && f.n_jobs)
        finish(input_below(&f.input, (uint32_t)f.n_jobs), input_u8(&f.input) == 255);
    else if (choice < 8)
        on_store();
    else if (choice < 11)
        on_time();
    else if (choice == 11)
        core_set_reply_max(f.core, 1 + ((size_t)input_u8(&f.input) << 8));
    else
        of_conn[choice - 12](conn);
}

static void
hang_up_closed(void)
{
    for (uint64_t conn = 1; conn <= f.n_conns; conn++)
        if (f.to_close[conn])
            hang_up(conn);
}

/* ---- from the start to the end ---- */

static void
begin(void)
{
    static const struct core_pool_config pools[] = {
        {.name = "shared", .uid = 1, .gid = 10, .mode = 0640, .quota = UINT64_C(16) << 20},
        {.name = "open", .uid = 1, .gid = 10, .mode = 0666},
    };
    static const struct core_device devices[H_DEVICES] = {
        {.uuid = "GPU-0", .name = "model", .total = H_MEMORY, .granularity = H_BLOCK},
        {.uuid = "GPU-1", .name = "second", .total = H_MEMORY, .granularity = H_BLOCK},
    };
    static const struct core_config config = {
        .server = "caid test",
        .driver = "soft",
        .driver_path = "/model",
        .uid = 900,
        .hello_timeout_ns = 2000000,
        .ticket_ttl_ns = 1000000,
        .ticket_age_ns = UINT64_MAX,
        .limits = {.connections = 8,
                   .arrays = 40,
                   .names = 20,
                   .leases = 40,
                   .watches = 8,
                   .jobs = 8,
                   .brackets = 20,
                   .pages = 8,
                   .fds = 60,
                   .bytes = UINT64_C(64) << 20,
                   .host_bytes = 1 << 20},
        .totals = {.host_bytes = 1 << 22, .fds = 100},
        .memory = {.block_size = UINT64_C(16) << 20,
                   .shared_max = UINT64_C(4) << 20,
                   .reserve = UINT64_C(8) << 20,
                   .pending_count = 4,
                   .pending_ratio = 0.2,
                   .pending_age_ns = H_AGE_NS},
        .blocks = 20,
        .threads = 4,
        .user_mode = 0600,
        .devices = devices,
        .n_devices = H_DEVICES,
        .pools = pools,
        .n_pools = ARRAY_SIZE(pools),
    };

    memset(&f, 0, sizeof(f));
    require(core_new(&f.core, &config, 0) == 0);
}

/* Whatever the pages say: their owners are dead. */
static void
end(void)
{
    struct core_counts counts;

    for (uint64_t conn = 1; conn <= f.n_conns; conn++) {
        hang_up(conn);
        exit_of(conn);
    }
    for (int i = 0; i < 10000 && (f.n_jobs || core_deadline_ns(f.core) != UINT64_MAX); i++) {
        while (f.n_jobs)
            finish(0, false);
        f.now_ns = core_deadline_ns(f.core) > f.now_ns && core_deadline_ns(f.core) != UINT64_MAX
                       ? core_deadline_ns(f.core)
                       : f.now_ns;
        core_tick(f.core, f.now_ns);
        drain();
    }
    core_get_counts(f.core, &counts);
    require(counts.connections + counts.departed + counts.leases + counts.watches == 0);
    require(counts.jobs + counts.brackets + counts.pages + counts.timelines == 0);
    require(counts.pending + counts.reserve_bytes == 0 && f.n_pages == 0);
    core_free(f.core);
}

int
LLVMFuzzerTestOneInput(const uint8_t *data, size_t size)
{
    begin();
    input_init(&f.input, data, size, texts, ARRAY_SIZE(texts));
    for (int i = 0; i < N_EVENTS && !input_is_over(&f.input); i++) {
        on_event();
        hang_up_closed();
    }
    end();
    return 0;
}
