# shellcheck shell=dash
# Runs a task's verifier in its container: the tests are staged and summed up, what keeps them from running is mended,
# test.sh runs, and what it left goes back behind a report. For the tools volume's busybox ash, as root in one go.
#
# The report has a line per fact: kind, tab, value (report.py reads it). Utilities are busybox's own, by its whole path:
# nothing of the image's is run but bash, dpkg and update-ca-certificates. Without trouble it forks about a dozen times.

# What is to be done (script.py says it), taken out of the environment of whatever is started here.
part=$TBENCH_VERIFIER_PART           # whole, examine, prepare, run or collect
stage=$TBENCH_VERIFIER_STAGE         # a directory of our own, where the tests arrive
digest=$TBENCH_VERIFIER_DIGEST       # sha256 of the sorted sums of the tests' files
watched=$TBENCH_VERIFIER_WATCHED     # globs of files that test.sh depends on
workdir=$TBENCH_VERIFIER_WORKDIR
limit_sec=$TBENCH_VERIFIER_LIMIT_SEC # test.sh's
again=$TBENCH_VERIFIER_AGAIN         # not empty: a verifier ran here before
uses_apt=$TBENCH_VERIFIER_USES_APT   # not empty: test.sh mentions apt or dpkg
code=$TBENCH_VERIFIER_CODE           # collect: how test.sh ended
late=$TBENCH_VERIFIER_LATE           # collect: 1 when it reached its limit
unset TBENCH_VERIFIER_PART TBENCH_VERIFIER_STAGE TBENCH_VERIFIER_DIGEST TBENCH_VERIFIER_WATCHED TBENCH_VERIFIER_WORKDIR \
    TBENCH_VERIFIER_LIMIT_SEC TBENCH_VERIFIER_AGAIN TBENCH_VERIFIER_USES_APT TBENCH_VERIFIER_CODE TBENCH_VERIFIER_LATE

busybox=/opt/tbench/bin/busybox
logs=/logs/verifier
exit_not_staged=97
exit_forged=96
newline='
'
tab='	'
report=
is_forged=
sums=

# Adds a fact to the report. A value ends with its line: names of files may hold newlines.
note() {
    report="$report$1$tab${2%%"$newline"*}$newline"
}

# -- staging -------------------------------------------------------------------------------------

# Moves what the agent left at path $1 into our own directory, under the name $2. It is never followed or deleted, and a
# rename within one file system takes no room on it.
set_aside() {
    [ -d "$stage/evidence" ] || $busybox mkdir -p -m 700 "$stage/evidence" || exit $exit_not_staged
    $busybox mv "$1" "$stage/evidence/$2" || exit $exit_not_staged
    note evidence "$1"
    report="$report$($busybox find "$stage/evidence/$2" -mindepth 1 -maxdepth 2 ! -path "*$newline*" |
        $busybox head -n 40 | $busybox sed "s,^$stage/evidence/$2,evidence$tab$1,")$newline"
}

# Puts the tests at /tests and an empty directory at /logs/verifier. The tests arrive as an archive on standard input.
stage_tests() {
    umask 022
    $busybox tar -xf - -C / || exit $exit_not_staged
    # What lies there is our own.
    [ -z "$again" ] || $busybox rm -rf /tests $logs
    if [ -L /logs ] || { [ -e /logs ] && [ ! -d /logs ]; }; then set_aside /logs logs; fi
    $busybox rmdir $logs 2>/dev/null
    if [ -L $logs ] || [ -e $logs ]; then set_aside $logs verifier; fi
    if [ -L /tests ] || [ -e /tests ]; then set_aside /tests tests; fi
    $busybox mkdir -p -m 777 $logs || exit $exit_not_staged
    $busybox mv "$stage/tests" /tests || exit $exit_not_staged
}

