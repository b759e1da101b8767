# shellcheck shell=dash
# Runs a task's verifier in its container: stages the tests and sums their files, repairs damage that prevents them from
# running, runs test.sh, and prints the logs and a report. For the tools volume's busybox ash, as root in two execs: the
# second begins when the first has ended, and stops all other processes.
#
# Each exec prints one message and nothing else, so that output of any other process shows: a random mark, the payload,
# the mark, the report, the mark and the word end. The report has a line per fact: kind, tab, value (report.py parses
# it). Utilities are busybox's, by full path: of the image's programs only bash, dpkg and update-ca-certificates run.

# Parameters (set by verifier.py), removed from the environment of all programs that are started here.
part=$TBENCH_VERIFIER_PART           # whole, prepare, run or collect
stage=$TBENCH_VERIFIER_STAGE         # a new directory that receives the tests
digest=$TBENCH_VERIFIER_DIGEST       # sha256 of the sorted checksums of the tests' files
lines=$TBENCH_VERIFIER_LINES         # numbers of test.sh's lines that write the reward, each between spaces
workdir=$TBENCH_VERIFIER_WORKDIR
limit_sec=$TBENCH_VERIFIER_LIMIT_SEC # time limit of test.sh
again=$TBENCH_VERIFIER_AGAIN         # not empty: a verifier ran here before
uses_apt=$TBENCH_VERIFIER_USES_APT   # not empty: test.sh mentions apt or dpkg
brought=$TBENCH_VERIFIER_BROUGHT     # not empty: the image has the tests, and none are sent
kept=$TBENCH_VERIFIER_KEPT           # folders of /logs that are printed, one per line
began_at=$TBENCH_VERIFIER_BEGAN_AT   # collect: start of test.sh in seconds, if it ran
began_ticks=$TBENCH_VERIFIER_TICKS   # collect: start of test.sh in ticks of the machine's clock, if it ran
still=$TBENCH_VERIFIER_STILL         # not empty: all processes that the agent left stand still while the tests run
look=$TBENCH_VERIFIER_LOOK           # collect: argument of look() (look.sh) if the reward is not 0; empty: none
unset TBENCH_VERIFIER_PART TBENCH_VERIFIER_STAGE TBENCH_VERIFIER_DIGEST TBENCH_VERIFIER_LINES TBENCH_VERIFIER_WORKDIR \
    TBENCH_VERIFIER_LIMIT_SEC TBENCH_VERIFIER_AGAIN TBENCH_VERIFIER_USES_APT TBENCH_VERIFIER_TICKS \
    TBENCH_VERIFIER_BEGAN_AT TBENCH_VERIFIER_BROUGHT TBENCH_VERIFIER_KEPT TBENCH_VERIFIER_STILL TBENCH_VERIFIER_LOOK

busybox=/opt/tbench/bin/busybox
limit=/opt/tbench/bin/limit
running=/opt/tbench/bin/running
witness=/opt/tbench/bin/witness
logs=/logs/verifier
exit_not_staged=97
most_bytes=41943040
look_bytes=16777216
newline='
'
tab='	'
report=
is_forged=
sums=
terminal=
stopped=
mark=

# Adds a fact to the report. A value is cut at its first newline, as file names may contain some.
note() {
    report="$report$1$tab${2%%"$newline"*}$newline"
}

# Prints the first $1 lines, each a fact of kind $2, and the number of further lines.
first() {
    # shellcheck disable=SC2016 # awk's variables
    $busybox awk -v most="$1" -v kind="$2" '
        NR <= most
        END { if (NR > most) print kind "\t(and " NR - most " more)" }'
}

# -- staging -------------------------------------------------------------------------------------

# Moves the file or directory that the agent left at $1 into the stage, under the name $2. It is never followed or
# deleted, and a rename within one file system needs no disk space.
set_aside() {
    [ -d "$stage/evidence" ] || $busybox mkdir -p -m 700 "$stage/evidence" || exit $exit_not_staged
    $busybox mv "$1" "$stage/evidence/$2" || exit $exit_not_staged
    note evidence "$1"
    report="$report$($busybox find "$stage/evidence/$2" -mindepth 1 -maxdepth 2 ! -path "*$newline*" |
        $busybox sed "s,^$stage/evidence/$2,evidence$tab$1," | first 40 evidence)$newline"
}

