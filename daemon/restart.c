/* SPDX-License-Identifier: Apache-2.0 */
#include "restart.h"

#include <errno.h>
#include <inttypes.h>
#include <poll.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/mman.h>
#include <sys/random.h>
#include <sys/stat.h>
#include <sys/syscall.h>
#include <unistd.h>

#include "base/clock.h"
#include "base/log.h"
#include "base/macros.h"

#define JOURNAL       0                   /* the journal's number at the keeper */
#define JOURNAL_STEP  ((size_t)256 << 10) /* bytes by which its file grows, or an eighth of it */
#define JOURNAL_UNMAP ((size_t)2 << 20)   /* bytes that are unmapped at a time */
#define HAND_OVER_NS  (2 * NSEC_PER_SEC)  /* a keeper has so long to take the journal */
#define PAUSE_MIN_MS  UINT64_C(100)
#define PAUSE_MAX_MS  UINT64_C(1000) /* both as in supervise.c */

/* ---- journals ---- */

/* The file gets its new size before the mapping does. */
static int
enlarge(struct journal_file *file, size_t size)
{
    struct journal *journal = &file->journal;
    size_t more = ALIGN_UP(size + journal->size / 8, JOURNAL_STEP);
    void *bytes;

    if (ftruncate(file->fd, (off_t)more) < 0)
        return -errno;
    bytes = journal->size ? mremap(journal->bytes, journal->size, more, MREMAP_MAYMOVE)
                          : mmap(NULL, more, PROT_READ | PROT_WRITE, MAP_SHARED, file->fd, 0);
    if (bytes == MAP_FAILED)
        return -errno;
    journal->bytes = bytes;
    journal->size = more;
    return 0;
}

/* For an earlier daemon's journal, until this daemon goes on with it: where it cannot grow, what it
 * says stays true. */
static int
grow_or_stay(struct journal *journal, size_t size)
{
    int rc = enlarge(container_of(journal, struct journal_file, journal), size);

    if (rc < 0)
        log_error("no journal of %zu bytes: %s", size, strerror(-rc));
    return rc;
}

/* A journal that cannot grow is made invalid, since what it says would not be true any more. */
static int
grow(struct journal *journal, size_t size)
{
    int rc = grow_or_stay(journal, size);

    if (rc < 0 && journal->bytes)
        memset(journal->bytes, 0, JOURNAL_START);
    return rc;
}

/* Unmaps in pieces: no other thread can map memory while an munmap(2) runs. */
static void
file_close(struct journal_file *file)
{
    struct journal *journal = &file->journal;

    for (size_t at = 0, n; journal->bytes && at < journal->size; at += n) {
        n = min_u64(JOURNAL_UNMAP, journal->size - at);
        munmap(journal->bytes + at, n);
    }
    fd_close(file->fd);
    *file = (struct journal_file){.fd = -1};
}

/* Maps the old journal, whose fd the keeper has, for writing, to go on with it. What has been read
 * points into its mapping for reading, which stays. */
static int
file_go_on(struct journal_file *file, struct restart *r)
{
    const struct journal *old = &r->old.journal;
    void *bytes = mmap(NULL, old->size, PROT_READ | PROT_WRITE, MAP_SHARED, r->old.fd, 0);

    if (bytes == MAP_FAILED)
        return -errno;
    *file = (struct journal_file){.journal = {.bytes = bytes,
                                              .size = old->size,
                                              .at = old->at,
                                              .restarts = r->n_restarts,
                                              .id = {r->id[0], r->id[1]},
                                              .grow = grow_or_stay},
                                  .fd = r->old.fd};
    r->old.fd = -1;
    return 0;
}

static int
file_make(struct journal_file *file, const struct restart *r)
{
    int rc;

    *file = (struct journal_file){.journal = {.grow = grow,
                                              .restarts = r->n_restarts,
                                              .id = {r->id[0], r->id[1]}},
                                  .fd = memfd_create("caid-journal", MFD_CLOEXEC)};
    rc = file->fd < 0 ? -errno : journal_init(&file->journal);
    if (rc < 0)
        file_close(file);
    return rc;
}