# Checks that the tests are what was sent. Where processes are left, a reward lies there as bait, long enough for whoever
# looks a few times a second: whoever rewrites rewards cannot tell it from the verdict.
check_tests() {
    local bait
    sums=$($busybox find /tests ! -type d -exec $busybox sha256sum {} + | $busybox sort)
    if [ "$(printf %s "$sums" | $busybox sha256sum)" != "$digest  -" ]; then
        is_forged=1
        note forged "what lies at /tests is not what was put there"
    elif [ "$left" != 0 ]; then
        echo 0 >$logs/reward.txt
        $busybox sleep 0.4
        set -- $logs/*
        read -r bait <$logs/reward.txt
        if [ "$*:$bait" != "$logs/reward.txt:0" ]; then
            is_forged=1
            note forged "a process that the agent left writes to $logs"
        fi
        $busybox rm -rf $logs/*
    fi
}

# -- mending -------------------------------------------------------------------------------------

# Processes that have one of dpkg's locks open; a file is the same one by whatever name.
lock_holders() {
    local file lock
    for file in /proc/[0-9]*/fd/*; do
        for lock in lib/dpkg/lock-frontend lib/dpkg/lock lib/apt/lists/lock cache/apt/archives/lock; do
            if [ "$file" -ef /var/$lock ]; then file=${file#/proc/}; echo "${file%%/*}"; fi
        done
    done
}

mend_lock() {
    local holders
    holders=$(lock_holders)
    [ -n "$holders" ] || return 0
    # shellcheck disable=SC2086 # a word per process
    kill -TERM $holders 2>/dev/null
    for _ in 1 2 3 4 5 6 7 8 9 10 11 12 13 14 15; do
        holders=$(lock_holders)
        [ -n "$holders" ] || break
        $busybox usleep 200000
    done
    # shellcheck disable=SC2086 # a word per process
    [ -z "$holders" ] || kill -KILL $holders 2>/dev/null
    note repair "dpkg-lock: a process that held it was ended"
}

# By its whole path: busybox has a dpkg of its own.
mend_dpkg() {
    set -- /var/lib/dpkg/updates/[0-9]*
    [ -e "$1" ] || $busybox grep -qsE '^Status: .* (half-installed|unpacked|half-configured|triggers-[a-z]*)$' \
        /var/lib/dpkg/status || return 0
    DEBIAN_FRONTEND=noninteractive $busybox timeout -k 5 120 /usr/bin/dpkg --force-confdef --force-confold \
        --configure -a </dev/null >/dev/null 2>&1
    note repair "dpkg: it was half configured; dpkg --configure -a ended with $?"
}

mend_certificates() {
    if [ -s /etc/ssl/certs/ca-certificates.crt ] || [ ! -x /usr/sbin/update-ca-certificates ]; then return; fi
    $busybox timeout -k 5 40 /usr/sbin/update-ca-certificates </dev/null >/dev/null 2>&1
    note repair "certificates: there were none; update-ca-certificates ended with $?"
}

mend_disk() {
    # shellcheck disable=SC2046 # the fifth word is the share in use
    set -- $($busybox df -P / | $busybox tail -n 1)
    [ "$5" = 100% ] || return 0
    $busybox ls /var/cache/apt/archives/*.deb >/dev/null 2>&1 || return 0
    $busybox rm -f /var/cache/apt/archives/*.deb
    note repair "disk: it was full; apt's downloads were removed"
}

mend() {
    mend_lock
    mend_dpkg
    mend_certificates
    mend_disk
}

# -- examining -----------------------------------------------------------------------------------

# Sets name, state, parent, session and ticks (when it began) from a process's stat file. Forks nothing.
read_stat() {
    local line
    read -r line 2>/dev/null <"$1" || return 1
    name=${line#*\(} name=${name%)*}
    # shellcheck disable=SC2086 # a word per field
    set -- ${line##*) }
    state=$1 parent=$2 session=$4 ticks=${20}
}

# Counts the processes that the agent left: all but ours (one session) and the terminal's own, which are tmux, then what
# starts its shell (a script of ours, run by our busybox), then one shell of that.
count_left() {
    local process words ours terminal='' shells=0
    left=0
    read_stat /proc/self/stat
    ours=$session
    for process in /proc/[0-9]*; do
        [ "$process" = /proc/1 ] || [ ! "$process/exe" -ef /opt/tbench/bin/tmux ] || terminal="$terminal ${process#/proc/} "
    done
    for process in /proc/[0-9]*; do
        [ -n "$terminal" ] || break
        [ "$process/exe" -ef $busybox ] || continue
        read -r words <"$process/cmdline"
        case "$words" in ${busybox}sh/opt/tbench/share/shell*) ;; *) continue ;; esac
        read_stat "$process/stat" || continue
        case "$terminal" in *" $parent "*) terminal="$terminal ${process#/proc/} " ;; esac
    done
    for process in /proc/[0-9]*; do
        read_stat "$process/stat" 2>/dev/null || continue
        if [ "$process" = /proc/1 ] || [ "$session" = "$ours" ] || [ "$state" = Z ]; then continue; fi
        case "$terminal" in *" ${process#/proc/} "*) continue ;; esac
        if [ "$process/exe" -ef $busybox ]; then
            # busybox's timeout watches over a shell of ours from a session of its own, and up to a second longer.
            read -r words <"$process/cmdline"
            case "$words" in ${busybox}timeout-k*) continue ;; esac
        fi
        case "$name$shells$terminal" in
            bash0*" $parent "* | sh0*" $parent "* | busybox0*" $parent "*) shells=1 ;;
            *) left=$((left + 1)) ;;
        esac
    done
    note left $left
}

# Finds what changed in this container, of dpkg's records and what is watched. A change time cannot be set from inside,
# and the container has no power over the clock: newer than its first process means changed in it.
find_changes() {
    local up now
    read_stat /proc/1/stat
    read -r up _ </proc/uptime
    # shellcheck disable=SC3028 # busybox has it
    now=${EPOCHREALTIME%????}
    # In hundredths of a second.
    begun=$((${now%.*}${now#*.} - ${up%.*}${up#*.} + ticks))
    # shellcheck disable=SC2086 # globs
    changed=$($busybox stat -c '%Z %n' /var/lib/dpkg/status $watched 2>/dev/null | while read -r at path; do
        case "$path" in /bin/* | /sbin/*) [ ! -L /bin ] || continue ;; esac
        [ $((at * 100)) -le $begun ] || echo "$path"
    done)
}

# Notes what there is to know of the changed file $2, the suspect number $1.
inspect() {
    local real new=0
    real=$($busybox readlink -f "$2") || return
    [ -f "$real" ] || return
    # shellcheck disable=SC2046 # each sum is followed by a word for standard input
    set -- "$1" "$2" $($busybox stat -c %Z "$real") $($busybox md5sum <"$real") $($busybox sha256sum <"$real")
    [ $(($3 * 100)) -le $begun ] || new=1
    note suspect "$1$tab$2$tab$real$tab$new$tab$4$tab$6"
    [ -d "$stage/suspects" ] || $busybox mkdir -p -m 700 "$stage/suspects"
    $busybox head -c 4096 "$real" >"$stage/suspects/$1"
    report="$report$({
        $busybox grep -hsF "$4  " /var/lib/dpkg/info/*.md5sums
        $busybox grep -hsF " $real $4" /var/lib/dpkg/status
        for where in /usr/lib /usr/local/lib /root/.local/lib; do
            $busybox grep -hsF "${real##*/},sha256=" $where/python3*/*-packages/*.dist-info/RECORD
        done
    } | $busybox head -n 5 | $busybox sed "s/^/known$tab$1$tab/")$newline"
}