# Puts the tests at /tests and an empty directory at /logs/verifier. Standard input is an archive of the tests.
stage_tests() {
    umask 022
    if [ -n "$brought" ]; then $busybox mkdir -p "$stage"; else $busybox tar -xf - -C /; fi || exit $exit_not_staged
    # These files are from the earlier run of the verifier.
    [ -z "$again" ] || $busybox rm -rf $logs
    [ -z "$again" ] || [ -n "$brought" ] || $busybox rm -rf /tests
    if [ -L /logs ] || { [ -e /logs ] && [ ! -d /logs ]; }; then set_aside /logs logs; fi
    $busybox rmdir $logs 2>/dev/null
    if [ -L $logs ] || [ -e $logs ]; then set_aside $logs verifier; fi
    $busybox mkdir -p -m 777 $logs || exit $exit_not_staged
    [ -z "$brought" ] || return 0
    if [ -L /tests ] || [ -e /tests ]; then set_aside /tests tests; fi
    $busybox mv "$stage/tests" /tests || exit $exit_not_staged
}

# Prints the sorted checksums of the files at /tests. Only regular files are opened, since opening a pipe would
# block and a device may be endless. Huge sparse files are skipped.
sum_up() {
    $busybox find /tests -type f -size -8388608 -print0 | $busybox xargs -0 -r $busybox sha256sum | $busybox sort
}

# Checks that the tests are the ones that were sent.
check_tests() {
    sums=$(sum_up)
    if [ -z "$brought" ] && [ "$(printf %s "$sums" | $busybox sha256sum)" != "$digest  -" ]; then
        is_forged=1
        note forged "the files in /tests are not the ones that were staged"
    fi
}

# -- repairs -------------------------------------------------------------------------------------

# Prints the processes that have one of dpkg's locks open, under any name.
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

# By full path, because busybox has a dpkg applet.
mend_dpkg() {
    set -- /var/lib/dpkg/updates/[0-9]*
    [ -e "$1" ] || $busybox grep -qsE '^Status: .* (half-installed|unpacked|half-configured|triggers-[a-z]*)$' \
        /var/lib/dpkg/status || return 0
    DEBIAN_FRONTEND=noninteractive $limit 120 /usr/bin/dpkg --force-confdef --force-confold \
        --configure -a </dev/null >/dev/null 2>&1
    note repair "dpkg: it was half configured; dpkg --configure -a ended with $?"
}

mend_certificates() {
    if [ -s /etc/ssl/certs/ca-certificates.crt ] || [ ! -x /usr/sbin/update-ca-certificates ]; then return; fi
    $limit 40 /usr/sbin/update-ca-certificates </dev/null >/dev/null 2>&1
    note repair "certificates: they were missing; update-ca-certificates ended with $?"
}

