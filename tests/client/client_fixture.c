/* SPDX-License-Identifier: Apache-2.0 */
#include "client_fixture.h"

struct fixture f;

void
begin(void)
{
    daemon_start(&f.daemon);
    f.client = daemon_connect(&f.daemon);
}

void
begin_with_gpu(void)
{
    gpu_begin(&f.gpu);
    begin();
}

void
end(void)
{
    caid_client_close(f.client);
    daemon_stop(&f.daemon);
    if (f.gpu.drv)
        gpu_end(&f.gpu);
}

struct caid_array *
must_open(const char *name, const char *mode)
{
    struct caid_array *array;

    OPTIONS(caid_open_options, options, .mode = mode);
    assert_ok(caid_array_open(f.client, &array, name, &options, &error));
    return array;
}
