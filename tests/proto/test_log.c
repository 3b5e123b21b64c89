/* SPDX-License-Identifier: Apache-2.0 */
/* Where log lines go, and that nobody waits for them to be read. */
#include <fcntl.h>
#include <string.h>

#include "base/log.h"
#include "caid_test.h"

/* A pipe in stderr's place; fds[0] is where its lines can be read. */
struct capture {
    int fds[2];
    int saved;
};

static void
capture_init(struct capture *c)
{
    cr_assert_eq(pipe2(c->fds, O_CLOEXEC), 0);
    c->saved = fcntl(STDERR_FILENO, F_DUPFD_CLOEXEC, 0);
    cr_assert_geq(c->saved, 0);
    cr_assert_eq(dup2(c->fds[1], STDERR_FILENO), STDERR_FILENO);
}

static void
capture_deinit(struct capture *c)
{
    dup2(c->saved, STDERR_FILENO);
    fd_close(c->saved);
    fd_close(c->fds[0]);
    fd_close(c->fds[1]);
}

/* Whether what is in the pipe now has text in it. */
static bool
capture_has(const struct capture *c, const char *text)
{
    static char all[1 << 20];
    size_t n = 0;
    ssize_t r;

    fcntl(c->fds[0], F_SETFL, O_NONBLOCK);
    while ((r = read(c->fds[0], all + n, sizeof(all) - n)) > 0)
        n += (size_t)r;
    return memmem(all, n, text, strlen(text)) != NULL;
}

CAID_TEST(log, control_characters_are_escaped)
{
    struct capture c;

    capture_init(&c);
    log_init("test");
    log_error("a name\nerror: forged");
    bool found = capture_has(&c, "test: error: a name\\x0aerror: forged\n");
    capture_deinit(&c);
    cr_assert(found);
}

CAID_TEST_WITH(log, a_full_pipe_loses_the_line, .timeout = 20)
{
    static const char filling[4096];
    struct capture c;

    capture_init(&c);
    log_init("test");
    fcntl(c.fds[1], F_SETFL, O_NONBLOCK);
    while (write(c.fds[1], filling, sizeof(filling)) > 0)
        ;
    fcntl(c.fds[1], F_SETFL, 0);
    log_error("lost");
    bool lost = !capture_has(&c, "lost");
    log_error("read");
    bool found = capture_has(&c, "test: error: read\n");
    capture_deinit(&c);
    cr_assert(lost && found);
}
