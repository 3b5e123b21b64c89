/* SPDX-License-Identifier: Apache-2.0 */
/* Finding the daemon, the connection's life and end. */
#include <errno.h>
#include <fcntl.h>
#include <poll.h>
#include <stdio.h>
#include <string.h>
#include <sys/socket.h>
#include <sys/un.h>
#include <sys/wait.h>
#include <unistd.h>

#include "client_fixture.h"
#include "drv.h"

struct folder {
    char dir[32];
    char path[64]; /* of a socket in it */
};

static void
folder_init(struct folder *folder)
{
    strcpy(folder->dir, "/tmp/caid-test-XXXXXX");
    cr_assert(mkdtemp(folder->dir));
    snprintf(folder->path, sizeof(folder->path), "%s/caid.sock", folder->dir);
}

static void
folder_deinit(struct folder *folder)
{
    unlink(folder->path);
    cr_assert_eq(rmdir(folder->dir), 0);
}

static int
try_connect(const char *socket, struct caid_error *error)
{
    struct caid_client *client;

    OPTIONS(caid_connect_options, options, .socket = socket);
    int r = caid_connect(&client, &options, error);
    if (r == 0)
        caid_client_close(client);
    return r;
}

static int
bind_socket(const char *path, int type)
{
    struct sockaddr_un address = {.sun_family = AF_UNIX};
    int fd = socket(AF_UNIX, type | SOCK_CLOEXEC, 0);

    strcpy(address.sun_path, path);
    cr_assert_eq(bind(fd, (struct sockaddr *)&address, sizeof(address)), 0);
    return fd;
}

#define assert_says(error, text) \
    cr_assert(strstr((error).message, text), "\"%s\" lacks \"%s\"", (error).message, text)

CAID_TEST(connect, no_such_socket)
{
    assert_failed(try_connect("/nonexistent/caid.sock", &error), CAID_ERR_NO_DAEMON);
    assert_says(error, "/nonexistent/caid.sock");
    cr_assert_eq(try_connect("/nonexistent/caid.sock", NULL), -ECONNREFUSED);
}

CAID_TEST(connect, what_is_no_socket)
{
    struct folder folder;

    folder_init(&folder);
    setenv("CAID_SOCKET", folder.dir, 1);
    assert_failed(try_connect(NULL, &error), CAID_ERR_NO_DAEMON);
    assert_says(error, folder.dir);
    assert_says(error, "not a socket");
    assert_says(error, "$CAID_SOCKET");

    close(open(folder.path, O_CREAT | O_WRONLY | O_CLOEXEC, 0600));
    assert_failed(try_connect(folder.path, &error), CAID_ERR_NO_DAEMON);
    assert_says(error, "not a socket");
    folder_deinit(&folder);
}

CAID_TEST(connect, nobody_listens)
{
    struct folder folder;

    folder_init(&folder);
    close(bind_socket(folder.path, SOCK_SEQPACKET));
    assert_failed(try_connect(folder.path, &error), CAID_ERR_NO_DAEMON);
    assert_says(error, "nobody listens");
    folder_deinit(&folder);
}

CAID_TEST(connect, a_socket_of_another_kind)
{
    struct folder folder;

    folder_init(&folder);
    int fd = bind_socket(folder.path, SOCK_STREAM);
    listen(fd, 1);
    assert_failed(try_connect(folder.path, &error), CAID_ERR_NO_DAEMON);
    assert_says(error, "not caid's");
    close(fd);
    folder_deinit(&folder);
}

CAID_TEST(connect, too_long_a_path)
{
    char path[200];

    memset(path, 'p', sizeof(path) - 1);
    path[sizeof(path) - 1] = 0;
    assert_failed(try_connect(path, &error), CAID_ERR_NO_DAEMON);
    assert_says(error, "107 bytes");
}