mend_disk() {
    # shellcheck disable=SC2046 # the fifth word is the share in use
    set -- $($busybox df -P / | $busybox tail -n 1)
    [ "$5" = 100% ] || return 0
    $busybox ls /var/cache/apt/archives/*.deb >/dev/null 2>&1 || return 0
    $busybox rm -f /var/cache/apt/archives/*.deb
    note repair "disk: it was full; apt's downloads were removed"
}

# Restores the standard entries of /dev: that file system is not compared, and bash opens files there by name.
mend_devices() {
    local name target known
    for name in fd stdin/0 stdout/1 stderr/2; do
        target=/proc/self/fd${name#"${name%/*}"}
        name=/dev/${name%/*}
        if [ -L "$name" ] && [ "$name" -ef "$target" ]; then continue; fi
        $busybox rm -rf "$name" && $busybox ln -s "$target" "$name" && note repair "device: $name was not as in a new container"
    done
    known=$($busybox stat -c '%n %F 0x%t 0x%T' /dev/null /dev/zero /dev/full /dev/random /dev/urandom)
    for name in null:3 zero:5 full:7 random:8 urandom:9; do
        case "$known" in *"/dev/${name%:*} character special file 0x1 0x${name#*:}"*) continue ;; esac
        $busybox rm -rf "/dev/${name%:*}" && $busybox mknod -m 666 "/dev/${name%:*}" c 1 "${name#*:}" &&
            note repair "device: /dev/${name%:*} was not as in a new container"
    done
}

mend() {
    mend_lock
    mend_dpkg
    mend_certificates
    mend_disk
}

# -- examining -----------------------------------------------------------------------------------

# Sets name, state, parent, session and ticks (start time) from a process's stat file, without a fork. A process whose
# first thread has ended is alive as long as it has other threads.
read_stat() {
    local line
    read -r line 2>/dev/null <"$1" || return 1
    name=${line#*\(} name=${name%)*}
    # shellcheck disable=SC2086 # a word per field
    set -- ${line##*) }
    state=$1 parent=$2 session=$4 ticks=${20}
    [ "$state" != Z ] || [ "${18}" -le 1 ] || state=S
}

# Counts the processes that the agent left: all but this script's session and the terminal's own. Those are tmux, the
# wrapper that starts its shell (share/shell, run by tbench's busybox; one per task step), and the wrapper's shells.
# They are stopped because a shell can wait for the tests and tmux can run commands, in this order because each would
# restart the next (the wrapper takes a stopped shell for lost).
count_left() {
    local process words ours wrappers=' '
    left=0
    read_stat /proc/self/stat
    ours=$session
    for process in $($running /opt/tbench/bin/tmux); do
        [ "$process" = 1 ] || terminal="$terminal $process "
    done
    for process in ${terminal:+$($running $busybox)}; do
        process=/proc/$process
        read -r words 2>/dev/null <"$process/cmdline"
        case "$words" in ${busybox}sh/opt/tbench/share/shell*) ;; *) continue ;; esac
        read_stat "$process/stat" || continue
        case "$terminal" in
            *" $parent "*) terminal="$terminal ${process#/proc/} " wrappers="$wrappers${process#/proc/} " ;;
        esac
    done
    for process in /proc/[0-9]*; do
        read_stat "$process/stat" 2>/dev/null || continue
        if [ "$process" = /proc/1 ] || [ "$session" = "$ours" ] || [ "$state" = Z ]; then continue; fi
        case "$terminal" in *" ${process#/proc/} "*) continue ;; esac
        [ "$state" != T ] || stopped="$stopped ${process#/proc/}"
        case "$name:$wrappers" in
            bash:*" $parent "* | sh:*" $parent "* | busybox:*" $parent "*) terminal="$terminal ${process#/proc/} " ;;
            *) left=$((left + 1)) ;;
        esac
    done
    # shellcheck disable=SC2086 # a word per process
    [ -z "$terminal" ] || kill -STOP $terminal 2>/dev/null
    note left $left
}

# Sets begun to the start of this container by its clock, less a second, as change times are whole seconds here.
read_begin() {
    local up now
    read_stat /proc/1/stat
    read -r up _ </proc/uptime
    # shellcheck disable=SC3028 # busybox has it
    now=${EPOCHREALTIME%????}
    # Hundredths of a second.
    begun=$(((${now%.*}${now#*.} - ${up%.*}${up#*.} + ticks) / 100 - 1))
}

# Notes how many processes of this container the kernel has killed because its limit or the machine's memory ran out.
note_killed() {
    local file name number
    for file in /sys/fs/cgroup/memory.events /sys/fs/cgroup/memory/memory.oom_control; do
        [ -r "$file" ] || continue
        while read -r name number; do [ "$name" != oom_kill ] || note killed "$number"; done <"$file"
    done
}

# Counts the processes that started during the tests and still run, besides this script's session, and kills them unless
# their parent is older than the tests: an older server keeps its new workers.
end_outlived() {
    local process ours outlived=0 ended=''
    read_stat /proc/self/stat
    ours=$session
    for process in /proc/[0-9]*; do
        read_stat "$process/stat" 2>/dev/null || continue
        if [ "$state" = Z ] || [ "$ticks" -lt "$began_ticks" ] || [ "$session" = "$ours" ]; then continue; fi
        outlived=$((outlived + 1))
        if [ "$parent" -gt 1 ] && read_stat "/proc/$parent/stat" 2>/dev/null && [ "$ticks" -lt "$began_ticks" ]; then
            continue
        fi
        ended="$ended ${process#/proc/}"
    done
    # shellcheck disable=SC2086 # a word per process
    [ -z "$ended" ] || kill -KILL $ended 2>/dev/null
    note outlived $outlived
}

# -- the parts -----------------------------------------------------------------------------------

# Kills an earlier run of the tests whose runner is gone, with the processes that it has started, and continues those
# that it had stopped.
end_cut() {
    local process ours sessions=' ' ended='' began=''
    read_stat /proc/self/stat
    ours=$session
    for process in $($running $witness); do
        read_stat "/proc/$process/stat" || continue
        sessions="$sessions$session "
        if [ -z "$began" ] || [ "$ticks" -lt "$began" ]; then began=$ticks; fi
    done
    for process in ${began:+/proc/[0-9]*}; do
        read_stat "$process/stat" 2>/dev/null || continue
        if [ "$session" = "$ours" ] || [ "$process" = /proc/1 ]; then continue; fi
        case "$sessions" in *" $session "*) ended="$ended ${process#/proc/}" && continue ;; esac
        [ "$ticks" -ge "$began" ] || continue
        # A server that is older than the tests keeps its new workers.
        if [ "$parent" -gt 1 ] && read_stat "/proc/$parent/stat" 2>/dev/null && [ "$ticks" -lt "$began" ]; then
            continue
        fi
        ended="$ended ${process#/proc/}"
    done
    # shellcheck disable=SC2086 # a word per process
    [ -z "$ended" ] || kill -KILL $ended 2>/dev/null
    [ -z "$ended" ] || note repair "tests: an earlier run of the tests was ended"
    kill -CONT -1 2>/dev/null
}

prepare() {
    [ -z "$again" ] || end_cut
    mend_devices
    [ -z "$again" ] || mend
    # Counted now, because a process that waits for the tests exists before they are staged.
    count_left
    [ -z "$still" ] || stop_others
    # shellcheck disable=SC3028 # busybox has it
    note staged_at "$EPOCHREALTIME"
    stage_tests
    if [ -n "$uses_apt" ] && [ -z "$again" ]; then
        # Without leftover processes and changes to dpkg's status, its lock is free and it is fully configured.
        read_begin
        if [ "$left" != 0 ] || [ "$($busybox stat -c %Z /var/lib/dpkg/status 2>/dev/null || echo 0)" -ge $begun ]; then
            mend
        fi
    fi
    check_tests
    note_killed
}

# Begin and end a message; the payload is printed between them.
begin_message() {
    read -r mark </proc/sys/kernel/random/uuid
    printf '%s\n' "$mark"
}

end_message() {
    printf '%s\n%s%s end\n' "$mark" "$report" "$mark"
}

tell_sums() {
    begin_message
    printf '%s\n' "$sums"
    end_message
}

# Replaces this shell by the witness, which runs test.sh, reads bash's trace, ends this message with its facts, and
# stops all other processes. So no process can pose as test.sh's parent or change earlier facts once the others
# continue. The output of test.sh goes to a file: a server that it leaves behind would hold a pipe open for ever.
run() {
    cd "$workdir" 2>/dev/null || {
        $busybox mkdir -p "$workdir"
        cd "$workdir" || :
        note repair "cwd: the working directory was gone and was made again"
    }
    read -r mark </proc/sys/kernel/random/uuid
    export TBENCH_BASH_ENV="${BASH_ENV-}" BASH_ENV=/opt/tbench/share/witness
    exec $witness "$limit_sec" "$lines" $logs/stdout.txt "$1" bash /tests/test.sh <<END
$mark
$sums
$mark
$report
END
}

# Notes a reward file that is not a regular file with a single name, and files of the tests that changed or are new.
note_oddities() {
    local name kind now IFS="$newline"
    if [ -L /logs ] || [ -L $logs ] || [ ! -d $logs ]; then
        note odd "$logs is no longer a directory of its own"
        return
    fi
    for name in reward.json reward.txt; do
        if [ ! -e $logs/$name ] && [ ! -L $logs/$name ]; then continue; fi
        kind=$($busybox stat -c '%h %F' $logs/$name)
        case "$kind" in
            "1 regular "*) ;;
            *" regular "*) note odd "$logs/$name is a file with a second name" ;;
            *) note odd "$logs/$name is a ${kind#* }" ;;
        esac
        break
    done
    # Without a newer change time, nothing in /tests has changed: no program in the container can set these times.
    if [ -n "$began_at" ] && [ -d /tests ] && [ ! -L /tests ] &&
        ! /opt/tbench/bin/changed -a "$began_at" inf 0 /tests | $busybox grep -zq '^[12m]'; then return; fi
    sums=$($busybox cat)
    [ -n "$sums" ] || return
    # Files that are written and then restored have the same checksums, but a newer change time.
    [ -z "$began_at" ] || report="$report$({
        printf '%s\n' "$sums" | $busybox sed 's/^[^/]*//'
        /opt/tbench/bin/changed "$began_at" /tests | $busybox grep -v /__pycache__/
    } | $busybox sort | $busybox uniq -d | $busybox sed "s/^/touched$tab/" | first 20 touched)$newline"
    # Python itself updates bytecode.
    sums=$(printf '%s\n' "$sums" | $busybox grep -v /__pycache__/)
    now=$(sum_up | $busybox grep -v /__pycache__/)
    [ "$now" != "$sums" ] || return
    # Checksums that are gone or changed: those of unchanged and new files occur at least twice here.
    report="$report$({ printf '%s\n' "$sums"; printf '%s\n%s\n' "$now" "$now"; } | $busybox sort | $busybox uniq -u |
        $busybox sed -n "s,^[^/]*/,changed$tab/,p" | first 20 changed)$newline"
    report="$report$({
        printf '%s\n' "$sums" | $busybox sed '/__pycache__/d;s/^[^/]*//'
        $busybox find /tests ! -type d ! -path '*/__pycache__*'
    } | $busybox sort | $busybox uniq -u | $busybox sed -n "s,^/tests/,new$tab&,p" |
        $busybox grep -E '\.(py|pyc|so|pth|sh|bash|ini|cfg|toml|js|mjs|rb|pl|pm)$' | first 20 new)$newline"
}

