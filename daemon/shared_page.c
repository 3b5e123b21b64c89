/* SPDX-License-Identifier: Apache-2.0 */
#include "shared_page.h"

#include <assert.h>
#include <fcntl.h>
#include <stdio.h>
#include <string.h>
#include <sys/mman.h>
#include <sys/stat.h>

#include "base/clock.h"
#include "base/log.h"
#include "base/macros.h"
#include "timeline.h"

/* Of the daemon's fds, at most this part for pages, two each: connections and blocks need the
 * rest. */
#define FDS_PART 4

#define MAP_NS (10 * NSEC_PER_SEC) /* for the keeper, to map a page */

struct shared_page {
    RB_ENTRY(shared_page) node;
    TAILQ_ENTRY(shared_page) of_list; /* making or dying */
    uint64_t deadline_ns;             /* in `making`; else 0 */
    uint64_t id;
    int write, read;         /* -1: closed */
    uint32_t kept;           /* its number at the keeper; 0: not kept */
    bool is_former;          /* an earlier daemon has sealed it: mapped for reading */
    bool is_dying, is_freed; /* in `dying`; destroyed when it is dead */
    size_t size;
    struct timeline_slot *slots;
};

RB_GENERATE_STATIC_BY(shared_page_tree, shared_page, node, id)

static struct shared_page *
shared_page_find(struct shared_pages *pages, uint64_t id)
{
    struct shared_page key = {.id = id}, *p = RB_FIND(shared_page_tree, &pages->tree, &key);

    assert(p);
    return p;
}

static struct shared_page *
destroy(struct shared_page *p)
{
    if (p->slots)
        munmap(p->slots, p->size);
    fd_close(p->read);
    fd_close(p->write);
    free(p);
    return NULL;
}

DEFINE_CLEANUP(struct shared_page *, destroy)

/* ---- made ---- */

/* With so many bytes behind the slots. */
static size_t
page_size(size_t tail)
{
    return ALIGN_UP(TIMELINE_PAGE_BYTES + tail, (size_t)sysconf(_SC_PAGESIZE));
}

/* fallocate(2): the kernel allocates the memory now, not when it is touched. The mode keeps other
 * uids from opening the file through /proc: the core decides who gets it. Not F_SEAL_SEAL, since
 * more seals are added later. */
static int
make_memfd(size_t size, int *ret)
{
    _cleanup_fd_ int fd = memfd_create("caid-timelines", MFD_CLOEXEC | MFD_ALLOW_SEALING);

    if (fd < 0 || fchmod(fd, 0600) < 0 || fallocate(fd, 0, 0, (off_t)size) < 0 ||
        fcntl(fd, F_ADD_SEALS, F_SEAL_SHRINK | F_SEAL_GROW) < 0)
        return -errno;
    *ret = TAKE_FD(fd);
    return 0;
}

/* Opens a file description of its own, so that what holders do with one (offset, flags) does not
 * show in the other. */
static int
open_anew(int fd, int flags, int *ret)
{
    char path[32];

    snprintf(path, sizeof(path), "/proc/self/fd/%d", fd);
    *ret = open(path, flags | O_CLOEXEC);
    return *ret < 0 ? -errno : 0;
}

static bool
is_sealed(int fd)
{
    return fcntl(fd, F_GET_SEALS) & (F_SEAL_FUTURE_WRITE | F_SEAL_WRITE);
}

/* Those that it lacks. */
static int
open_files(struct shared_page *p)
{
    int r;

    if (p->is_former)
        return 0;
    if (p->read >= 0)
        return open_anew(p->read, O_RDWR, &p->write);
    r = make_memfd(p->size, &p->write);
    return r == 0 ? open_anew(p->write, O_RDONLY, &p->read) : r;
}

static int
map(struct shared_page *p)
{
    int prot = p->is_former ? PROT_READ : PROT_READ | PROT_WRITE;
    void *slots = mmap(NULL, p->size, prot, MAP_SHARED | MAP_POPULATE,
                       p->is_former ? p->read : p->write, 0);

    if (slots == MAP_FAILED)
        return -errno;
    p->slots = slots;
    return 0;
}

