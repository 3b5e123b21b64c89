/* SPDX-License-Identifier: Apache-2.0 */
/* Opening a fake driver from the folder of the running test, and reaching its state. */
#pragma once

#include <dlfcn.h>
#include <stdio.h>
#include <string.h>
#include <unistd.h>

#include "drv.h"
#include "fake_driver.h"

static inline const char *
fake_path(const char *name)
{
    static char path[4096 + 64];
    char self[4096];
    ssize_t n = readlink("/proc/self/exe", self, sizeof(self) - 1);
    self[n > 0 ? n : 0] = '\0';
    char *slash = strrchr(self, '/');
    snprintf(path, sizeof(path), "%.*s/%s.so", slash ? (int)(slash - self) : 0, self, name);
    return path;
}

/* The state of a fake that is already open. */
static inline struct fake_state *
fake_state_of(const struct drv *drv)
{
    void *library = dlopen(drv->path, RTLD_NOW | RTLD_NOLOAD);
    struct fake_state *(*get)(void);
    void *address = dlsym(library, "fake_state");
    memcpy(&get, &address, sizeof(address));
    return get();
}
