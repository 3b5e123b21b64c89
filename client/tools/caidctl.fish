# SPDX-License-Identifier: Apache-2.0
# Completion of caidctl(1) for fish. Its verbs and options are what caidctl --help lists.

function __caidctl_verbs
    caidctl --help | string replace -rf '^  ([a-z]+)(?: [^a-z ]+)* +(\S.*)' '$1\t$2'
end

# The first column of a table that caidctl prints. Columns are two spaces apart, so a name may have
# single ones in it.
function __caidctl_first_column
    set -l socket (commandline -poc | string join ' ' | string replace -rf -- '.* (?:--socket|-s)[= ]?(\S+).*' '--socket=$1')
    caidctl $socket $argv 2>/dev/null | tail -n +2 | string replace -r '^ *(.*?)(?:  .*)?$' '$1'
end

# The pids of others that are connected: the second column of connections.
function __caidctl_pids
    set -l socket (commandline -poc | string join ' ' | string replace -rf -- '.* (?:--socket|-s)[= ]?(\S+).*' '--socket=$1')
    caidctl $socket connections 2>/dev/null | string match -rv '  caidctl  ' | string replace -rf '^ *\d+ +([1-9]\d*) .*' '$1' | sort -un
end

complete -c caidctl -f
complete -c caidctl -n 'not __fish_seen_subcommand_from (__caidctl_verbs | string split -f1 \t)' -a '(__caidctl_verbs)'
complete -c caidctl -n '__fish_seen_subcommand_from list show unlink watch get put' -a '(__caidctl_first_column list)'
complete -c caidctl -n '__fish_seen_subcommand_from load save get put' -F
complete -c caidctl -n '__fish_seen_subcommand_from info' -a '(__caidctl_first_column info)'
complete -c caidctl -n '__fish_seen_subcommand_from kick' -a '(__caidctl_pids)'

for line in (caidctl --help)
    string match -rq '^  (?:-(?<short>\w), |    )--(?<long>[a-z-]+)(?:=(?<value>\w+))? +(?<what>.*)' -- $line; or continue
    set -l option -l $long -d $what
    test -n "$short"; and set -a option -s $short
    switch "$value"
        case PATH
            set -a option -r -F
        case POOL
            set -a option -x -a '(__caidctl_first_column pools)'
        case DEVICE
            set -a option -x -a '(__caidctl_first_column info)'
        case PREFIX
            set -a option -x -a '(__caidctl_first_column list)'
        case '?*'
            set -a option -x
    end
    complete -c caidctl $option
end