/* found: -1, or the fd of an earlier daemon's page, for reading; the page owns it on success. */
static int
shared_page_make(uint64_t id, size_t size, int found, struct shared_page **ret)
{
    _cleanup_(destroyp) struct shared_page *p = calloc(1, sizeof(*p));
    int r;

    if (!p)
        return -ENOMEM;
    *p = (struct shared_page){.id = id,
                              .size = size,
                              .write = -1,
                              .read = found,
                              .is_former = found >= 0 && is_sealed(found)};
    r = open_files(p);
    if (r == 0)
        r = map(p);
    if (r == 0)
        *ret = TAKE_PTR(p);
    else if (found >= 0)
        p->read = -1;
    return r;
}

static void
shared_page_add(struct shared_pages *pages, struct shared_page *p)
{
    RB_INSERT(shared_page_tree, &pages->tree, p);
    pages->n++;
}

static void
shared_page_tell(const struct shared_page *p, struct core_page_result *ret)
{
    *ret = (struct core_page_result){.write = p->write,
                                     .read = p->read,
                                     .size = p->size,
                                     .slots = p->slots,
                                     .kept = p->kept};
}

/* 0; KEPT_LATER, also where the keeper has answered already that it cannot map the page; or the
 * keeper does not have it: an error. */
static int
shared_page_keep(struct shared_pages *pages, struct shared_page *p)
{
    int r = kept_put_page(pages->kept, p->read, p->write, &p->kept);

    if (r < 0) {
        p->kept = 0;
        return r == -ENOTCONN ? 0 : r;
    }
    r = kept_mapped(pages->kept, p->kept);
    return r == 0 || r == -ENOTCONN ? 0 : KEPT_LATER;
}

static void
fail(struct core_page_result *ret, int error, const char *text)
{
    *ret = (struct core_page_result){.error = error, .write = -1, .read = -1, .text = text};
}

static const char *
explain_not_mapped(int r)
{
    switch (r) {
    case -ETIMEDOUT: return "the keeper does not answer";
    case -ENOMEM:
        return "the keeper cannot map it: no memory, or as many mappings as it may have "
               "(vm.max_map_count)";
    default: return "the keeper cannot map it, its log says why";
    }
}

int
shared_page_new(struct shared_pages *pages, uint64_t id, size_t tail,
                struct core_page_result *ret)
{
    _cleanup_(destroyp) struct shared_page *made = NULL;
    struct shared_page *p;
    int r = pages->n < pages->max ? shared_page_make(id, page_size(tail), -1, &made) : -EMFILE;

    if (r == 0)
        r = shared_page_keep(pages, made);
    if (r < 0) {
        fail(ret, r, r == -ENFILE ? "the keeper takes no more files" : strerror(-r));
        return r;
    }
    p = TAKE_PTR(made);
    shared_page_add(pages, p);
    shared_page_tell(p, ret);
    if (r == KEPT_LATER) {
        p->deadline_ns = clock_now_ns() + MAP_NS;
        TAILQ_INSERT_TAIL(&pages->making, p, of_list);
    }
    return r;
}

bool
shared_pages_next(struct shared_pages *pages, uint64_t *ret_id, struct core_page_result *ret)
{
    struct shared_page *p = TAILQ_FIRST(&pages->making);
    int r = p ? kept_mapped(pages->kept, p->kept) : KEPT_LATER;

    if (p && r == KEPT_LATER && clock_now_ns() >= p->deadline_ns)
        r = -ETIMEDOUT;
    if (r == KEPT_LATER)
        return false;
    *ret_id = p->id;
    TAILQ_REMOVE(&pages->making, p, of_list);
    p->deadline_ns = 0;
    shared_page_tell(p, ret);
    if (r < 0 && r != -ENOTCONN) {
        fail(ret, r, explain_not_mapped(r));
        shared_page_free(pages, p->id);
    }
    return true;
}

uint64_t
shared_pages_deadline_ns(const struct shared_pages *pages)
{
    const struct shared_page *p = TAILQ_FIRST(&pages->making);

    return p ? p->deadline_ns : UINT64_MAX;
}

int
shared_page_adopt(struct shared_pages *pages, uint64_t id, uint32_t kept,
                  struct core_page_result *ret)
{
    int fd = kept_found(pages->kept, kept), r;
    struct shared_page *p = NULL;
    struct stat st;

    if (fd < 0 || fstat(fd, &st) < 0 || st.st_size < TIMELINE_PAGE_BYTES)
        return -ENOENT;
    r = shared_page_make(id, (size_t)st.st_size, fd, &p);
    if (r < 0)
        return r;
    if (p->is_former)
        kept_claim(pages->kept, kept);
    else
        kept_claim_page(pages->kept, kept, p->write);
    p->kept = kept;
    shared_page_add(pages, p);
    shared_page_tell(p, ret);
    return 0;
}

