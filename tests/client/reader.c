/* SPDX-License-Identifier: Apache-2.0 */
/*
 * reader SOCKET NAME BYTE: another process that holds an array. It checks that all bytes of array
 * NAME are BYTE, and says "ready". For each byte that it then reads it closes the array, if it has
 * not yet; it exits at the end of its input, without closing anything. Exits 0, or 1 and says why.
 */
#include <stdio.h>
#include <stdlib.h>
#include <unistd.h>

#include "base/macros.h"
#include "program.h"

static void
look(struct caid_array *array, unsigned char wanted)
{
    size_t n = caid_array_get_info(array)->nbytes;
    unsigned char *bytes = malloc(n);

    MUST(caid_array_copy_to_host(array, bytes, n, &error));
    for (size_t i = 0; i < n; i++)
        if (bytes[i] != wanted)
            errx(1, "byte %zu of %zu is not %d", i, n, wanted);
    free(bytes);
}

int
main(int argc, char **argv)
{
    struct caid_array *array;
    char byte;

    if (argc != 4)
        return 1;
    MUST(caid_array_open(program_connect(argv[1]), &array, argv[2], NULL, &error));
    look(array, (unsigned char)atoi(argv[3]));
    puts("ready");
    fflush(stdout);
    while (read(STDIN_FILENO, &byte, 1) == 1)
        caid_array_close(TAKE_PTR(array));
    _exit(0);
}