CAID_TEST(connect, options_are_checked)
{
    struct caid_connect_options options = {0};
    struct caid_client *client = NULL;

    assert_failed(caid_connect(&client, &options, &error), CAID_ERR_INVALID);
    assert_failed(caid_connect(NULL, NULL, &error), CAID_ERR_INVALID);
    cr_assert_null(client);
    cr_assert_eq(caid_client_ping(NULL, NULL), -EINVAL);
    cr_assert_eq(caid_client_get_fd(NULL), -EINVAL);
    cr_assert_eq(caid_client_devices(NULL, NULL), -EINVAL);
    caid_client_close(NULL);
    caid_array_close(NULL);
    cr_assert_null(caid_array_get_info(NULL));
}

CAID_TEST(connect, codes_have_names)
{
    cr_assert_str_eq(caid_code_name(CAID_ERR_NOT_FOUND), "NOT_FOUND");
    cr_assert_str_eq(caid_code_name(CAID_ERR_FORKED), "FORKED");
    cr_assert_null(caid_code_name(0));
    cr_assert_null(caid_code_name(-1));
    cr_assert_null(caid_code_name(63));
    cr_assert(strchr(caid_version(), '.'));
}

CAID_TEST(connect, search_order)
{
    struct daemon daemon;
    struct caid_status status = CAID_INIT(status);
    struct caid_client *client;
    char runtime[80];

    daemon_start(&daemon);
    setenv("CAID_SOCKET", daemon.socket, 1);
    setenv("XDG_RUNTIME_DIR", "/nonexistent", 1);
    assert_ok(try_connect(NULL, &error));
    assert_failed(try_connect("/nonexistent/s", &error), CAID_ERR_NO_DAEMON);

    /* Empty counts as not set; $XDG_RUNTIME_DIR is next. */
    setenv("CAID_SOCKET", "", 1);
    setenv("XDG_RUNTIME_DIR", daemon.dir, 1);
    snprintf(runtime, sizeof(runtime), "%s/caid.sock", daemon.dir);
    cr_assert_eq(symlink(daemon.socket, runtime), 0);
    assert_ok(caid_connect(&client, NULL, &error));
    assert_ok(caid_client_status(client, &status, &error));
    cr_assert_str_eq(status.socket, runtime);
    caid_client_close(client);
    unlink(runtime);
    daemon_stop(&daemon);
}

CAID_TEST(connect, client_names)
{
    struct daemon daemon;
    struct caid_client *client;
    char name[66];

    daemon_start(&daemon);
    OPTIONS(caid_connect_options, options, .socket = daemon.socket);
    memset(name, 'n', sizeof(name));
    name[65] = 0;
    options.name = name;
    assert_failed(caid_connect(&client, &options, &error), CAID_ERR_INVALID);
    name[64] = 0;
    assert_ok(caid_connect(&client, &options, &error));
    caid_client_close(client);
    options.name = "\xff";
    assert_failed(caid_connect(&client, &options, &error), CAID_ERR_INVALID);
    daemon_stop(&daemon);
}

DAEMON_TEST(connect, status_ping_devices)
{
    struct caid_status status = CAID_INIT(status);
    const struct caid_device *const *devices;

    assert_ok(caid_client_ping(f.client, &error));
    assert_ok(caid_client_status(f.client, &status, &error));
    cr_assert_eq(status.pid, (uint64_t)f.daemon.pid);
    cr_assert_eq(status.connections, 1);
    cr_assert_eq(status.leases, 0);
    cr_assert_str_eq(status.socket, f.daemon.socket);
    cr_assert(status.pool[0] && status.server[0] && status.driver[0] && status.driver_path[0]);
    cr_assert_eq(status.struct_size, sizeof(status));

    cr_assert_gt(caid_client_devices(f.client, &devices), 0);
    cr_assert_eq(strncmp(devices[0]->uuid, "GPU-", 4), 0);
    cr_assert_gt(devices[0]->total, 0);
}

/* A caller that knows less of a struct gets no more than it knows. */
DAEMON_TEST(connect, older_result_struct)
{
    struct caid_status status;

    memset(&status, 0x5a, sizeof(status));
    status.struct_size = offsetof(struct caid_status, driver);
    assert_ok(caid_client_status(f.client, &status, &error));
    cr_assert_eq(strncmp(status.server, "caid ", 5), 0);
    cr_assert_eq(status.driver[0], 0x5a);
    status.struct_size = 1;
    assert_failed(caid_client_status(f.client, &status, &error), CAID_ERR_INVALID);
}

