# shellcheck shell=dash
# look: lists the changed files of a container and reads paths. Runs as root in the tools volume's busybox ash.
#
# `look "SINCE LATER MOST"` walks through all files (images/tools/changed.c) and inspects the small ones among the first
# MOST changed ones. `look ""` inspects the paths on standard input, one request a line: kind, tab, path. Kinds: s (its
# checksum), c (its content), g (its size, and its target if it is a link).
#
# Prints the paths of the walk, a further zero byte, and then, separated by zero bytes: modes and sizes, checksums,
# links (each followed by a line with its target), the peak memory use, whether there are servers (if the second word is
# `servers`), and an archive of the contents. After a walk, files in the archive have no checksum. Fails if the walk
# fails.
busybox=/opt/tbench/bin/busybox
tab='	'
newline='
'

look() {
    local looked sum_blocks=1000000 text_blocks=512
    if [ -n "$1" ]; then
        # Larger files are read only when requested by path. Logs have a separate archive.
        sum_blocks=2049 text_blocks=33
        # shellcheck disable=SC2086 # one word per number
        { looked=$(/opt/tbench/bin/changed -a $1 / 3>&1 >&4) || return 1; } 4>&1
        looked="$looked
c$tab/etc/hosts
c$tab/etc/resolv.conf
c$tab/etc/passwd
c$tab/etc/group"
    else
        looked=$($busybox cat)
    fi
    printf '\0'
    look_each scafblg "$busybox stat -c '%f %s %n' \"\$@\""
    printf '\0'
    look_find sfl -L "-type f -size -$sum_blocks -exec $busybox sha256sum {} +"
    printf '\0'
    look_find gl '' '-type l' |
        while IFS= read -r link; do printf '%s\n' "$link" "$($busybox readlink -f "$link")"; done
    printf '\0'
    memory_peak
    printf '\0'
    [ -z "$2" ] || servers
    printf '\0'
    cd / || exit 1
    look_find cl -L "-type f -size -$text_blocks -exec $busybox tar -chf - {} +"
    return 0  # a missing file is not a failure
}

# Prints the container's peak memory use, if known.
memory_peak() {
    local file number
    for file in /sys/fs/cgroup/memory.peak /sys/fs/cgroup/memory/memory.max_usage_in_bytes; do
        [ ! -r "$file" ] || { read -r number <"$file" && echo "$number"; }
    done
}

# Prints a 1 if anything can be asked on this network except for the engine's name server, or may be soon: by a program
# that was left running and is no shell.
servers() {
    # shellcheck disable=SC2016 # awk's variables
    $busybox awk '
        FILENAME ~ /stat$/ {
            name = rest = $0
            sub(/^[^(]*\(/, "", name)
            sub(/^.*\) /, "", rest)
            split(rest, fields, " ")
            if (FILENAME == "/proc/self/stat") ours = fields[4]
            else if (fields[1] !~ /[ZX]/ && fields[4] != ours && name !~ /^(init|limit|busybox|sh|bash|tmux.*)\)/) found = 1
        }
        FILENAME ~ /unix$/ && $4 == "00010000" && $NF ~ /^@/ { found = 1 }
        FILENAME ~ /(tcp|udp)6?$/ && $4 ~ /^0[7A]$/ && $2 !~ /^0B00007F:/ { found = 1 }
        found { print 1; exit }
    ' /proc/self/stat /proc/[0-9]*/stat /proc/net/tcp /proc/net/tcp6 /proc/net/udp /proc/net/udp6 /proc/net/unix 2>/dev/null
}

# Runs the shell command $2 on the requested paths of kinds $1, without those in /logs.
look_each() {
    case "$newline$looked" in *"$newline"["$1"]"$tab"*) ;; *) return ;; esac
    $busybox sed -n "\\,^.$tab/logs/,d;s/^[$1]$tab//p" <<END | $busybox tr '\n' '\0' |
$looked
END
        $busybox xargs -0 -r $busybox sh -c "exec $2" - 2>/dev/null
}

# Runs find on the requested paths of kinds $1, with the option $2 and the expression $3.
look_find() {
    look_each "$1" "$busybox find $2 \"\$@\" -maxdepth 0 $3"
}