static int
file_open(struct journal_file *file)
{
    struct stat st;
    void *bytes;

    if (fstat(file->fd, &st) < 0)
        return -errno;
    if (st.st_size < JOURNAL_START)
        return -EPROTO;
    bytes = mmap(NULL, (size_t)st.st_size, PROT_READ, MAP_SHARED, file->fd, 0);
    if (bytes == MAP_FAILED)
        return -errno;
    file->journal = (struct journal){.bytes = bytes, .size = (size_t)st.st_size};
    return journal_open(&file->journal);
}

static void *
close_replaced(void *userdata)
{
    struct restart *r = userdata;

    restore_deinit(&r->restore);
    file_close(&r->replaced);
    r->is_closed = true;
    return NULL;
}

/* Freeing the pages of a journal, and what was read of it, takes as long as many turns of the loop.
 * So it is done on a thread of its own: the pool's threads may all wait for the driver. */
static void
replace(struct restart *r, struct journal_file *file)
{
    r->replaced = *file;
    *file = (struct journal_file){.fd = -1};
    r->is_closed = false;
    r->closes = pthread_create(&r->closer, NULL, close_replaced, r) == 0;
    if (!r->closes)
        close_replaced(r);
}

static void
end_closing(struct restart *r)
{
    if (r->closes)
        pthread_join(r->closer, NULL);
    r->closes = false;
}

/* ---- what was left ---- */

void
restart_init(struct restart *r, struct kept *kept)
{
    *r = (struct restart){.kept = kept, .files = {{.fd = -1}, {.fd = -1}}, .old.fd = -1};
}

/* Reads the records up to a damaged one. */
static int
read_records(struct restart *r)
{
    size_t whole = r->old.journal.at;
    int rc = restore_read(&r->restore, &r->old.journal);

    if (rc == 0 && r->old.journal.at < whole)
        log_error("the journal is damaged at byte %zu: the %zu from there on are not read, and "
                  "what they tell of does not come back",
                  r->old.journal.at, whole - r->old.journal.at);
    return rc;
}

/* The pauses of a service manager do not grow (systemd's may from 254 on). So this one does: it is
 * twice as long for each suspected request. A supervisor has growing pauses of its own. */
static void
pause_after_death(const struct restart *r)
{
    uint64_t ms = PAUSE_MIN_MS;

    for (size_t i = 0; i < r->restore.n_suspects && ms < PAUSE_MAX_MS; i++)
        if (r->restore.suspects[i]->suspect.deaths)
            ms = min_u64(2 * ms, PAUSE_MAX_MS);
    log_notice("waiting %" PRIu64 " ms", ms);
    clock_pause_ns(ms * NSEC_PER_MSEC);
}

static void
tell_death(const struct restart *r)
{
    if (!r->old.journal.in_hand[1])
        return;
    log_error("a daemon died while it handled a client's request: %s",
              suspect_name(r->old.journal.in_hand));
    if (r->kept->path)
        pause_after_death(r);
}

int
restart_open(struct restart *r)
{
    int rc;

    if (getrandom(r->id, sizeof(r->id), 0) < 0) {
        log_error("no random bytes for the daemon's id: %s", strerror(errno));
        return -errno;
    }
    r->old.fd = kept_claim(r->kept, JOURNAL);
    if (r->old.fd < 0)
        return 0;
    rc = file_open(&r->old);
    if (rc == 0) {
        r->n_restarts = r->old.journal.restarts + 1;
        if (r->old.journal.id[0]) /* 0: an older version wrote it, without an id */
            memcpy(r->id, r->old.journal.id, sizeof(r->id));
        rc = read_records(r);
        if (rc == 0)
            tell_death(r);
    }
    if (rc == -EPROTO) {
        log_error("what the keeper has is no journal: nothing of a former daemon comes back");
        file_close(&r->old);
        rc = 0;
    } else if (rc < 0) {
        log_error("cannot take over from a former daemon: %s",
                  rc == -ENOTSUP ? "it was of a newer version" : strerror(-rc));
    }
    return rc;
}

void
restart_close(struct restart *r)
{
    end_closing(r);
    restore_deinit(&r->restore);
    file_close(&r->old);
    for (int i = 0; i < 2; i++)
        file_close(&r->files[i]);
}

/* ---- taking over ---- */

static void
on_lost(void *userdata, const char *pool, const char *name, const char *why)
{
    struct restart *r = userdata;

    r->n_lost++;
    log_error("array \"%s\" in pool \"%s\" is lost: %s", name, pool, why);
}

