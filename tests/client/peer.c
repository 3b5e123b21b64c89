/* SPDX-License-Identifier: Apache-2.0 */
/*
 * peer SOCKET NAME FROM TO: another process that shares an array. It checks that all bytes of
 * array NAME are FROM and sets them to TO. Exits 0, or 1 and says why.
 */
#include <stdlib.h>
#include <string.h>

#include "program.h"

int
main(int argc, char **argv)
{
    OPTIONS(caid_open_options, open, .mode = "rw");
    struct caid_array *array;

    if (argc != 5)
        return 1;
    struct caid_client *client = program_connect(argv[1]);
    MUST(caid_array_open(client, &array, argv[2], &open, &error));
    size_t n = caid_array_get_info(array)->nbytes;
    unsigned char *bytes = malloc(n), from = (unsigned char)atoi(argv[3]);
    MUST(caid_array_copy_to_host(array, bytes, n, &error));
    for (size_t i = 0; i < n; i++)
        if (bytes[i] != from)
            errx(1, "byte %zu is %d, not %d", i, bytes[i], from);
    memset(bytes, atoi(argv[4]), n);
    MUST(caid_array_copy_from_host(array, bytes, n, &error));
    free(bytes);
    caid_array_close(array);
    caid_client_close(client);
    return 0;
}
