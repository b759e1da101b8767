# shellcheck shell=dash
# Restores artifacts in the verifier's container, at the paths where they were collected. For the tools volume's busybox
# ash, as root. grading.py appends the calls of these functions; the archive comes on standard input.

busybox=/opt/tbench/bin/busybox
exit_not_staged=97
exit_no_tests=95

# Makes an empty directory at $1. An existing one is emptied, not replaced, as a process may have it as working
# directory.
empty() {
    if [ -L "$1" ] || { [ -e "$1" ] && [ ! -d "$1" ]; }; then $busybox rm -rf "$1"; fi
    $busybox mkdir -p "$1" || exit $exit_not_staged
    $busybox find "$1" -mindepth 1 -maxdepth 1 -exec $busybox rm -rf -- {} +
    $busybox chmod 777 "$1"
}

# Prepares the parent directory of a file at $1.
beside() {
    [ ! -L "$1" ] || $busybox rm -f "$1"
    $busybox mkdir -p "${1%/*}/" && $busybox chmod 777 "${1%/*}/" || exit $exit_not_staged
}

unpack() {
    EXTRACT_UNSAFE_SYMLINKS=1 $busybox tar -xf - -C / || exit $exit_not_staged
}

# Removes Python's bytecode caches below $1, which may not match the source. Python writes new ones.
drop_caches() {
    $busybox find "$1" -name __pycache__ -prune -exec $busybox rm -rf -- {} +
}

# Prints the number of test files other than test.sh that contain the word reward, a newline, and test.sh.
show_tests() {
    [ -f /tests/test.sh ] || exit $exit_no_tests
    $busybox find /tests -type f ! -path /tests/test.sh -exec $busybox grep -ls reward {} + | $busybox grep -c . |
        $busybox head -n 1
    $busybox cat /tests/test.sh
}

