# shellcheck shell=dash
# Tells of paths what a comparison of two containers needs, for the tools volume's busybox ash as root. On standard input
# a path per line. Prints for each that is there its mode, when its status changed and its name, with the target of a
# link; then the sums of files; a zero byte between.
busybox=/opt/tbench/bin/busybox
list=/opt/tbench/run/installed-$$
{ kill -STOP -1; kill -CONT $PPID; } 2>/dev/null
$busybox tr '\n' '\0' >$list
cd / || exit 1
$busybox xargs -0 -r $busybox stat -c '%f %z %N' <$list 2>/dev/null
printf '\0'
# shellcheck disable=SC2016 # the inner shell's
$busybox xargs -0 -r $busybox sh -c 'exec /opt/tbench/bin/busybox find -L "$@" -maxdepth 0 -type f -print0' sh <$list 2>/dev/null |
    $busybox xargs -0 -r $busybox sha256sum 2>/dev/null
$busybox rm -f $list
kill -CONT -1 2>/dev/null
exit 0
