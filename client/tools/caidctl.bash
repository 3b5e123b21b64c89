# SPDX-License-Identifier: Apache-2.0
# Completion of caidctl(1) for bash. Its verbs and options are what caidctl --help lists.

# The first column of a table that caidctl prints. Columns are two spaces apart, so a name may
# have single ones in it.
_caidctl_first_column() {
    caidctl "${where[@]}" "$@" 2>/dev/null | sed -e 1d -e 's/^ *//' -e 's/  .*//'
}

# The pids of others that are connected: the second column of connections.
_caidctl_pids() {
    caidctl "${where[@]}" connections 2>/dev/null | sed -nE '/  caidctl  /d; s/^ *[0-9]+ +([1-9][0-9]*) .*/\1/p' | sort -un
}

# Completes $cur to lines of standard input.
_caidctl_lines() {
    local line
    while IFS= read -r line; do
        [[ $line == "$cur"* ]] && COMPREPLY+=("$(printf %q "$line")")
    done
}

# Finds the verb and the socket among the words before the one to complete. Where = breaks words,
# "--socket=x" is three of them.
_caidctl_scan() {
    local i
    for ((i = 1; i < COMP_CWORD; i++)); do
        case ${COMP_WORDS[i]} in
        --socket | -s | --pool | -p | --device | -d | --count | -c | --prefix | --uid | --method | --svg | --delay | --pid | -n)
            local option=${COMP_WORDS[i]}
            [[ ${COMP_WORDS[i + 1]} == = ]] && ((i++))
            ((i++))
            [[ $option == --socket || $option == -s ]] && where=(--socket="${COMP_WORDS[i]}")
            ;;
        -*) ;;
        *) [[ $verb ]] || verb=${COMP_WORDS[i]} ;;
        esac
    done
}

_caidctl() {
    local cur=${COMP_WORDS[COMP_CWORD]} prev=${COMP_WORDS[COMP_CWORD - 1]} verb=''
    local -a where=()

    COMPREPLY=()
    if [[ $cur == = ]]; then
        cur=''
    elif [[ $prev == = ]]; then
        prev=${COMP_WORDS[COMP_CWORD - 2]}
    fi
    _caidctl_scan

    case $prev in
    --socket | -s | --svg) _caidctl_lines < <(compgen -f -- "$cur") ;;
    --pool | -p) _caidctl_lines < <(_caidctl_first_column pools) ;;
    --device | -d) _caidctl_lines < <(_caidctl_first_column info) ;;
    --prefix) _caidctl_lines < <(_caidctl_first_column list) ;;
    --count | -c | --uid | --method | --delay | --pid | -n) ;;
    *)
        case $verb:$cur in
        load:-*)
            _caidctl_lines < <(printf '%s\n' --name= --pool= --device= --memory= --droppable --priority= --dtype= --only= --shard= \
                --rows= --columns= --tie= --socket= --json --quiet --help)
            [[ ${COMPREPLY[*]} == *= ]] && compopt -o nospace 2>/dev/null
            ;;
        load:* | save:*) _caidctl_lines < <(compgen -f -- "$cur") ;;
        get:-* | put:-*)
            _caidctl_lines < <(printf '%s\n' --pool= --socket= --json --help)
            [[ $verb == put ]] && _caidctl_lines < <(printf '%s\n' --device= --dtype=)
            [[ ${COMPREPLY[*]} == *= ]] && compopt -o nospace 2>/dev/null
            ;;
        get:* | put:*) _caidctl_lines < <(_caidctl_first_column list; compgen -f -- "$cur") ;;
        *:-*)
            _caidctl_lines < <(caidctl --help | sed -nE 's/^  (-., |    )(--[a-z-]+=?).*/\2/p')
            [[ ${COMPREPLY[*]} == *= ]] && compopt -o nospace 2>/dev/null
            ;;
        :*) _caidctl_lines < <(caidctl --help | sed -nE 's/^  ([a-z]+) .*/\1/p') ;;
        list:* | show:* | unlink:* | watch:*) _caidctl_lines < <(_caidctl_first_column list) ;;
        info:*) _caidctl_lines < <(_caidctl_first_column info) ;;
        kick:*) _caidctl_lines < <(_caidctl_pids) ;;
        esac
        ;;
    esac
}

complete -F _caidctl caidctl
