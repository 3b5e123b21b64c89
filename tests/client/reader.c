/* SPDX-License-Identifier: Apache-2.0 */
/*
 * reader SOCKET NAME BYTE: another process that holds an array. It checks that all bytes of array
 * NAME are BYTE, and says "ready". For each byte that it then reads it closes the array, if it has
 * not yet; it exits at the end of its input, without closing anything. Exits 0, or 1 and says why.
 */
#include <stdio.h>
#include <stdlib.h>
#include <unistd.h>

#include "caid/caid.h"

static int
failed(const char *what, const struct caid_error *error)
{
    fprintf(stderr, "reader: %s: %s\n", what, error->message);
    return 1;
}

static int
look(struct caid_array *array, unsigned char wanted)
{
    size_t n = caid_array_get_info(array)->nbytes;
    unsigned char *bytes = malloc(n);
    struct caid_error error;
    size_t i = 0;

    if (!bytes || caid_array_copy_to_host(array, bytes, n, &error) < 0)
        return failed("copy_to_host", &error);
    while (i < n && bytes[i] == wanted)
        i++;
    free(bytes);
    if (i < n)
        fprintf(stderr, "reader: byte %zu of %zu is not %d\n", i, n, wanted);
    return i < n;
}

int
main(int argc, char **argv)
{
    struct caid_connect_options connect = CAID_INIT(connect);
    struct caid_client *client;
    struct caid_array *array;
    struct caid_error error = {0};
    char byte;

    if (argc != 4)
        return 1;
    connect.socket = argv[1];
    if (caid_connect(&client, &connect, &error) < 0)
        return failed("connect", &error);
    if (caid_array_open(client, &array, argv[2], NULL, &error) < 0)
        return failed("open", &error);
    if (look(array, (unsigned char)atoi(argv[3])) != 0)
        return 1;
    puts("ready");
    fflush(stdout);
    while (read(STDIN_FILENO, &byte, 1) == 1) {
        caid_array_close(array);
        array = NULL;
    }
    _exit(0);
}
