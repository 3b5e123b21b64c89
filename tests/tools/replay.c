/* SPDX-License-Identifier: Apache-2.0 */
/*
 * Replays a fuzz corpus: gives every file of a folder to LLVMFuzzerTestOneInput, once. Linked
 * instead of libFuzzer in builds that do not fuzz, so that what fuzzing once found stays tested.
 */
#include <dirent.h>
#include <errno.h>
#include <stddef.h>
#include <stdint.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

int LLVMFuzzerTestOneInput(const uint8_t *data, size_t size);

/* The whole file in a buffer of exactly its size, so that AddressSanitizer sees one byte too
 * far. */
static uint8_t *
read_file(const char *path, size_t *ret_size)
{
    FILE *file = fopen(path, "rb");
    if (!file)
        return NULL;
    size_t size = 0;
    uint8_t *data = NULL;
    if (fseek(file, 0, SEEK_END) == 0) {
        long end = ftell(file);
        rewind(file);
        size = end > 0 ? (size_t)end : 0;
        data = malloc(size ? size : 1);
    }
    if (data && fread(data, 1, size, file) != size) {
        free(data);
        data = NULL;
    }
    fclose(file);
    *ret_size = size;
    return data;
}

static int
replay(const char *folder, const char *name)
{
    char path[4096];
    if (snprintf(path, sizeof(path), "%s/%s", folder, name) >= (int)sizeof(path))
        return -ENAMETOOLONG;
    size_t size = 0;
    uint8_t *data = read_file(path, &size);
    if (!data)
        return -EIO;
    LLVMFuzzerTestOneInput(data, size);
    free(data);
    return 0;
}

int
main(int argc, char **argv)
{
    DIR *dir = argc == 2 ? opendir(argv[1]) : NULL;
    if (!dir) {
        fprintf(stderr, "usage: %s CORPUS_FOLDER\n", argv[0]);
        return 2;
    }
    int n = 0, r = 0;
    struct dirent *entry;
    while (r == 0 && (entry = readdir(dir))) {
        if (entry->d_name[0] == '.')
            continue;
        r = replay(argv[1], entry->d_name);
        if (r < 0)
            fprintf(stderr, "%s/%s: %s\n", argv[1], entry->d_name, strerror(-r));
        n++;
    }
    closedir(dir);
    printf("%d inputs replayed\n", n);
    return r == 0 && n > 0 ? 0 : 1; /* an empty corpus would show nothing */
}