/* ---- sealed ---- */

bool
shared_page_seal(struct shared_pages *pages, uint64_t id)
{
    struct shared_page *p = shared_page_find(pages, id);
    bool sealed;

    if (p->kept)
        kept_sealed(pages->kept, p->kept);
    fcntl(p->write, F_ADD_SEALS, F_SEAL_FUTURE_WRITE | F_SEAL_SEAL);
    sealed = is_sealed(p->write); /* by its owner, perhaps */
    p->write = fd_close(p->write);
    if (sealed)
        return true;
    if (dup3(pages->dead, p->read, O_CLOEXEC) < 0)
        abort(); /* it cannot fail with an open fd; nobody may be given the unsealed page */
    if (p->kept)
        kept_set(pages->kept, p->kept, p->read); /* a later daemon gets the dead page, too */
    return false;
}

/* ---- dead ---- */

static int
fill_dead(int fd)
{
    struct timeline_slot slots[TIMELINE_SLOTS] = {0};

    for (size_t i = 0; i < TIMELINE_SLOTS; i++)
        timeline_kill(&slots[i]);
    if (pwrite(fd, slots, sizeof(slots), 0) < 0 ||
        fcntl(fd, F_ADD_SEALS, F_SEAL_WRITE | F_SEAL_SEAL) < 0)
        return -errno;
    return 0;
}

int
shared_pages_init(struct shared_pages *pages, struct kept *kept, uint64_t max_fds)
{
    uint64_t max = max_fds / FDS_PART / 2;
    _cleanup_fd_ int fd = -1;
    int r;

    *pages = (struct shared_pages){
        .max = max < UINT32_MAX ? (uint32_t)max : UINT32_MAX,
        .dead = -1,
        .kept = kept,
    };
    RB_INIT(&pages->tree);
    TAILQ_INIT(&pages->making);
    TAILQ_INIT(&pages->dying);
    r = make_memfd(page_size(PROTO_TAIL_MAX), &fd); /* it stands for a page of any size */
    if (r == 0)
        r = fill_dead(fd);
    if (r == 0)
        r = open_anew(fd, O_RDONLY, &pages->dead);
    return r;
}

/* ---- freed ---- */

void
shared_page_kill(struct shared_pages *pages, uint64_t id)
{
    struct shared_page *p = shared_page_find(pages, id);

    if (!p->is_former) {
        timeline_kill_page(p->slots);
        return;
    }
    kept_kill_page(pages->kept, p->kept);
    if (!p->is_dying)
        TAILQ_INSERT_TAIL(&pages->dying, p, of_list);
    p->is_dying = true;
}

void
shared_page_free(struct shared_pages *pages, uint64_t id)
{
    struct shared_page *p = shared_page_find(pages, id);

    if (p->kept)
        kept_drop(pages->kept, p->kept);
    if (p->deadline_ns)
        TAILQ_REMOVE(&pages->making, p, of_list);
    RB_REMOVE(shared_page_tree, &pages->tree, p);
    pages->n--;
    if (!p->is_dying) {
        destroy(p);
        return;
    }
    p->read = fd_close(p->read);
    p->is_freed = true;
    shared_pages_are_dying(pages);
}

bool
shared_pages_are_dying(struct shared_pages *pages)
{
    struct shared_page *p, *next;
    bool some = false;

    for (p = TAILQ_FIRST(&pages->dying); p; p = next) {
        next = TAILQ_NEXT(p, of_list);
        if (kept_is_there(pages->kept) && !timeline_is_dead(&p->slots[TIMELINE_SLOTS - 1])) {
            some = true;
            continue;
        }
        TAILQ_REMOVE(&pages->dying, p, of_list);
        p->is_dying = false;
        if (p->is_freed)
            destroy(p);
    }
    return some;
}

void
shared_pages_deinit(struct shared_pages *pages)
{
    struct shared_page *p;

    while ((p = RB_MIN(shared_page_tree, &pages->tree)))
        shared_page_free(pages, p->id);
    while ((p = TAILQ_FIRST(&pages->dying))) {
        TAILQ_REMOVE(&pages->dying, p, of_list);
        destroy(p);
    }
    pages->dead = fd_close(pages->dead);
}
