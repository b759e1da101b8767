# shellcheck shell=dash
# Reads what run-tests.sh of a Terminal-Bench 1 task printed, as its own harness does: verdict.sh PARSER FILE.
# Ends with 0 for a pass, 1 for a failure, 2 where the tests did not come to a result. Needs nothing but the shell.
#
# pytest: every line behind the first "short test summary info" that begins with a status counts. There has to be one,
# and none may be FAILED, ERROR or XPASS; of a test that is named twice the last line counts.
# The others: what stands between the first line that announces results and the last one that ends them.

parser=$1
output=$2
escape=$(printf '\033[')
return=$(printf '\r')
newline='
'
summary='[Ss][Hh][Oo][Rr][Tt] [Tt][Ee][Ss][Tt] [Ss][Uu][Mm][Mm][Aa][Rr][Yy] [Ii][Nn][Ff][Oo]'
longest=4000 # characters of a line, and of a block, that are looked at

# Takes blanks and newlines around $text away.
trim() {
    while :; do
        case $text in
            ' '* | '	'* | "$newline"*) text=${text#?} ;;
            *' ' | *'	' | *"$newline") text=${text%?} ;;
            *) break ;;
        esac
    done
}

# Makes $line what a terminal would show of it: without colours.
clean() {
    line=${line%"$return"}
    [ ${#line} -le $longest ] || line=$(printf "%.${longest}s" "$line")
    while :; do
        case $line in
            *"$escape"*m*) ;;
            *) break ;;
        esac
        text=${line#*"$escape"}
        line=${line%%"$escape"*}${text#*m}
    done
}

# Whether $line announces pytest's summary: equals signs around the words.
is_summary() {
    # shellcheck disable=SC2295 # a pattern
    text=${line%%$summary*}
    trim
    case $text in *=) ;; *) return 1 ;; esac
    # shellcheck disable=SC2295 # a pattern
    text=${line#*$summary}
    trim
    case $text in =*) ;; *) return 1 ;; esac
}

# Takes the test in $name from the list of those that failed.
forget() {
    case $failed in
        *"$newline$name$newline"*) failed=${failed%%"$newline$name$newline"*}$newline${failed#*"$newline$name$newline"} ;;
    esac
}

# Notes what a line of the summary says.
read_status() {
    case $line in
        FAILED*' - '*) line=${line% - *} ;;
    esac
    text=$line
    trim
    status=${text%%[ 	]*}
    text=${text#"$status"}
    trim
    name=${text#*::}
    [ -n "$name" ] || return 0
    while :; do
        case $status in
            :*) status=${status#:} ;;
            *:) status=${status%:} ;;
            *) break ;;
        esac
    done
    case $status in
        PASSED | SKIPPED | XFAIL) forget ;;
        FAILED | ERROR | XPASS)
            forget
            failed=$failed$name$newline
            ;;
        *) return 0 ;;
    esac
    found=1
}

read_pytest() {
    begun='' found='' failed=$newline
    while IFS= read -r line || [ -n "$line" ]; do
        if [ -n "$begun" ]; then
            clean
            read_status
            continue
        fi
        case $line in
            *$summary*)
                clean
                ! is_summary || begun=1
                ;;
        esac
    done <"$output"
    if [ -z "$found" ]; then
        echo "verdict: no test is named in a 'short test summary info' of pytest, which is a failure"
        return 1
    fi
    [ "$failed" = "$newline" ]
}

# $1: what announces the results, $2: what ends them, $3: the text between that is a pass.
read_block() {
    begun='' block='' told='' is_told=''
    while IFS= read -r line || [ -n "$line" ]; do
        if [ -z "$begun" ]; then
            case $line in
                *"$1"*) begun=1 line=${line#*"$1"} ;;
                *) continue ;;
            esac
        fi
        clean
        case $line in
            *"$2"*) told=$block${line%"$2"*} is_told=1 ;;
        esac
        block=$block$line$newline
        # So much is no pass in any way.
        [ ${#block} -le $longest ] || block=-
    done <"$output"
    if [ -z "$is_told" ]; then
        echo "verdict: no result between '$1' and '$2'"
        return 2
    fi
    text=$told
    trim
    [ "$text" = "$3" ]
}

case $parser in
    pytest) read_pytest ;;
    swebench) read_block 'SWEBench results starts here' 'SWEBench results ends here' PASSED ;;
    sweperf) read_block 'SWE-Perf results starts here' 'SWE-Perf results ends here' PASSED ;;
    mlebench) read_block 'MLEBench results starts here' 'MLEBench results ends here' 'ALL TESTS PASSED' ;;
    *) exit 2 ;;
esac
