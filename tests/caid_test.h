/* SPDX-License-Identifier: Apache-2.0 */
/*
 * CAID_TEST(suite, name) { body }: a Criterion test that also fails when its body leaves an fd
 * open or, under AddressSanitizer, leaks memory. (Criterion by itself passes a leaking test, and
 * ignores failures in .fini.)
 */
#pragma once

#include <criterion/criterion.h>
#include <dirent.h>
#include <unistd.h>

#if defined(__SANITIZE_ADDRESS__)
#    include <sanitizer/lsan_interface.h>
#    define TEST_LEAKS() __lsan_do_recoverable_leak_check()
#else
#    define TEST_LEAKS() 0
#endif

static inline int
test_count_fds(void)
{
    int n = 0;
    DIR *dir = opendir("/proc/self/fd");
    while (readdir(dir))
        n++;
    closedir(dir);
    return n;
}

/* Waits for up to 10 s until so many are open: a thread of the driver that answers other processes
 * closes their sockets a little later. */
static inline int
test_count_fds_later(int n)
{
    for (int i = 0; i < 1000 && test_count_fds() != n; i++)
        usleep(10000);
    return test_count_fds();
}

#define CAID_TEST_WITH(suite, name, ...)                                                \
    static void suite##_##name##_body(void);                                            \
    Test(suite, name, __VA_ARGS__)                                                      \
    {                                                                                   \
        int fds_before = test_count_fds();                                              \
        suite##_##name##_body();                                                        \
        cr_assert_eq(test_count_fds_later(fds_before), fds_before, "open fds changed"); \
        cr_assert_eq(TEST_LEAKS(), 0, "memory leaked");                                 \
    }                                                                                   \
    static void suite##_##name##_body(void)

#define CAID_TEST(suite, name) CAID_TEST_WITH(suite, name, .timeout = 60)

/* The same, with its body between two calls. */
#define CAID_TEST_BETWEEN(suite, name, begin, end, ...) \
    static void suite##_##name##_between(void);         \
    CAID_TEST_WITH(suite, name, __VA_ARGS__)            \
    {                                                   \
        begin;                                          \
        suite##_##name##_between();                     \
        end;                                            \
    }                                                   \
    static void suite##_##name##_between(void)

/* A first call for CAID_TEST_BETWEEN(): without that, the test is nothing. */
#define ONLY_IF(condition, begin) \
    if (!(condition))             \
        return;                   \
    begin