/* Imports a block. One whose fd is not such memory is lost. After another error it stays with the
 * keeper, for the next daemon. */
static int
on_import(void *userdata, struct restore_block *block)
{
    struct restart *r = userdata;
    const struct record_block *record = block->record;
    int rc;

    if (record->marks & BLOCK_HANDLE) {
        log_error("block %" PRIu64 " of a newer daemon's is shared by a handle that is no fd",
                  record->key.id);
        return -EOPNOTSUPP;
    }
    block->fd = kept_found(r->kept, record->kept);
    rc = worker_adopt(r->worker, record->device, (enum core_kind)record->kind, record->size,
                      record->kept, &block->handle);
    if (rc < 0)
        log_error("block %" PRIu64 " of a former daemon's cannot be had: %s", record->key.id,
                  strerror(-rc));
    return rc;
}

static const struct restore_ops restore_ops = {.import = on_import, .lost = on_lost};

/* Adopts the process of a connection. Where it has exited, its pidfd is not claimed. Where the
 * keeper does not have the pidfd, it is found by its pid; that may be another process by now, whose
 * exit is then waited for. A process without a pid here cannot be found: nothing tells of its exit,
 * so what it had stays (I2), and our own pid stands for it. */
static int
take_process(struct restart *r, struct conns *conns, struct restore_conn *conn)
{
    uint32_t kept = conn->record->kept;
    int pidfd = kept_found(r->kept, kept);
    bool is_kept = pidfd >= 0;
    pid_t pid = (pid_t)conn->record->pid;

    if (!is_kept && !pid)
        log_warning(
            "a process in another pid namespace cannot be found again: what it had stays");
    if (!is_kept)
        pidfd = (int)syscall(SYS_pidfd_open, pid ? pid : getpid(), 0);
    if (pidfd < 0)
        return errno == ESRCH ? 0 : -errno;
    if (poll(&(struct pollfd){.fd = pidfd, .events = POLLIN}, 1, 0) > 0) {
        if (!is_kept)
            close(pidfd);
        return 0;
    }
    if (is_kept)
        conn->kept = kept;
    kept_claim(r->kept, conn->kept);
    conn->conn = conns_next_id(conns, pidfd);
    return process_adopt(conns, conn->conn, conn->record->uid, pidfd, conn->kept);
}

/* Adopts a page. That of a living owner stays in use. Any other is killed in kill_pages(), when all
 * its values have been looked at. */
static void
take_page(struct restart *r, struct shared_pages *pages, struct restore_page *page)
{
    const struct record_page *record = page->record;
    const struct restore_conn *owner = restore_find(&r->restore, RECORD_CONN, record->conn);

    page->is_dead = !owner || !owner->conn;
    shared_page_adopt(pages, record->key.id, record->kept, &page->made);
}

static int
start_journal(struct restart *r, struct core *core)
{
    struct journal_file *file = &r->files[0];
    int rc = file_make(file, r);

    if (rc < 0)
        return rc;
    core_set_journal(core, &file->journal);
    if (file->journal.full)
        return -ENOMEM;
    rc = kept_set(r->kept, JOURNAL, file->fd);
    if (rc == KEPT_LATER)
        rc = kept_wait(r->kept, HAND_OVER_NS);
    if (rc < 0 && rc != -ENOTCONN)
        return rc;
    return 0;
}

/* Restores from the earlier daemon's journal, and goes on with it. It is renewed when it is large,
 * as any other. */
static int
begin_restore(struct restart *r, struct core *core)
{
    struct journal *journal = &r->files[0].journal;
    int rc = file_go_on(&r->files[0], r);

    if (rc < 0)
        return rc;
    r->restore.journal = journal;
    r->restore.ops = &restore_ops;
    r->restore.userdata = r;
    rc = core_restore(core, &r->restore);
    if (rc == 0 && journal->full)
        rc = -ENOMEM;
    if (rc < 0)
        return rc;
    journal_go_on(journal);
    journal->grow = grow;
    r->restores = true;
    return 0;
}

/* Kills the pages of dead owners, which releases whoever waits in them. What the owners had
 * submitted has been looked at. */
