# Runs a delivered command in the terminal's shell, whichever that is, and marks (OSC 133) the beginning (C) and the end
# (D, with the exit code) of its output. The prompt's hook evaluates it, or it is sourced. It expects these variables:
#   __tbench_code __tbench_options  the values of $? and $-
#   __tbench_at     this script's path; the command's text is in PATH.text
#   __tbench_id     a number for the marks
#   __tbench_shown  the part of the command that the screen shows
#   __tbench_do     builtin or, if the shell is not bash, command: it bypasses functions and aliases of the agent. Not
#                   used for `exec`, whose redirections would end with it, nor for `eval` if the shell is not bash: with
#                   `command`, an error in the text would not end it
#   __tbench_how    line (read line by line as by `bash -c`), tried (the same, if the text is complete), whole (read at
#                   once) or fresh (in its own process); below it may become pieces (several lines each, if it cannot be
#                   read at once) or plain (if the shell is not bash, or too few descriptors are allowed)
# Everything is one group, read before it runs: an unfinished text spoils what bash reads after it. Nothing here may fail
# or print, so allexport, errexit, xtrace and verbose are off except for the text; `|| :` hides failures from an ERR trap.
#
# For shellcheck: variables are set in front, or by the previous command (SC2154). Single quotes are for eval (SC2016),
# or hold the backslash that ends a mark (SC1003). A bare redirection empties a file (SC2188). Sourced files are in the
# container (SC1090, SC1091). Only bash reaches $(<file) and {name}>& (SC3034, SC3022).
# shellcheck shell=dash disable=SC1003,SC1090,SC1091,SC2016,SC2154,SC2188,SC3022,SC3034
{
    # If it was sourced, this script has replaced the prompt's hook for one prompt: restore the hook.
    case ${__tbench_hooked-},${__tbench_hook-} in
        1,x*) PROMPT_COMMAND=${__tbench_hook#x} ;;
        1,) "$__tbench_do" unset 'PROMPT_COMMAND[0]' ;;
    esac
    "$__tbench_do" unset __tbench_hooked __tbench_hook
    # A reader that was disconnected finds the command's state in a file: its number, then its exit code. Not with a
    # file size limit, see below.
    case ${__tbench_limit-unlimited unlimited} in *unlimited*unlimited*) "$__tbench_do" printf '%s\n' "$__tbench_id" 2>/dev/null >|"$__tbench_at.state" ;; esac
    __tbench_note=
    # Emptied first, so that it runs only once, however often it is requested. If that or the mark fails, not at all.
    >|"$__tbench_at" &&
        "$__tbench_do" printf '\033]133;S;aid=tbench\033\\\r\033[A\033[K$ %s\n\033]133;C;aid=tbench;id=%s\033\\' "$__tbench_shown" "$__tbench_id" >/dev/tty
} && {
    # The hook preserves $?, so after another delivered command it is that command's exit code.
    case $__tbench_code in "${__tbench_seen-}") __tbench_code=${__tbench_last:-$__tbench_code} ;; esac
    __tbench_seen=${__tbench_status-0} __tbench_last=
    # TMOUT is only set for the text: otherwise the shell would exit between commands, or while the hook runs.
    case ${__tbench_tmout-} in
        '') ;;
        readonly) "$__tbench_do" trap : ALRM ;;
        *) "$__tbench_do" printf -v TMOUT %s "$__tbench_tmout" ;;
    esac
    __tbench_tmout=
    __tbench_set=
    case $__tbench_options in *x*) __tbench_set='set -x;' ;; esac
    case $__tbench_options in *v*) __tbench_set="${__tbench_set}set -v;" ;; esac
    # Read every byte of the text, including trailing newlines.
    case $__tbench_how in
        fresh) ;;
        *) { "$__tbench_do" mapfile -d '' __tbench_text <"$__tbench_at.text"; } 2>/dev/null || {
            __tbench_text=$(/opt/tbench/bin/busybox cat "$__tbench_at.text"; "$__tbench_do" printf .)
            __tbench_text=${__tbench_text%.}
        } ;;
    esac
    # If a variable is missing (${x:?}, set -u), `bash -c` exits, but an interactive bash continues with the next line:
    # so the text is read at once, as one line, if that is possible. It is tried in a subshell, as an unclosed
    # substitution corrupts bash 5.2's memory, and between two kinds of brackets, so that a text which closes one and
    # opens it again is not taken for complete.
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
    # Restore stderr as redirected by an earlier text (`exec 2>file`).
    case ${__tbench_stderr-} in
        '') ;;
        -) exec 2>&- ;;
        *) exec 2>&"$__tbench_stderr"- ;;
    esac
    __tbench_stderr=
    # Orphaned processes before the command.
    IFS= "$__tbench_do" read -r __tbench_before 2>/dev/null </proc/1/task/1/children || "$__tbench_do" :
    # 40: bash saves the terminal above the copied descriptor, which leaves 10 to the text, if limits permit. Quoted, as
    # other shells cannot parse such a number.
    case $__tbench_how in line | whole | pieces) { "$__tbench_do" eval '"$__tbench_do" true 40</dev/null'; } 2>/dev/null || __tbench_how=plain __tbench_note=limited ;; esac
    case $__tbench_options in
        *a*) case $__tbench_do in builtin) "$__tbench_do" export -n __tbench_code __tbench_options __tbench_do ;; esac
            "$__tbench_do" set -a ;;
    esac
    case $__tbench_options in *e*) "$__tbench_do" set -e ;; esac
    # LINENO=1: the text's first line is line 1. `exit` sets the $? that the text sees.
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
    # bash reports a process ended by a signal at the next prompt, or after a sourced file has run something.
    case $__tbench_last in 129 | 1[345]?) . /opt/tbench/share/tell-of-signals ;; esac
    # bash does not wait for process substitutions, which may still print.
    case $__tbench_do in builtin)
        IFS= "$__tbench_do" read -r __tbench_set </proc/$$/task/$$/children || "$__tbench_do" :
        IFS= "$__tbench_do" read -r __tbench_now </proc/1/task/1/children || "$__tbench_do" :
        case $__tbench_set,$__tbench_now in ",$__tbench_before") ;; *) . /opt/tbench/share/await-substitutions ;; esac
    esac 2>/dev/null
    # The prompt is drawn on stderr, and must not go to the text's files.
    case $__tbench_do in builtin)
        "$__tbench_do" [ -t 2 ] || {
            if "$__tbench_do" true >&2; then exec {__tbench_stderr}>&2; else __tbench_stderr=-; fi
            exec 2>/dev/tty
        }
    esac
    # Save the state for a replacement shell. With a file size limit (ulimit -f), exceeding it would end this shell: then
    # tmux writes the files when the mark is read.
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
