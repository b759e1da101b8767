# shellcheck shell=dash
# Puts what was handed over into the verifier's container, at the paths where it was collected. For the tools volume's
# busybox ash, as root. What is to be done is called for below these functions (restoring.py writes it); the archive
# comes on standard input.

busybox=/opt/tbench/bin/busybox
exit_not_staged=97
exit_no_tests=95

# An empty directory at $1, which stays the same one if there is one: somebody may work in it.
empty() {
    if [ -L "$1" ] || { [ -e "$1" ] && [ ! -d "$1" ]; }; then $busybox rm -rf "$1"; fi
    $busybox mkdir -p "$1" || exit $exit_not_staged
    $busybox find "$1" -mindepth 1 -maxdepth 1 -exec $busybox rm -rf -- {} +
    $busybox chmod 777 "$1"
}

# Room for a file at $1.
beside() {
    [ ! -L "$1" ] || $busybox rm -f "$1"
    $busybox mkdir -p "${1%/*}/" && $busybox chmod 777 "${1%/*}/" || exit $exit_not_staged
}

unpack() {
    EXTRACT_UNSAFE_SYMLINKS=1 $busybox tar -xf - -C / || exit $exit_not_staged
}

# Removes python's caches below $1. Python writes them anew of the source; what lies there may be of another one.
drop_caches() {
    $busybox find "$1" -name __pycache__ -prune -exec $busybox rm -rf -- {} +
}

# Prints 1 where other files of the tests speak of a reward, else 0; then a line break and test.sh.
show_tests() {
    [ -f /tests/test.sh ] || exit $exit_no_tests
    $busybox find /tests -type f ! -path /tests/test.sh -exec $busybox grep -ls reward {} + | $busybox grep -c . |
        $busybox head -n 1
    $busybox cat /tests/test.sh
}

