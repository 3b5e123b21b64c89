/* SPDX-License-Identifier: Apache-2.0 */
/* The verbs load and save, which the Python package carries out: it has libraries for weight files.
 * */
#include <errno.h>
#include <stdlib.h>
#include <string.h>
#include <unistd.h>

#include "ctl.h"
#include "format.h"

/* Not by -m, which would also look for the package in the current folder. */
static const char program[] = "import sys\n"
                              "sys.path[:] = [path for path in sys.path if path]\n"
                              "try:\n"
                              "    from caid.weights._command import main\n"
                              "except ImportError as e:\n"
                              "    sys.exit(f'caidctl: {sys.executable}: {e}')\n"
                              "sys.exit(main())\n";

/* The index of the verb among the arguments; 0: none. */
static int
weights_find(int argc, char **argv)
{
    for (int i = 1; i < argc; i++)
        if (strcmp(argv[i], "-s") == 0 || strcmp(argv[i], "--socket") == 0)
            i++;
        else if (argv[i][0] != '-')
            return i;
    return 0;
}

int
verbs_weights(int argc, char **argv)
{
    int verb = weights_find(argc, argv), n = 0;
    const char *python = getenv("CAID_PYTHON");

    if (verb == 0 || (strcmp(argv[verb], "load") != 0 && strcmp(argv[verb], "save") != 0))
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
