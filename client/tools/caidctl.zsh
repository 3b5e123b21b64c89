#compdef caidctl
# SPDX-License-Identifier: Apache-2.0
# Completion of caidctl(1) for zsh. Its verbs and options are what caidctl --help lists.

_caidctl_verbs() {
    local -a verbs
    verbs=(${(f)"$(caidctl --help | sed -nE 's/^  ([a-z]+)( [^a-z ]+)* +([^ ].*)/\1:\3/p')"})
    _describe verb verbs
}

# The first column of a table that caidctl prints. Columns are two spaces apart, so a name may have
# single ones in it.
_caidctl_first_column() {
    local -a values
    local socket=${(Q)${opt_args[--socket]:-$opt_args[-s]}}
    values=(${(f)"$(caidctl ${socket:+--socket=$socket} $1 2>/dev/null | sed -e 1d -e 's/^ *//' -e 's/  .*//')"})
    compadd -a values
}

# The pids of others that are connected: the second column of connections.
_caidctl_pids() {
    local -a values
    local socket=${(Q)${opt_args[--socket]:-$opt_args[-s]}}
    values=(${(f)"$(caidctl ${socket:+--socket=$socket} connections 2>/dev/null | sed -nE '/  caidctl  /d; s/^ *[0-9]+ +([1-9][0-9]*) .*/\1/p' | sort -un)"})
    compadd -a values
}

_caidctl_arguments() {
    case $line[1] in
    list | show | unlink | watch) _caidctl_first_column list ;;
    get | put) _caidctl_first_column list; _files ;;
    info) _caidctl_first_column info ;;
    kick) _caidctl_pids ;;
    esac
}

_caidctl() {
    local text long short value what match mbegin mend
    local -a options line
    local -A opt_args
    for text in ${(f)"$(caidctl --help)"}; do
        [[ $text =~ '^  (-[A-Za-z], |    )(--[a-z-]+)(=[A-Z]+)? +(.*)' ]] || continue
        short=${match[1]%%[ ,]*} long=$match[2] what=${match[4]//[\[\]:]/ }
        case $match[3] in
        '=PATH') value=:path:_files ;;
        '=POOL') value=:pool:' _caidctl_first_column pools' ;;
        '=DEVICE') value=:device:' _caidctl_first_column info' ;;
        '=PREFIX') value=:prefix:' _caidctl_first_column list' ;;
        '='*) value=:value: ;;
        *) value= ;;
        esac
        options+=("($short $long)$long${value:+=}[$what]$value")
        [[ -z $short ]] || options+=("($short $long)$short${value:++}[$what]$value")
    done
    _arguments -S $options ':verb:_caidctl_verbs' '*:argument:_caidctl_arguments'
}

_caidctl "$@"
