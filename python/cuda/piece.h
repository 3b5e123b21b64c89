/* SPDX-License-Identifier: Apache-2.0 */
/*
 * The pieces in which stretches of files are read, and how one is read. Of a stretch all pieces but
 * the first begin at a multiple of PAGE in the file, and none has more than PIECE bytes from such a
 * multiple on. A piece that the page cache has is read from there. What that lacks is read past it
 * (O_DIRECT): that costs the CPU no copy, and the cache keeps what others have there.
 */
#pragma once

#include "cuda/local.h"

#define PIECE ((size_t)512 << 10)
#define PAGE  ((size_t)4096)

struct piece {
    const struct cuda_stretch *stretch;
    uint64_t before; /* bytes of the stretch that come before */
    size_t n;
    size_t skew; /* it begins so many bytes after a multiple of PAGE */
};

/* Lives as long as a call of cuda_read(), which owns it; read by all threads. */
struct pieces {
    const struct cuda_reading *given;
    uint64_t n;
    uint64_t *firsts; /* number of each stretch's first piece */

    struct piece_file {
        uint8_t *map; /* nobody looks at it: mincore() tells of it. NULL: there is none */
        uint64_t size;
    } * files;
};

/* -errno; pieces_deinit() comes after it in any case. */
int pieces_init(struct pieces *pieces, const struct cuda_reading *given);
void pieces_deinit(struct pieces *pieces);

void pieces_get(const struct pieces *pieces, uint64_t number, struct piece *ret);

/* Reads a piece into memory of PIECE bytes at a multiple of PAGE, from `skew` on, or, where that is
 * given and saves a copy, into straight. -errno; -ENODATA where the file ends before. */
int pieces_read(const struct pieces *pieces, const struct piece *piece, uint8_t *memory,
                uint8_t *straight, const uint8_t **ret_from);
