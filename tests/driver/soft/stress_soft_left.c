/* SPDX-License-Identifier: Apache-2.0 */
#include "stress_soft_left.h"

#include <dirent.h>
#include <inttypes.h>
#include <stdio.h>
#include <string.h>

#include "soft_test.h"
#include "stress_soft_wire.h"

#define MARK        "caid-softcuda" /* in all names that the driver gives */
#define MAX_SOCKETS 100000

static DIR *
open_folder(const char *path)
{
    DIR *folder = opendir(path);
    if (!folder)
        wire_die(path);
    return folder;
}

/* Calls found() with what each descriptor of the process is, and counts how often it says yes. */
static int
each_fd(pid_t pid, bool (*found)(const char *link))
{
    char path[64], link[512];
    struct dirent *entry;
    int n = 0;
    snprintf(path, sizeof(path), "/proc/%d/fd", (int)pid);
    DIR *folder = open_folder(path);
    while ((entry = readdir(folder))) {
        ssize_t size = readlinkat(dirfd(folder), entry->d_name, link, sizeof(link) - 1);
        link[size < 0 ? 0 : size] = '\0';
        n += found(link);
    }
    closedir(folder);
    return n;
}

/* Calls found() with each line of the file, and counts how often it says yes. */
static int
each_line(const char *path, bool (*found)(const char *line))
{
    char line[1024];
    int n = 0;
    FILE *file = fopen(path, "re");
    if (!file)
        wire_die(path);
    while (fgets(line, sizeof(line), file))
        n += found(line);
    fclose(file);
    return n;
}

static bool
is_memfd(const char *text)
{
    if (!strstr(text, "memfd:"))
        return false;
    fprintf(stderr, "%s\n", text);
    return true;
}

bool
left_in_process(pid_t pid)
{
    char path[64];
    snprintf(path, sizeof(path), "/proc/%d/maps", (int)pid);
    int n = each_fd(pid, is_memfd) + each_line(path, is_memfd);
    if (n > 0)
        fprintf(stderr, "process %d has %d of these\n", (int)pid, n);
    return n > 0;
}

/* Inodes, in no order. */
static unsigned long sockets[MAX_SOCKETS];
static size_t n_sockets;

static bool
note_socket(const char *link)
{
    unsigned long inode;
    if (sscanf(link, "socket:[%lu]", &inode) != 1)
        return false;
    if (n_sockets == MAX_SOCKETS)
        wire_die("more sockets than there is room for");
    sockets[n_sockets++] = inode;
    return true;
}

void
left_note_sockets(pid_t pid)
{
    each_fd(pid, note_socket);
}

/* A line of /proc/net/unix: "0000: 00000002 00000000 00010000 0001 01 INODE PATH". */
static bool
is_noted(const char *line)
{
    unsigned long inode;
    if (sscanf(line, "%*s %*s %*s %*s %*s %*s %lu", &inode) != 1)
        return false;
    for (size_t i = 0; i < n_sockets; i++)
        if (sockets[i] == inode)
            return fprintf(stderr, "%s", line) > 0;
    return false;
}

static bool
left_in_shm(void)
{
    struct dirent *entry;
    bool found = false;
    DIR *folder = open_folder("/dev/shm");
    while ((entry = readdir(folder))) {
        if (!strstr(entry->d_name, MARK))
            continue;
        fprintf(stderr, "/dev/shm/%s\n", entry->d_name);
        found = true;
    }
    closedir(folder);
    return found;
}

bool
left_in_names(void)
{
    bool found = left_in_shm();
    return each_line("/proc/net/unix", is_noted) > 0 || found;
}

void
left_on_device(void)
{
    soft_start();
    uint64_t used = soft_used();
    if (used)
        fprintf(stderr, "%" PRIu64 " bytes are in use\n", used);
    exit(used != 0);
}
