# Runs a delivered command in the terminal's shell, whichever that is, and says with marks (OSC 133) where its output
# begins (C) and ends (D, with the exit code). The prompt's hook evaluates it, or it is sourced. In front stand
#   __tbench_code __tbench_options  what $? and $- were
#   __tbench_at     this script's own path; the command's text lies at PATH.text
#   __tbench_id     a number that the marks carry
#   __tbench_shown  what the screen shows of the command
#   __tbench_do     builtin or, where the shell is not bash, command: what is run by it is no function of the agent's, and
#                   no alias. Not so `exec`, whose redirections would end with it, and `eval` where the shell is not
#                   bash: by `command`, an error in the text would not end it
#   __tbench_how    line (as `bash -c` reads it: line by line), tried (that too, if it is finished), whole (at once) or
#                   fresh (in a process of its own); below it may become pieces (of several lines each, where it cannot be
#                   read at once) or plain (where the shell is not bash, or too few descriptors are allowed)
# All is one group, read before it runs: an unfinished text spoils what bash reads after it. Nothing here may fail or
# print, so allexport, errexit, xtrace and verbose are off, and on again for the text; and what fails is no news for a
# trap of ERR (`|| :`).
#
# For shellcheck: variables are set in front, or by the command before (SC2154). Single quotes are for eval (SC2016), or
# hold the backslash that ends a mark (SC1003). A redirection alone empties a file (SC2188). Sourced files lie in the
# container (SC1090, SC1091). Only bash comes to $(<file) and {name}>& (SC3034, SC3022).
# shellcheck shell=dash disable=SC1003,SC1090,SC1091,SC2016,SC2154,SC2188,SC3022,SC3034
{
    # Sourced, as the prompt's hook is gone, this has put itself into its place for once.
    case ${__tbench_hooked-},${__tbench_hook-} in
        1,x*) PROMPT_COMMAND=${__tbench_hook#x} ;;
        1,) "$__tbench_do" unset 'PROMPT_COMMAND[0]' ;;
    esac
    "$__tbench_do" unset __tbench_hooked __tbench_hook
    # Whoever is cut off finds in a file what became of it: its number, then its exit code. Under a limit on files, see
    # below, nothing.
    case ${__tbench_limit-unlimited unlimited} in *unlimited*unlimited*) "$__tbench_do" printf '%s\n' "$__tbench_id" 2>/dev/null >|"$__tbench_at.state" ;; esac
    __tbench_note=
    # Emptied first: it runs once, however often it is asked for. Where it cannot be, or nobody be told, not at all.
    >|"$__tbench_at" &&
        "$__tbench_do" printf '\033]133;S;aid=tbench\033\\\r\033[A\033[K$ %s\n\033]133;C;aid=tbench;id=%s\033\\' "$__tbench_shown" "$__tbench_id" >/dev/tty
} && {
    # After the hook, $? is what it was before; so after another delivered command it is that one's own code.
    case $__tbench_code in "${__tbench_seen-}") __tbench_code=${__tbench_last:-$__tbench_code} ;; esac
    __tbench_seen=${__tbench_status-0} __tbench_last=
    # TMOUT is there for the text only: between commands the shell would end itself, and in those that the hook runs.
    case ${__tbench_tmout-} in
        '') ;;
        readonly) "$__tbench_do" trap : ALRM ;;
        *) "$__tbench_do" printf -v TMOUT %s "$__tbench_tmout" ;;
    esac
    __tbench_tmout=
    __tbench_set=
    case $__tbench_options in *x*) __tbench_set='set -x;' ;; esac
    case $__tbench_options in *v*) __tbench_set="${__tbench_set}set -v;" ;; esac
    # Every byte of the text, its last newlines too.
    case $__tbench_how in
        fresh) ;;
        *) { "$__tbench_do" mapfile -d '' __tbench_text <"$__tbench_at.text"; } 2>/dev/null || {
            __tbench_text=$(/opt/tbench/bin/busybox cat "$__tbench_at.text"; "$__tbench_do" printf .)
            __tbench_text=${__tbench_text%.}
        } ;;
    esac
    # Where a variable is missing (${x:?}, set -u), `bash -c` ends; an interactive bash would go on with the next line.
    # Read at once, all the text is one line; if it can be read so. Tried in a copy of the shell, as a substitution that is
    # not closed leaves bash 5.2 with broken memory. And tried between brackets of two kinds: no text is taken for whole
    # because it closes one and opens it again.
    case $__tbench_how,$__tbench_options in line,*u* | tried,*u*) __tbench_how=whole ;; esac
    case $__tbench_how,$__tbench_do in
        tried,builtin | whole,builtin)
            ( "$__tbench_do" eval "__tbench_whole() { ( $__tbench_text
) }" && "$__tbench_do" eval "__tbench_whole() { { $__tbench_text
} }" ) 2>/dev/null || __tbench_how=pieces,$__tbench_how
            case $__tbench_how in
                tried) __tbench_how=line ;;
                pieces,tried) __tbench_how=pieces __tbench_piece=line ;;
                pieces,whole) __tbench_how=pieces __tbench_piece=whole ;;
            esac ;;
        line,builtin | fresh,*) ;;
        *) __tbench_how=plain ;;
    esac
    # Where `exec 2>file` has sent the text's errors.
    case ${__tbench_stderr-} in
        '') ;;
        -) exec 2>&- ;;
        *) exec 2>&"$__tbench_stderr"- ;;
    esac
    __tbench_stderr=
    # Whose parents had ended before.
    IFS= "$__tbench_do" read -r __tbench_before 2>/dev/null </proc/1/task/1/children || "$__tbench_do" :
    # 40: bash keeps the terminal above the descriptor that it copies, so that a text may have its own 10; if it may.
    # Quoted, as other shells cannot read such a number.
    case $__tbench_how in line | whole | pieces) { "$__tbench_do" eval '"$__tbench_do" true 40</dev/null'; } 2>/dev/null || __tbench_how=plain __tbench_note=limited ;; esac
    case $__tbench_options in
        *a*) case $__tbench_do in builtin) "$__tbench_do" export -n __tbench_code __tbench_options __tbench_do ;; esac
            "$__tbench_do" set -a ;;
    esac
    case $__tbench_options in *e*) "$__tbench_do" set -e ;; esac
    # LINENO=1: the text's first line is line 1. `exit`: its code is what the text finds in $?.
    case $__tbench_how,$__tbench_code in
        fresh,*) /opt/tbench/bin/alone "$__tbench_at.text" ;;
        line,0)
            "$__tbench_do" eval '"$__tbench_do" eval -- "${__tbench_set:$((LINENO=1,0))}$__tbench_text" 40</dev/null <&40' ;;
        line,*)
            "$__tbench_do" eval '"$__tbench_do" eval -- "${__tbench_set:$((LINENO=1,0))}$__tbench_text$("$__tbench_do" exit "$__tbench_code")" 40</dev/null <&40' ;;
        whole,*) __tbench_end=127
            "$__tbench_do" eval '"$__tbench_do" eval "${__tbench_set:$((LINENO=1,0))}{ $__tbench_text
}; { __tbench_end=\$?; } 2>/dev/null$("$__tbench_do" exit "$__tbench_code")" 40</dev/null <&40' ;;
        pieces,*) __tbench_line=0
            "$__tbench_do" mapfile -d '' __tbench_pieces </opt/tbench/share/in-pieces
            "$__tbench_do" eval "$__tbench_pieces" ;;
        plain,*) \eval "$__tbench_set$__tbench_text$("$__tbench_do" exit "$__tbench_code")" </dev/null ;;
    esac
    { __tbench_last=$? __tbench_options=$-; "$__tbench_do" set +axve; } 2>/dev/null
    case $__tbench_do in builtin) "$__tbench_do" export -n __tbench_last __tbench_options __tbench_end ;; esac
    case $__tbench_how in
        whole) __tbench_last=$__tbench_end ;;
        pieces) __tbench_last=$__tbench_code __tbench_options=$__tbench_kept ;;
    esac
    # What a signal ended is told of at the next prompt, or when a sourced file has run something.
    case $__tbench_last in 129 | 1[345]?) . /opt/tbench/share/tell-of-signals ;; esac
    # Process substitutions are not waited for by bash, and may have something to print yet.
    case $__tbench_do in builtin)
        IFS= "$__tbench_do" read -r __tbench_set </proc/$$/task/$$/children || "$__tbench_do" :
        IFS= "$__tbench_do" read -r __tbench_now </proc/1/task/1/children || "$__tbench_do" :
        case $__tbench_set,$__tbench_now in ",$__tbench_before") ;; *) . /opt/tbench/share/await-substitutions ;; esac
    esac 2>/dev/null
    # The prompt is drawn where errors go, and is nothing for the text's files.
    case $__tbench_do in builtin)
        "$__tbench_do" [ -t 2 ] || {
            if "$__tbench_do" true >&2; then exec {__tbench_stderr}>&2; else __tbench_stderr=-; fi
            exec 2>/dev/tty
        }
    esac
    # What a shell that takes this one's place begins with. Under a limit on files (ulimit -f), writing beyond it would end
    # this shell: then whoever reads the mark has tmux write.
    { "$__tbench_do" read -r __tbench_limit; "$__tbench_do" read -r __tbench_limit; "$__tbench_do" read -r __tbench_limit; } 2>/dev/null </proc/$$/limits
    case ${__tbench_limit-unlimited unlimited} in
        *unlimited*unlimited*)
            "$__tbench_do" export -p >|"$__tbench_at.exports"; "$__tbench_do" printf '%s\n' "$PWD" >|"$__tbench_at.directory"
            "$__tbench_do" printf '%s %s\n' "$__tbench_id" "$__tbench_last" >|"$__tbench_at.state" ;;
        *)
            "$__tbench_do" export -p | /opt/tbench/bin/tmux -S "${__tbench_at%.command}" load-buffer -b exports - \; set-buffer -b directory -- "$PWD"
            __tbench_note=${__tbench_note}_unsaved ;;
    esac 2>/dev/null
    case $__tbench_do,${TMOUT-} in builtin,?*)
        __tbench_tmout=$TMOUT
        "$__tbench_do" printf -v TMOUT %s '' || __tbench_tmout='readonly' ;;
    esac 2>/dev/null
    "$__tbench_do" printf '\033]133;D;%s;aid=tbench;id=%s%s\033\\' "$__tbench_last" "$__tbench_id" "${__tbench_note:+;note=$__tbench_note}" >/dev/tty ||
        "$__tbench_do" printf '\033]133;D;%s;aid=tbench;id=%s;note=limited\033\\' "$__tbench_last" "$__tbench_id"
    "$__tbench_do" unset __tbench_x __tbench_text __tbench_before __tbench_now __tbench_at __tbench_id __tbench_shown __tbench_how __tbench_set __tbench_code __tbench_status \
        __tbench_end __tbench_note __tbench_pieces __tbench_piece __tbench_line __tbench_lines __tbench_tries __tbench_found __tbench_first __tbench_step __tbench_halved __tbench_kept
    case $__tbench_options in *a*) "$__tbench_do" set -a ;; esac
    case $__tbench_options in *v*) "$__tbench_do" set -v ;; esac
    case $__tbench_options in *e*) "$__tbench_do" set -e ;; esac
    { case $__tbench_options in *x*) "$__tbench_do" set -x ;; esac; } 2>/dev/null
}
