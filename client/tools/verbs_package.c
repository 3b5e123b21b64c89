/* SPDX-License-Identifier: Apache-2.0 */
/* The verbs load, save, get and put, which the Python package carries out: it knows the files. */
#include <errno.h>
#include <stdlib.h>
#include <string.h>
#include <unistd.h>

#include "ctl.h"
#include "format.h"

static const char *const verbs[] = {"load", "save", "get", "put"};

/* Not by -m, which would also look for the package in the current folder. */
static const char program[] = "import sys\n"
                              "sys.path[:] = [path for path in sys.path if path]\n"
                              "try:\n"
                              "    from caid._command import main\n"
                              "except ImportError as e:\n"
                              "    sys.exit(f'caidctl: {sys.executable}: {e}')\n"
                              "sys.exit(main())\n";

static bool
has_value(const char *option)
{
    static const char *const options[] = {"-s", "--socket", "-p", "--pool", "-d", "--device"};

    for (size_t i = 0; i < ARRAY_SIZE(options); i++)
        if (strcmp(option, options[i]) == 0)
            return true;
    return false;
}

/* The index of such a verb among the arguments; 0: it is another one, or none. */
static int
package_find(int argc, char **argv)
{
    int i = 1;

    while (i < argc && argv[i][0] == '-')
        i += has_value(argv[i]) ? 2 : 1;
    for (size_t n = 0; i < argc && n < ARRAY_SIZE(verbs); n++)
        if (strcmp(argv[i], verbs[n]) == 0)
            return i;
    return 0;
}

int
verbs_package(int argc, char **argv)
{
    int verb = package_find(argc, argv), n = 0;
    const char *python = getenv("CAID_PYTHON");

    if (verb == 0)
        return CTL_OK;
    _cleanup_free_ char **args = calloc((size_t)argc + 4, sizeof(*args));
    if (!args)
        out_of_memory();
    python = python && *python ? python : "python3";
    args[n++] = (char *)(uintptr_t)python;
    args[n++] = (char *)(uintptr_t) "-c";
    args[n++] = (char *)(uintptr_t)program;
    args[n++] = argv[verb];
    for (int i = 1; i < argc; i++)
        if (i != verb)
            args[n++] = argv[i];
    execvp(python, args);
    ctl_complain(python, strerror(errno));
    return CTL_LOCAL;
}
