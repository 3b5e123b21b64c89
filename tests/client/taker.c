/* SPDX-License-Identifier: Apache-2.0 */
/*
 * taker SOCKET BYTES MILLISECONDS: another process that gets memory while somebody else's GPU
 * work is on its way. It flushes the deallocation queues, creates an array, fills it, waits,
 * and looks whether what it wrote is still there. Exits 0, or 1 and says why.
 */
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <time.h>

#include "caid/caid.h"

#define FILL 0x55

static int
failed(const char *what, const struct caid_error *error)
{
    fprintf(stderr, "taker: %s: %s\n", what, error->message);
    return 1;
}

static int
fill_and_look(struct caid_array *array, unsigned char *bytes, size_t n,
              const struct timespec *wait)
{
    struct caid_error error;

    memset(bytes, FILL, n);
    if (caid_array_copy_from_host(array, bytes, n, &error) < 0)
        return failed("copy_from_host", &error);
    nanosleep(wait, NULL);
    if (caid_array_copy_to_host(array, bytes, n, &error) < 0)
        return failed("copy_to_host", &error);
    for (size_t i = 0; i < n; i++)
        if (bytes[i] != FILL) {
            fprintf(stderr, "taker: byte %zu became %#x: a late write\n", i, bytes[i]);
            return 1;
        }
    return 0;
}

int
main(int argc, char **argv)
{
    struct caid_connect_options connect = CAID_INIT(connect);
    struct caid_create_options create = CAID_INIT(create);
    struct caid_client *client;
    struct caid_array *array;
    struct caid_error error;

    if (argc != 4)
        return 1;
    const int64_t n = atoll(argv[2]);
    const struct timespec wait = {.tv_sec = atol(argv[3]) / 1000,
                                  .tv_nsec = atol(argv[3]) % 1000 * 1000000};
    connect.socket = argv[1];
    create.typestr = "|u1";
    create.shape = &n;
    create.ndim = 1;
    if (caid_connect(&client, &connect, &error) < 0)
        return failed("connect", &error);
    if (caid_flush(client, -1, NULL, &error) < 0)
        return failed("flush", &error);
    if (caid_array_create(client, &array, &create, &error) < 0)
        return failed("create", &error);
    unsigned char *bytes = malloc((size_t)n);
    int r = fill_and_look(array, bytes, (size_t)n, &wait);
    free(bytes);
    caid_array_close(array);
    caid_client_close(client);
    return r;
}