# Prints the mark and an inspection of the container, if one is wanted and the reward is not 0.
tell_look() {
    local reward=
    # shellcheck disable=SC3045 # busybox has it
    [ ! -f $logs/reward.txt ] || read -r -n 8 reward <$logs/reward.txt
    if [ -z "$look" ] || [ "$reward" = 0 ]; then return; fi
    printf '%s\n' "$mark"
    { look "$look" && printf '\0end'; } | $busybox head -c "$look_bytes"
}

# Prints an archive and the report. The verdict's files come first, so that the size limit never cuts them off.
tell_logs() {
    local name
    begin_message
    cd / && set --
    for name in reward.json reward.txt ctrf.json; do [ ! -e $logs/$name ] || set -- "$@" ${logs#/}/$name; done
    if [ -d "$stage/evidence" ]; then
        set -f
        local IFS="$newline"
        # shellcheck disable=SC2046 # a word per line
        set -- "$@" $($busybox find "${stage#/}/evidence" -type f -size -64k | $busybox head -n 20)
        set +f
    fi
    for name in $kept; do [ ! -e /logs/"$name" ] || set -- "$@" logs/"$name"; done
    $busybox tar -cf - "$@" 2>/dev/null | $busybox head -c "$most_bytes"
    tell_look
    end_message
}

case "$part" in
    whole)
        prepare
        if [ -n "$is_forged" ]; then
            tell_sums
            exit 0
        fi
        stop_others
        [ -z "$still" ] || stopped=$(cd /proc && echo [0-9]*)
        run " $terminal $stopped "
        ;;
    # If the tests run as another user, root prepares.
    prepare)
        prepare
        $busybox chmod 700 "$stage"
        tell_sums
        ;;
    run) run "" ;;
    collect)
        stop_others
        [ -z "$began_ticks" ] || end_outlived
        note_killed
        note peak "$(memory_peak)"
        note_oddities
        tell_logs
        kill -CONT -1 2>/dev/null
        ;;
esac
exit 0