static void
kill_pages(struct restart *r)
{
    for (size_t i = 0; i < r->restore.n_pages; i++) {
        const struct restore_page *page = &r->restore.pages[i];

        if (!page->made.slots) {
            kept_kill_page(r->kept, page->record->kept);
        } else if (page->is_dead) {
            shared_page_kill(r->pages, page->record->key.id);
            shared_page_free(r->pages, page->record->key.id);
        }
    }
}

/* Everything is back. Fds that are not claimed by now are closed. */
static void
end_restore(struct restart *r)
{
    kill_pages(r);
    if (r->restore.n_arrays)
        log_notice("%zu arrays of a former daemon's are back, %" PRIu64 " are lost",
                   r->restore.n_arrays - (size_t)r->n_lost, r->n_lost);
    r->restores = false;
    replace(r, &r->old);
    kept_forget(r->kept);
}

int
restart_take(struct restart *r, struct core *core, struct worker *worker, struct conns *conns,
             struct shared_pages *pages)
{
    int rc = 0;

    if (!r->kept->slots)
        return 0;
    r->worker = worker;
    r->pages = pages;
    for (size_t i = 0; rc == 0 && i < r->restore.n_conns; i++)
        rc = take_process(r, conns, &r->restore.conns[i]);
    for (size_t i = 0; rc == 0 && i < r->restore.n_pages; i++)
        take_page(r, pages, &r->restore.pages[i]);
    if (rc == 0)
        rc = r->old.journal.bytes ? begin_restore(r, core) : start_journal(r, core);
    if (rc < 0) {
        log_error("cannot take over from a former daemon: %s", strerror(-rc));
        return rc;
    }
    r->is_on = true;
    if (!r->restores)
        kept_forget(r->kept);
    return 0;
}

/* ---- while it runs ---- */

/* The journal at the keeper is not true any more: takes it away. */
static void
restart_give_up(struct restart *r, struct core *core)
{
    log_error("the journal cannot grow: arrays do not outlive this daemon from here on");
    core_drop_journal(core);
    kept_drop(r->kept, JOURNAL);
    r->is_on = r->renews = false;
    for (int i = 0; i < 2; i++)
        file_close(&r->files[i]);
}

static void
begin_renewal(struct restart *r, struct core *core)
{
    struct journal_file *next = &r->files[!r->turn];

    r->least =
        r->files[r->turn].journal.at + JOURNAL_STEP; /* the next try, if this one fails */
    if (file_make(next, r) < 0)
        return;
    core_renew_journal(core, &next->journal);
    r->renews = true;
}

/* Gives the new journal to the keeper. Both journals are written until the keeper has it. */
static void
hand_over(struct restart *r, struct core *core)
{
    struct journal_file *next = &r->files[!r->turn];

    if (!r->is_handed_over && kept_set(r->kept, JOURNAL, next->fd) < 0) {
        restart_give_up(r, core);
        return;
    }
    r->is_handed_over = true;
    if (kept_wait(r->kept, 0) == -ETIMEDOUT)
        return;
    core_switch_journal(core);
    replace(r, &r->files[r->turn]);
    r->turn = !r->turn;
    r->renews = r->is_handed_over = false;
    r->least = next->journal.at + JOURNAL_STEP;
}

int
restart_look(struct restart *r, struct core *core)
{
    int rc = core_restore_error(core);

    if (rc < 0)
        log_error("cannot take over from a former daemon: %s", strerror(-rc));
    if (r->restores && core_is_whole(core))
        end_restore(r);
    if (!r->is_on)
        return rc;
    if (r->is_closed)
        end_closing(r);
    if (r->files[0].journal.full || r->files[1].journal.full)
        restart_give_up(r, core);
    else if (r->renews && core_journal_is_renewed(core))
        hand_over(r, core);
    else if (!r->restores && !r->renews && !r->closes &&
             r->files[r->turn].journal.at > r->least && core_journal_is_large(core))
        begin_renewal(r, core);
    return rc;
}

void
restart_figures(const struct restart *r, struct core_figures *ret)
{
    ret->restarts = r->n_restarts;
    ret->keeper = kept_is_there(r->kept);
    ret->n_kept = kept_count(r->kept);
    ret->journal_bytes = r->is_on ? r->files[r->turn].journal.at : 0;
}

void
restart_stop(struct restart *r, struct core *core)
{
    if (!r->is_on)
        return;
    core_drop_journal(core);
    r->is_on = false;
    kept_stop(r->kept); /* before the kept fds are closed */
}
