/* SPDX-License-Identifier: Apache-2.0 */
#include "machine_id.h"

#include <ctype.h>
#include <dlfcn.h>
#include <errno.h>
#include <fcntl.h>
#include <inttypes.h>
#include <stdint.h>
#include <stdio.h>
#include <string.h>
#include <sys/random.h>
#include <unistd.h>

#include "base/log.h"
#include "base/macros.h"

union id128 { /* sd_id128_t */
    uint8_t bytes[16];
    uint64_t words[2];
};

static const union id128 app_id = {.bytes = {0x5f, 0x0c, 0x7e, 0x3a, 0x91, 0xd4, 0x4b, 0x62,
                                             0x8e, 0x17, 0xc2, 0x6d, 0x30, 0xa9, 0xf5, 0x48}};

static int
of_systemd(char *ret)
{
    int (*get)(union id128 app_id, union id128 * ret);
    void *library = dlopen("libsystemd.so.0", RTLD_NOW | RTLD_LOCAL);
    void *symbol = library ? dlsym(library, "sd_id128_get_machine_app_specific") : NULL;
    union id128 id;
    int r = -ENOPKG;

    if (symbol) {
        memcpy(&get, &symbol, sizeof(get));
        r = get(app_id, &id);
    }
    for (size_t i = 0; r >= 0 && i < sizeof(id.bytes); i++)
        snprintf(ret + 2 * i, 3, "%02x", id.bytes[i]);
    if (library)
        dlclose(library);
    return r;
}

/* The digits of the boot's id, which is written as 01234567-89ab-…. */
static int
of_boot(char *ret)
{
    _cleanup_fd_ int fd = open("/proc/sys/kernel/random/boot_id", O_RDONLY | O_CLOEXEC);
    char text[64];
    ssize_t n_read = fd < 0 ? -1 : read(fd, text, sizeof(text));
    size_t n = 0;

    for (ssize_t i = 0; i < n_read && n < MACHINE_ID_SIZE - 1; i++)
        if (isxdigit((unsigned char)text[i]))
            ret[n++] = text[i];
    ret[n] = '\0';
    return n == MACHINE_ID_SIZE - 1 ? 0 : -ENOENT;
}

static void
of_chance(char *ret)
{
    uint64_t words[2] = {0};

    if (getrandom(words, sizeof(words), 0) < 0)
        log_warning("no random bytes: %s", strerror(errno));
    snprintf(ret, MACHINE_ID_SIZE, "%016" PRIx64 "%016" PRIx64, words[0], words[1]);
}

void
machine_id_get(const char *configured, char ret[MACHINE_ID_SIZE])
{
    const char *why;
    int r;

    if (configured && *configured) {
        snprintf(ret, MACHINE_ID_SIZE, "%s", configured);
        return;
    }
    r = of_systemd(ret);
    if (r >= 0)
        return;
    why = r == -ENOPKG ? "no libsystemd.so.0" : strerror(-r);
    if (of_boot(ret) == 0) {
        log_notice("no machine-id(5) (%s): clients are told the id of this boot", why);
        return;
    }
    of_chance(ret);
    log_notice(
        "no machine-id(5) (%s), and no id of this boot: this daemon has a machine id of its "
        "own",
        why);
}
