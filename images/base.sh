#!/bin/sh
# Make the root file system of a Debian base image without a registry:
#   base.sh debian:bookworm-slim bookworm ROOTFS.tar
# mmdebstrap writes it from the machine's own Debian mirror; tbench imports it under the label
# tbench.bootstrapped, so nobody mistakes it for the published image.
set -eu
name=$1 suite=$2 out=$3
fail() { echo "base: $*" >&2; exit 2; }
[ "$(id -u)" = 0 ] || fail "$name: no registry answers, and making it with mmdebstrap needs root; load it from a file (docs/sandboxes.md)"
if ! command -v mmdebstrap >/dev/null 2>&1; then
    command -v apt-get >/dev/null 2>&1 || fail "$name: no registry answers and mmdebstrap is not here"
    echo "base: installing mmdebstrap (once)"
    export DEBIAN_FRONTEND=noninteractive
    { apt-get update -qq && apt-get install -y -qq --no-install-recommends mmdebstrap; } >/dev/null 2>&1 ||
        fail "installing mmdebstrap failed"
fi
work=$(mktemp -d)
trap 'rm -rf "$work"' EXIT
echo "base: making $name with mmdebstrap (about 30 s)"
# shellcheck disable=SC2016 # mmdebstrap's own shell expands what the hooks hold
mmdebstrap --quiet --variant=minbase --include=ca-certificates \
    --dpkgopt='path-exclude=/usr/share/man/*' --dpkgopt='path-exclude=/usr/share/doc/*' \
    --dpkgopt='path-exclude=/usr/share/locale/*' --dpkgopt='path-include=/usr/share/doc/*/copyright' \
    --dpkgopt='force-unsafe-io' --aptopt='Acquire::Retries "5"' \
    --customize-hook='printf "#!/bin/sh\nexit 101\n" > "$1/usr/sbin/policy-rc.d"; chmod 755 "$1/usr/sbin/policy-rc.d"' \
    --customize-hook='rm -f "$1/etc/resolv.conf" "$1/etc/hostname"' \
    "$suite" "$out" 2>"$work/log" || fail "mmdebstrap failed: $(tail -n 1 "$work/log")"
echo "base: made the root file system of $name"
