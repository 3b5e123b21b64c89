/* SPDX-License-Identifier: Apache-2.0 */
/*
 * Fuzzes caid.conf: what is read without a mistake means the same after it was printed and read
 * again, and is printed the same again.
 */
#include <stdlib.h>
#include <sys/mman.h>
#include <unistd.h>

#include "../fuzz/input.h"
#include "base/log.h"
#include "config.h"

int LLVMFuzzerTestOneInput(const uint8_t *data, size_t size);

static int
load(struct config *c, const void *text, size_t n)
{
    int fd = memfd_create("caid.conf", MFD_CLOEXEC);
    char path[32];

    require(fd >= 0 && write(fd, text, n) == (ssize_t)n);
    snprintf(path, sizeof(path), "/proc/self/fd/%d", fd);
    require(config_init(c) == 0);
    int r = config_load(c, path);
    close(fd);
    return r;
}

static char *
print(const struct config *c, size_t *ret_n)
{
    char *text = NULL;
    FILE *f = open_memstream(&text, ret_n);

    require(f);
    config_print(c, f);
    require(fclose(f) == 0);
    return text;
}

static void
check_again(const struct config *c)
{
    size_t n, n_again;
    struct config again;
    char *text = print(c, &n);

    require(load(&again, text, n) == 0);
    char *text_again = print(&again, &n_again);
    require(n == n_again && memcmp(text, text_again, n) == 0);
    config_deinit(&again);
    free(text);
    free(text_again);
}

int
LLVMFuzzerTestOneInput(const uint8_t *data, size_t size)
{
    struct config c;

    log_set_level((enum log_level)0); /* quiet */
    if (load(&c, data, size) == 0)
        check_again(&c);
    config_deinit(&c);
    return 0;
}