inspect_changes() {
    local path number=0
    while read -r path; do
        case "$path" in '' | /var/lib/dpkg/status) continue ;; esac
        number=$((number + 1))
        [ $number -le 40 ] || break
        inspect $number "$path"
    done <<END
$changed
END
}

note_hosts() {
    local line
    while read -r line; do
        case "$line" in
            \#*) ;;
            *astral.sh* | *pypi.org* | *pythonhosted.org* | *github* | *debian.org* | *ubuntu.com*) note hosts "$line" ;;
        esac
    done 2>/dev/null </etc/hosts
}

# -- the parts -----------------------------------------------------------------------------------

examine() {
    count_left
    find_changes
    inspect_changes
    note_hosts
}

prepare() {
    [ -z "$again" ] || mend
    stage_tests
    count_left
    find_changes
    if [ -n "$uses_apt" ] && [ -z "$again" ]; then
        # Nobody can hold its lock where nobody is left, or have left it half configured who did not use it.
        case "$left:$changed" in [!0]* | 0:/var/lib/dpkg/status*) mend ;; esac
    fi
    inspect_changes
    note_hosts
    check_tests
}

# Output goes to a file: a server that test.sh leaves behind would hold a pipe open for ever.
run() {
    local began
    cd "$workdir" 2>/dev/null || {
        $busybox mkdir -p "$workdir"
        cd "$workdir" || :
        note repair "cwd: the working directory was gone and was made again"
    }
    # shellcheck disable=SC3028 # busybox has it
    began=$EPOCHSECONDS
    $busybox timeout -k 5 "$limit_sec" bash /tests/test.sh >$logs/stdout.txt 2>&1 </dev/null
    code=$? late=0
    # shellcheck disable=SC3028 # busybox has it
    [ $code -lt 124 ] || [ $((EPOCHSECONDS - began)) -lt "$limit_sec" ] || late=1
}

