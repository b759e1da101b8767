# shellcheck shell=dash
# Tells what lies at paths, for the tools volume's busybox ash as root. On standard input a line per path: what is wanted
# of it (s: its sum, c: its content too, g: whether it holds words of the pattern, or too much), tab, path.
# Prints modes, sums, the files with such words, those of 4 GB or more, links that lead to tests, to processes
# or nowhere, the most memory that was in use, and archives: of the contents, and of what the agent has written below
# /logs. A zero byte is between.
pattern=$TBENCH_LOOK_PATTERN
alone=$TBENCH_LOOK_ALONE   # not empty: nobody else in the container may move meanwhile
unset TBENCH_LOOK_PATTERN TBENCH_LOOK_ALONE
busybox=/opt/tbench/bin/busybox
logs_bytes=33554432
tab='	'
[ -z "$alone" ] || { kill -STOP -1; kill -CONT $PPID; } 2>/dev/null
list=/opt/tbench/run/look-$$
$busybox cat >$list
cd / || exit 1

# Paths of the list of the kinds $1, each with a zero byte behind it.
paths() {
    $busybox sed -n "s/^[$1]$tab//p" $list | $busybox tr '\n' '\0'
}

# Those of them that are files, or lead to one, of less than $1 blocks of 512 bytes.
files() {
    # shellcheck disable=SC2016 # the inner shell's
    $busybox xargs -0 $busybox sh -c 'exec /opt/tbench/bin/busybox find -L "$@" -maxdepth 0 -type f -size "-$0" -print0' "$1"
}

paths sc | $busybox xargs -0 $busybox stat -c '%f %n' 2>/dev/null
printf '\0'
paths sc | files 1000000 2>/dev/null | $busybox xargs -0 $busybox sha256sum 2>/dev/null
printf '\0'
[ -z "$pattern" ] || paths g | files 2048 2>/dev/null | $busybox xargs -0 $busybox grep -lsE "$pattern"
printf '\0'
# shellcheck disable=SC2016 # the inner shell's
paths g | $busybox xargs -0 $busybox sh -c 'exec /opt/tbench/bin/busybox find "$@" -maxdepth 0 -type f -size +8388607' - 2>/dev/null
printf '\0'
# shellcheck disable=SC2016 # the inner shell's
paths g | $busybox xargs -0 $busybox sh -c 'exec /opt/tbench/bin/busybox find "$@" -maxdepth 0 -type l' - 2>/dev/null |
    while read -r link; do
        case "$($busybox readlink -f "$link")/" in
            /tests/* | /logs/* | /solution/* | /proc/* | /) printf '%s\n' "$link" ;;
        esac
    done
printf '\0'
$busybox cat /sys/fs/cgroup/memory.peak /sys/fs/cgroup/memory/memory.max_usage_in_bytes 2>/dev/null
printf '\0'
paths c | files 512 2>/dev/null | $busybox xargs -0 $busybox tar -chf - 2>/dev/null
[ -z "$alone" ] || [ ! -d /logs ] || $busybox find /logs/agent /logs/artifacts -type f -size -8388608 -print0 2>/dev/null |
    $busybox xargs -0 -r $busybox tar -cf - 2>/dev/null | $busybox head -c $logs_bytes
$busybox rm -f $list
[ -z "$alone" ] || kill -CONT -1 2>/dev/null
exit 0
