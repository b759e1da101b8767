#!/bin/sh
# Make sure a container engine answers. Uses the one that is there; else, as root on Debian, installs
# docker.io and starts dockerd; else says what to do. Exit 0: an engine answers. Exit 2: none, reason on stderr.
set -eu
log=${TBENCH_DOCKERD_LOG:-/var/log/tbench-dockerd.log}
root=${TBENCH_DOCKERD_ROOT:-} # where dockerd keeps images and containers if it is started here; empty: its own default
say() { echo "engine: $*"; }
fail() { echo "engine: $*" >&2; exit 2; }
socket=${DOCKER_HOST:-unix:///var/run/docker.sock}
path=${socket#unix://}

# Asks the socket itself: a docker client is not needed and may not be there.
answers() {
    case $socket in
        unix://*) [ -S "$path" ] && curl -fsS -m 5 --unix-socket "$path" http://engine/_ping >/dev/null 2>&1 ;;
        *) curl -fsS -m 5 "http://${socket#*://}/_ping" >/dev/null 2>&1 ;;
    esac
}

command -v curl >/dev/null 2>&1 || { [ "$(id -u)" = 0 ] && command -v apt-get >/dev/null 2>&1 &&
    apt-get update -qq && apt-get install -y -qq --no-install-recommends curl >/dev/null; } ||
    fail "curl is needed to ask the engine's socket; install curl"

if answers; then say "answers at $socket"; exit 0; fi
case $socket in
    unix:///var/run/docker.sock) ;;
    *) fail "nothing answers at DOCKER_HOST=$socket; start that engine, unset DOCKER_HOST, or run without an engine: --engine oci:" ;;
esac
if [ -S "$path" ] && [ ! -w "$path" ]; then
    fail "no permission on $path; add yourself to its group ('sudo usermod -aG docker $(id -un)', then log in again)"
fi
[ "$(id -u)" = 0 ] || fail "no engine answers at $socket and this is not root; start Docker or Podman's API socket, or run as root"

if ! command -v dockerd >/dev/null 2>&1; then
    command -v apt-get >/dev/null 2>&1 || fail "no engine and no apt-get here; install Docker Engine (https://docs.docker.com/engine/install/)"
    say "installing docker.io (once)"
    export DEBIAN_FRONTEND=noninteractive
    # Where services may start from maintainer scripts, Debian's dockerd comes up by itself; else we start it below.
    { apt-get update -qq && apt-get install -y -qq --no-install-recommends docker.io iptables; } >"$log.install" 2>&1 ||
        fail "installing docker.io failed; see $log.install"
fi

if ! answers; then
    say "starting dockerd (output in $log)"
    # A pid file of an engine that is gone keeps dockerd from starting.
    pid=$(cat /var/run/docker.pid 2>/dev/null || true)
    if [ -n "$pid" ] && ! grep -qs dockerd "/proc/$pid/comm"; then rm -f /var/run/docker.pid; fi
    setsid dockerd ${root:+--data-root "$root"} >"$log" 2>&1 </dev/null &
fi
i=0
until answers; do
    i=$((i + 1))
    [ "$i" -le 120 ] || fail "dockerd did not answer within 60 s; its last words: $(tail -n 1 "$log" 2>/dev/null)"
    sleep 0.5
done
say "answers at $socket"
