/* SPDX-License-Identifier: Apache-2.0 */
#include "journal.h"

#include <assert.h>
#include <errno.h>
#include <stdatomic.h>
#include <string.h>

#include "base/macros.h"

static const char magic[8] = "caidjrnl";

struct header {
    char magic[8];
    uint32_t version, start;
    _Atomic uint64_t committed; /* bytes, from the header on */
    uint64_t restarts;
    uint64_t id[2];
    _Atomic uint64_t
        in_hand[2]; /* connection and request; all zero where older versions wrote */
};

struct head { /* of a record */
    uint32_t crc;
    uint16_t n;
    uint8_t type, reserved;
    _Atomic uint64_t mark;
};

_Static_assert(sizeof(struct header) <= JOURNAL_START && sizeof(struct head) == JOURNAL_HEAD,
               "the format");

static struct header *
header_of(const struct journal *journal)
{
    return (struct header *)(void *)journal->bytes;
}

/* ---- checksums ---- */

/* CRC-32C (Castagnoli). */
static uint32_t
crc_plain(uint32_t crc, const uint8_t *p, size_t n)
{
    static const uint32_t table[16] = {
        /* of four bits */
        0x00000000, 0x105ec76f, 0x20bd8ede, 0x30e349b1, 0x417b1dbc, 0x5125dad3,
        0x61c69362, 0x7198540d, 0x82f63b78, 0x92a8fc17, 0xa24bb5a6, 0xb21572c9,
        0xc38d26c4, 0xd3d3e1ab, 0xe330a81a, 0xf36e6f75,
    };

    for (size_t i = 0; i < n; i++) {
        crc ^= p[i];
        crc = (crc >> 4) ^ table[crc & 15];
        crc = (crc >> 4) ^ table[crc & 15];
    }
    return crc;
}

#if defined(__x86_64__)
__attribute__((target("sse4.2,crc32"))) static uint32_t
crc_fast(uint32_t crc, const uint8_t *p, size_t n)
{
    uint64_t word, all = crc;

    for (; n >= sizeof(word); p += sizeof(word), n -= sizeof(word)) {
        memcpy(&word, p, sizeof(word));
        all = __builtin_ia32_crc32di(all, word);
    }
    for (crc = (uint32_t)all; n > 0; n--)
        crc = __builtin_ia32_crc32qi(crc, *p++);
    return crc;
}
#endif

static uint32_t
crc_bytes(uint32_t crc, const void *bytes, size_t n)
{
#if defined(__x86_64__)
    if (__builtin_cpu_supports("sse4.2"))
        return ~crc_fast(~crc, bytes, n);
#endif
    return ~crc_plain(~crc, bytes, n);
}

static uint32_t
crc_of(const struct head *head)
{
    uint32_t crc = crc_bytes(head->type, &head->n, sizeof(head->n));

    return crc_bytes(crc, head + 1, head->n);
}

/* ---- writing ---- */

static bool
make_room(struct journal *journal, size_t size)
{
    if (size > journal->size && !journal->full)
        journal->full = size > JOURNAL_LIMIT || !journal->grow ||
                        journal->grow(journal, size) < 0;
    return !journal->full;
}

int
journal_init(struct journal *journal)
{
    if (!make_room(journal, JOURNAL_START))
        return -ENOMEM;
    *header_of(journal) = (struct header){.version = JOURNAL_VERSION,
                                          .start = JOURNAL_START,
                                          .restarts = journal->restarts,
                                          .id = {journal->id[0], journal->id[1]}};
    memcpy(header_of(journal)->magic, magic, sizeof(magic));
    journal->at = JOURNAL_START;
    journal_commit(journal);
    return 0;
}

void *
journal_begin(struct journal *journal, uint8_t type, size_t n)
{
    struct head *head;

    assert(n <= JOURNAL_MAX);
    if (!make_room(journal, journal->at + journal_record_size(n)))
        return NULL;
    head = (struct head *)(void *)(journal->bytes + journal->at);
    memset(head, 0, journal_record_size(n));
    head->n = (uint16_t)n;
    head->type = type;
    return head + 1;
}

uint64_t
journal_end(struct journal *journal, uint64_t mark)
{
    struct head *head = (struct head *)(void *)(journal->bytes + journal->at);
    uint64_t place = journal->at;

    head->crc = crc_of(head);
    head->mark = mark;
    journal->at += journal_record_size(head->n);
    return place;
}

void
journal_commit(struct journal *journal)
{
    if (journal->bytes)
        atomic_store_explicit(&header_of(journal)->committed, journal->at,
                              memory_order_release);
}

void
journal_mark(struct journal *journal, uint64_t place, uint64_t mark)
{
    struct head *head = (struct head *)(void *)(journal->bytes + place);

    head->mark = mark;
}

/* In that order: what is there of a request is there of its connection, too. */
void
journal_take(struct journal *journal, uint64_t conn, uint64_t request)
{
    struct header *header = header_of(journal);

    atomic_store_explicit(&header->in_hand[0], conn, memory_order_release);
    atomic_store_explicit(&header->in_hand[1], request, memory_order_release);
}

void
journal_put(struct journal *journal)
{
    atomic_store_explicit(&header_of(journal)->in_hand[1], 0, memory_order_release);
}

/* ---- reading ---- */

int
journal_open(struct journal *journal)
{
    const struct header *header = header_of(journal);

    if (journal->size < JOURNAL_START || memcmp(header->magic, magic, sizeof(magic)) != 0)
        return -EPROTO;
    if (header->version > JOURNAL_VERSION)
        return -ENOTSUP;
    if (header->start != JOURNAL_START || header->committed < JOURNAL_START ||
        header->committed > journal->size)
        return -EPROTO;
    journal->at = header->committed;
    journal->restarts = header->restarts;
    memcpy(journal->id, header->id, sizeof(journal->id));
    for (int i = 0; i < 2; i++)
        journal->in_hand[i] = header->in_hand[i];
    return 0;
}

bool
journal_next(struct journal *journal, uint64_t *place, struct journal_record *ret)
{
    const struct head *head = (const struct head *)(const void *)(journal->bytes + *place);

    if (journal->at - *place < sizeof(*head) ||
        journal->at - *place < journal_record_size(head->n) || crc_of(head) != head->crc) {
        journal->at = *place;
        return false;
    }
    *ret = journal_get(journal, *place);
    *place += journal_record_size(head->n);
    return true;
}

struct journal_record
journal_get(const struct journal *journal, uint64_t place)
{
    const struct head *head = (const struct head *)(const void *)(journal->bytes + place);

    return (struct journal_record){.type = head->type,
                                   .mark = head->mark,
                                   .n = head->n,
                                   .payload = head + 1,
                                   .place = place};
}

const void *
journal_payload(const struct journal *journal, uint64_t place)
{
    return journal->bytes + place + JOURNAL_HEAD;
}

void
journal_go_on(struct journal *journal)
{
    header_of(journal)->restarts = journal->restarts;
    memcpy(header_of(journal)->id, journal->id, sizeof(journal->id));
    journal_put(journal);
    journal_commit(journal);
}
