/* SPDX-License-Identifier: Apache-2.0 */
/*
 * taker SOCKET BYTES MILLISECONDS: another process that gets memory while somebody else's GPU
 * work is on its way. It flushes the deallocation queues, creates an array, fills it, waits,
 * and looks whether what it wrote is still there. Exits 0, or 1 and says why.
 */
#include <stdlib.h>
#include <string.h>
#include <unistd.h>

#include "program.h"

#define FILL 0x55

int
main(int argc, char **argv)
{
    if (argc != 4)
        return 1;
    size_t n = (size_t)atoll(argv[2]);
    struct caid_client *client = program_connect(argv[1]);
    MUST(caid_flush(client, -1, NULL, &error));
    struct caid_array *array = program_make(client, NULL, NULL, (int64_t)n);
    unsigned char *bytes = malloc(n);
    memset(bytes, FILL, n);
    MUST(caid_array_copy_from_host(array, bytes, n, &error));
    usleep((unsigned)atoi(argv[3]) * 1000);
    MUST(caid_array_copy_to_host(array, bytes, n, &error));
    for (size_t i = 0; i < n; i++)
        if (bytes[i] != FILL)
            errx(1, "byte %zu became %#x: a late write", i, bytes[i]);
    free(bytes);
    caid_array_close(array);
    caid_client_close(client);
    return 0;
}