# Prints the report, a zero byte and an archive, in which the verdict's files come first: whatever else is there, a limit
# must not cut them off.
collect() {
    local altered='' name IFS="$newline"
    if [ -n "$sums" ] && [ -z "$is_forged" ]; then
        altered=$(printf '%s\n' "$sums" | $busybox sha256sum -c 2>/dev/null | $busybox sed -n 's/: FAILED.*//p' |
            $busybox head -n 20)
    fi
    [ -z "$altered" ] || report="$report$(echo "$altered" | $busybox sed "s/^/changed$tab/")$newline"
    printf 'code\t%s\nlate\t%s\n%send\t\n\0' "$code" "$late" "$report"
    cd / && set --
    for name in reward.json reward.txt ctrf.json; do [ ! -e $logs/$name ] || set -- "$@" ${logs#/}/$name; done
    [ ! -d "$stage/suspects" ] || set -- "$@" "${stage#/}/suspects"
    if [ -d "$stage/evidence" ]; then
        set -f
        # shellcheck disable=SC2046 # a word per line
        set -- "$@" $($busybox find "${stage#/}/evidence" -type f -size -64k | $busybox head -n 20)
        set +f
    fi
    for name in verifier agent artifacts; do [ ! -e /logs/$name ] || set -- "$@" logs/$name; done
    $busybox tar -cf - "$@" 2>/dev/null
}

# Everything else in the container stands still meanwhile: nobody can write a reward after the verifier has ended.
stop_others() {
    kill -STOP -1 2>/dev/null
}

continue_others() {
    kill -CONT -1 2>/dev/null
}

case "$part" in
    whole)
        prepare
        if [ -z "$is_forged" ]; then
            run
            stop_others
        fi
        collect
        continue_others
        ;;
    # Only looks: for a container whose verifier runs in a copy of it.
    examine)
        examine
        collect
        $busybox rm -rf "$stage"
        ;;
    # The rest: root prepares, another user runs the tests, root collects.
    prepare)
        prepare
        printf %s "$report" >"$stage/report" && printf %s "$sums" >"$stage/sums" && $busybox chmod 700 "$stage"
        [ -z "$is_forged" ] || exit $exit_forged
        ;;
    run)
        run
        echo "$code $late"
        ;;
    collect)
        stop_others
        report=$($busybox cat "$stage/report")$newline sums=$($busybox cat "$stage/sums")
        case "$newline$report" in *"${newline}forged$tab"*) is_forged=1 ;; esac
        collect
        continue_others
        ;;
esac
exit 0
