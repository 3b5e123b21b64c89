/* SPDX-License-Identifier: Apache-2.0 */
#include "cuda/piece.h"

#include <errno.h>
#include <stdlib.h>
#include <sys/mman.h>
#include <sys/stat.h>
#include <unistd.h>

/* ---- all of them ---- */

/* Maps a file that can be read past the page cache, to be told what that has. */
static void
map_file(struct piece_file *file, const struct cuda_file *given)
{
    struct stat status;
    void *map;

    if (given->direct < 0 || fstat((int)given->fd, &status) < 0 || status.st_size <= 0)
        return;
    map = mmap(NULL, (size_t)status.st_size, PROT_READ, MAP_SHARED, (int)given->fd, 0);
    if (map == MAP_FAILED)
        return;
    file->map = map;
    file->size = (uint64_t)status.st_size;
}

int
pieces_init(struct pieces *pieces, const struct cuda_reading *given)
{
    *pieces = (struct pieces){.given = given};
    pieces->firsts = calloc(given->n_stretches + 1, sizeof(*pieces->firsts));
    pieces->files = calloc(given->n_files + 1, sizeof(*pieces->files));
    if (!pieces->firsts || !pieces->files)
        return -ENOMEM;
    for (size_t i = 0; i < given->n_stretches; i++) {
        const struct cuda_stretch *s = &given->stretches[i];
        pieces->firsts[i] = pieces->n;
        pieces->n += (s->offset % PAGE + s->nbytes + PIECE - 1) / PIECE;
    }
    for (size_t i = 0; i < given->n_files; i++)
        map_file(&pieces->files[i], &given->files[i]);
    return 0;
}

void
pieces_deinit(struct pieces *pieces)
{
    for (size_t i = 0; pieces->files && i < pieces->given->n_files; i++)
        if (pieces->files[i].map)
            munmap(pieces->files[i].map, pieces->files[i].size);
    free(pieces->files);
    free(pieces->firsts);
}

void
pieces_get(const struct pieces *pieces, uint64_t number, struct piece *ret)
{
    size_t low = 0, high = pieces->given->n_stretches;

    while (high - low > 1) {
        size_t middle = low + (high - low) / 2;
        if (pieces->firsts[middle] <= number)
            low = middle;
        else
            high = middle;
    }
    const struct cuda_stretch *stretch = &pieces->given->stretches[low];
    const uint64_t i = number - pieces->firsts[low], skew = stretch->offset % PAGE;
    const uint64_t before = i > 0 ? i * PIECE - skew : 0, left = stretch->nbytes - before;
    const uint64_t most = i > 0 ? PIECE : PIECE - skew;
    *ret = (struct piece){
        .stretch = stretch,
        .before = before,
        .n = left < most ? left : most,
        .skew = i > 0 ? 0 : skew,
    };
}

/* ---- one of them ---- */

/* Whether a page of a file is in the page cache. Where the file is not the caller's, the system
 * says so of every page. */
static bool
has_page(const struct piece_file *file, uint64_t offset)
{
    unsigned char there = 1;

    if (offset >= file->size || mincore(file->map + offset / PAGE * PAGE, PAGE, &there) < 0)
        return true;
    return there & 1;
}

/* Reads past the page cache, from a multiple of PAGE on, as far as that goes. Returns how many of
 * the n bytes it has read; the others an ordinary read gets, or says why not. */
static size_t
read_direct(int fd, uint8_t *to, size_t n, uint64_t offset)
{
    size_t whole = (n + PAGE - 1) / PAGE * PAGE;
    ssize_t got;

    do
        got = pread(fd, to, whole, (off_t)offset);
    while (got < 0 && errno == EINTR);
    if (got <= 0)
        return 0;
    return (size_t)got < n ? (size_t)got : n;
}

static int
read_all(int fd, uint8_t *to, size_t n, uint64_t offset)
{
    while (n > 0) {
        ssize_t got = pread(fd, to, n, (off_t)offset);
        if (got < 0 && errno == EINTR)
            continue;
        if (got <= 0)
            return got < 0 ? -errno : -ENODATA;
        to += got;
        n -= (size_t)got;
        offset += (uint64_t)got;
    }
    return 0;
}

int
pieces_read(const struct pieces *pieces, const struct piece *piece, uint8_t *memory,
            uint8_t *straight, const uint8_t **ret_from)
{
    const struct cuda_file *given = &pieces->given->files[piece->stretch->file];
    const struct piece_file *file = &pieces->files[piece->stretch->file];
    const uint64_t offset = piece->stretch->offset + piece->before;
    const uint64_t last = offset + piece->n - 1;
    uint8_t *to = memory + piece->skew;
    size_t got = 0;

    if (file->map && !(has_page(file, offset) && has_page(file, last)))
        got = read_direct((int)given->direct, memory, piece->skew + piece->n,
                          offset - piece->skew);
    got = got > piece->skew ? got - piece->skew : 0;
    if (got == 0 && straight)
        to = straight;
    *ret_from = to;
    return read_all((int)given->fd, to + got, piece->n - got, offset + got);
}
