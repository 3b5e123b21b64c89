/* SPDX-License-Identifier: Apache-2.0 */
/*
 * peer SOCKET NAME FROM TO: another process that shares an array. It checks that all bytes of
 * array NAME are FROM and sets them to TO. Exits 0, or 1 and says why.
 */
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include "caid/caid.h"

static int
failed(const char *what, const struct caid_error *error)
{
    fprintf(stderr, "peer: %s: %s\n", what, error->message);
    return 1;
}

static int
change(struct caid_array *array, unsigned char *bytes, unsigned char from, unsigned char to)
{
    size_t n = caid_array_get_info(array)->nbytes;
    struct caid_error error;

    if (caid_array_copy_to_host(array, bytes, n, &error) < 0)
        return failed("copy_to_host", &error);
    for (size_t i = 0; i < n; i++)
        if (bytes[i] != from) {
            fprintf(stderr, "peer: byte %zu is %d, not %d\n", i, bytes[i], from);
            return 1;
        }
    memset(bytes, to, n);
    if (caid_array_copy_from_host(array, bytes, n, &error) < 0)
        return failed("copy_from_host", &error);
    return 0;
}

int
main(int argc, char **argv)
{
    struct caid_connect_options connect = CAID_INIT(connect);
    struct caid_open_options open = CAID_INIT(open);
    struct caid_client *client;
    struct caid_array *array;
    struct caid_error error;

    if (argc != 5)
        return 1;
    connect.socket = argv[1];
    open.mode = "rw";
    if (caid_connect(&client, &connect, &error) < 0)
        return failed("connect", &error);
    if (caid_array_open(client, &array, argv[2], &open, &error) < 0)
        return failed("open", &error);
    unsigned char *bytes = malloc(caid_array_get_info(array)->nbytes);
    int r = change(array, bytes, (unsigned char)atoi(argv[3]), (unsigned char)atoi(argv[4]));
    free(bytes);
    caid_array_close(array);
    caid_client_close(client);
    return r;
}
