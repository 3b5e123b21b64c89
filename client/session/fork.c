/* SPDX-License-Identifier: Apache-2.0 */
#include "fork.h"

#include <stddef.h>
#include <stdint.h>
#include <sys/mman.h>
#include <unistd.h>

#define GUARD_SIZE 4096 /* the kernel makes it a page */

void
fork_guard_init(struct fork_guard *guard)
{
    guard->pid = getpid();
    guard->page = NULL;
    char *page =
        mmap(NULL, GUARD_SIZE, PROT_READ | PROT_WRITE, MAP_PRIVATE | MAP_ANONYMOUS, -1, 0);
    if (page == MAP_FAILED)
        return;
    if (madvise(page, GUARD_SIZE, MADV_WIPEONFORK) < 0) {
        munmap(page, GUARD_SIZE);
        return;
    }
    page[0] = 1;
    guard->page = page;
}

void
fork_guard_deinit(struct fork_guard *guard)
{
    if (guard->page)
        munmap((void *)(uintptr_t)guard->page, GUARD_SIZE);
    guard->page = NULL;
}

bool
fork_guard_crossed(const struct fork_guard *guard)
{
    return guard->page ? guard->page[0] == 0 : getpid() != guard->pid;
}
