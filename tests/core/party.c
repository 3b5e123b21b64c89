/* SPDX-License-Identifier: Apache-2.0 */
#include "party.h"

#include "caid_test.h"

void
party_init(struct party *p, void (*tweak)(struct core_config *))
{
    h_init(&p->h, tweak);
    for (int i = 0; i < N_CLIENTS; i++) {
        p->conn[i] = h_connect(&p->h, 1000, 1000);
        if (i == 0) {
            p->a[0] = h_create_now(&p->h, p->conn[0], "a", NULL, 100)->lease;
            p->b[0] = h_create_now(&p->h, p->conn[0], "b", NULL, 100)->lease;
        } else {
            p->a[i] = h_open(&p->h, p->conn[i], "a", NULL, "rw")->lease;
            p->b[i] = h_open(&p->h, p->conn[i], "b", NULL, "rw")->lease;
        }
        p->page[i] = h_page_new(&p->h, p->conn[i]);
    }
}

bool
party_is_open(const struct party *p, int i)
{
    return h_is_open(&p->h, p->conn[i]);
}

bool
party_waits(const struct party *p, int i)
{
    return !p->h.replies[p->conn[i]].seen;
}

uint32_t
party_error(const struct party *p, int i)
{
    cr_assert(p->h.replies[p->conn[i]].seen, "client %d waits", i);
    return p->h.replies[p->conn[i]].error;
}

uint64_t
party_begin(struct party *p, int i, uint64_t lease, bool write)
{
    return h_begin(&p->h, p->conn[i], lease, write);
}

uint64_t
party_begun(struct party *p, int i, uint64_t lease, bool write)
{
    return h_begun(&p->h, p->conn[i], lease, write);
}

uint64_t
party_begin_range(struct party *p, int i, uint64_t lease, bool write, uint64_t from,
                  uint64_t end)
{
    const uint64_t range[] = {from, end};
    struct msg_begin_params params = {.bracket = p->h.next_id + 1};

    *(write ? &params.write : &params.read) = (struct msg_u64s){&lease, 1};
    *(write ? &params.write_ranges : &params.read_ranges) = (struct msg_u64s){range, 2};
    h_begin_as(&p->h, p->conn[i], params);
    return params.bracket;
}

void
party_end(struct party *p, int i, uint64_t bracket)
{
    h_end(&p->h, p->conn[i], bracket);
    cr_assert_not(p->h.closed[p->conn[i]]);
}

uint64_t
party_end_at(struct party *p, int i, uint64_t bracket, uint64_t slot)
{
    uint64_t value = h_end_at(&p->h, p->conn[i], bracket, p->page[i], slot);

    cr_assert_not(p->h.closed[p->conn[i]]);
    return value;
}

uint64_t
party_begin_many(struct party *p, int i, struct msg_u64s read, struct msg_u64s write,
                 uint64_t thread)
{
    uint64_t bracket = p->h.next_id + 1;

    h_begin_as(&p->h, p->conn[i],
               (struct msg_begin_params){.bracket = bracket,
                                         .read = read,
                                         .write = write,
                                         .thread = thread});
    return bracket;
}

const struct msg_entry *
party_entry(struct party *p, const char *name)
{
    static struct msg_entry entry;
    uint64_t asker = h_connect(&p->h, 1000, 1000);

    entry = h_show(&p->h, asker, name, NULL)->entries[0];
    h_disconnect(&p->h, asker);
    return &entry;
}

bool
party_is_abandoned(struct party *p)
{
    return party_entry(p, "a")->abandoned;
}
