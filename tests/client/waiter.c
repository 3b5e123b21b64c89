/* SPDX-License-Identifier: Apache-2.0 */
/* waiter HANDLE: another process that waits for an event, by its 64 bytes in hexadecimal digits.
 * Exits 0, or 1 and says why. */
#include <stdio.h>
#include <string.h>

#include "cuda/local.h"
#include "program.h"

int
main(int argc, char **argv)
{
    uint8_t handle[CUDA_EVENT_HANDLE_SIZE];
    struct caid_client *client;
    struct cuda_event *event;

    if (argc != 2 || strlen(argv[1]) != 2 * sizeof(handle))
        return 1;
    for (size_t i = 0; i < sizeof(handle); i++)
        if (sscanf(argv[1] + 2 * i, "%2hhx", &handle[i]) != 1)
            return 1;
    MUST(cuda_driver_open(&client, NULL, &error));
    MUST(cuda_event_open(client, &event, 0, handle, &error));
    if (cuda_event_ipc_handle(event, handle, &error) >= 0)
        errx(1, "an opened event has a handle");
    MUST(cuda_event_wait(event, 2, &error));
    MUST(caid_stream_synchronize(client, 2, 0, &error));
    cuda_event_free(event);
    caid_client_close(client);
    return 0;
}
