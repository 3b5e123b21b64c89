/* SPDX-License-Identifier: Apache-2.0 */
/* What a stranger's program looks like: built against an installed libcaid by check_install.sh. */
#include <caid/caid.h>

#include <stdio.h>
#include <string.h>

static int
failed(const char *what, const struct caid_error *error)
{
    fprintf(stderr, "consumer: %s: %s\n", what, error->message);
    return 1;
}

static int
share(struct caid_client *client, struct caid_error *error)
{
    const int64_t shape[] = {4};
    struct caid_create_options options = CAID_INIT(struct caid_create_options);
    options.name = "installed";
    options.typestr = "<i4";
    options.shape = shape;
    options.ndim = 1;
    struct caid_array *array;
    if (caid_array_create(client, &array, &options, error) < 0)
        return failed("create", error);

    const int32_t written[4] = {1, 2, 3, 4};
    int32_t read[4] = {0};
    int r = caid_array_copy_from_host(array, written, sizeof(written), error);
    if (r == 0)
        r = caid_array_copy_to_host(array, read, sizeof(read), error);
    caid_array_close(array);
    if (r < 0)
        return failed("copy", error);
    if (memcmp(read, written, sizeof(read)) != 0) {
        fprintf(stderr, "consumer: the array holds other bytes than were written\n");
        return 1;
    }
    return 0;
}

int
main(void)
{
    struct caid_error error;
    struct caid_client *client;
    if (caid_connect(&client, NULL, &error) < 0)
        return failed("connect", &error);
    int r = share(client, &error);
    caid_client_close(client);
    return r;
}