DAEMON_TEST(connect, the_daemon_goes_away)
{
    struct pollfd fd = {.fd = caid_client_get_fd(f.client), .events = POLLIN};
    cr_assert_eq(poll(&fd, 1, 0), 0);
    assert_ok(caid_client_dispatch(f.client, &error));

    daemon_end(&f.daemon, SIGKILL);
    cr_assert_eq(poll(&fd, 1, 10000), 1, "the fd tells");
    assert_failed(caid_client_dispatch(f.client, &error), CAID_ERR_DISCONNECTED);
    assert_failed(caid_client_ping(f.client, &error), CAID_ERR_DISCONNECTED);
    assert_says(error, f.daemon.socket);
    assert_failed(try_connect(f.daemon.socket, &error), CAID_ERR_NO_DAEMON);
}

CAID_TEST(connect, killed_during_a_call)
{
    struct daemon daemon;
    struct caid_error error = {0};

    daemon_start(&daemon);
    struct caid_client *client = daemon_connect(&daemon);
    kill(daemon.pid, SIGSTOP);
    pid_t killer = fork();
    if (killer == 0) {
        usleep(50 * 1000); /* so that the call is likely under way */
        kill(daemon.pid, SIGKILL);
        _exit(0);
    }
    assert_failed(caid_client_ping(client, &error), CAID_ERR_DISCONNECTED);
    waitpid(killer, NULL, 0);
    caid_client_close(client);
    daemon_end(&daemon, SIGKILL);
    daemon_stop(&daemon);
}

CLIENT_TEST(connect, the_driver_alone)
{
    const struct caid_device *const *devices;
    struct caid_array *array;
    struct caid_client *client;
    const int64_t n = 4;
    struct drv *drv;
    CUdeviceptr ptr;
    uint64_t found;
    int32_t device;
    char in[4] = "abc", out[4] = "";

    assert_failed(cuda_driver_open(&client, "/nonexistent/libcuda.so", &error),
                  CAID_ERR_DEVICE);
    assert_failed(cuda_driver_open(NULL, NULL, &error), CAID_ERR_INVALID);
    assert_ok(cuda_driver_open(&client, NULL, &error));
    cr_assert_gt(caid_client_devices(client, &devices), 0);
    cr_assert_eq(strncmp(devices[0]->uuid, "GPU-", 4), 0);
    assert_failed(caid_client_ping(client, &error), CAID_ERR_NO_DAEMON);
    assert_failed(caid_array_open(client, &array, "x", NULL, &error), CAID_ERR_NO_DAEMON);
    cr_assert_eq(caid_client_get_fd(client), -ENOTCONN);
    assert_ok(caid_stream_synchronize(client, 1, 0, &error));

    cr_assert_eq(drv_open(&drv, NULL, NULL), 0);
    CUcontext context;
    drv->cu.cuDevicePrimaryCtxRetain(&context, 0);
    drv->cu.cuCtxSetCurrent(context);
    cr_assert_eq(drv->cu.cuMemAlloc(&ptr, 4), CUDA_SUCCESS);
    assert_ok(cuda_pointer_resolve(client, ptr, &found, &device, &error));
    cr_assert(found == ptr && device == 0);
    OPTIONS(caid_copy, copy, .shape = &n);
    copy.ndim = copy.itemsize = 1;
    copy.dst = ptr, copy.src = (uintptr_t)in, copy.src_on_host = true;
    assert_ok(caid_copy(client, &copy, &error));
    copy.dst = (uintptr_t)out, copy.src = ptr, copy.dst_on_host = true,
    copy.src_on_host = false;
    assert_ok(caid_copy(client, &copy, &error));
    cr_assert_str_eq(out, "abc");
    drv->cu.cuMemFree(ptr);
    drv->cu.cuDevicePrimaryCtxRelease(0);
    drv_free(drv);
    caid_client_close(client);
}
