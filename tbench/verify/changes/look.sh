# shellcheck shell=dash
# look: tells which files of a container changed, and what lies at paths. For the tools volume's busybox ash as root.
#
# `look "SINCE LATER MOST"` walks through all files (images/tools/changed.c), and looks at those that changed, if
# they are no more than MOST and small. `look ""` looks at the paths of standard input, a line each: what is wanted
# of it (s: its sum, c: its content too, g: whether it speaks of the verifier, or holds too much), tab, path.
#
# Prints the paths of the walk, and behind another zero byte modes, sums, the files that speak of it, those of 4 GB or more,
# links, each with the path that it leads to in a line behind it, the most memory that was in use, and an archive of the
# contents, with a zero byte between. Fails where the walk does.
busybox=/opt/tbench/bin/busybox
tab='	'
newline='
'
look_words="/logs/verifier|reward\\.(txt|json)|ctrf\\.json|(import|from) +_pytest|pytest_runtest_|[\"']_pytest"
look_words="$look_words|/proc/.*/mem[\"' ,)]|process_vm_writev|PTRACE_"

look() {
    local looked sum_blocks=1000000 text_blocks=512
    if [ -n "$1" ]; then
        # Nobody has asked for them: what is larger is asked for by its path. Logs have an archive of their own.
        sum_blocks=2048 text_blocks=32
        # shellcheck disable=SC2086 # a word per number
        { looked=$({ /opt/tbench/bin/changed -a $1 / 3>&1 >&4 || echo failed; } | $busybox sed "\,^.$tab/logs/,d"); } 4>&1
        [ "${looked##*"$newline"}" != failed ] || return 1
        looked="$looked
c$tab/etc/hosts
c$tab/etc/resolv.conf
c$tab/etc/passwd
c$tab/etc/group"
    else
        looked=$($busybox cat)
    fi
    printf '\0'
    look_paths scafl | $busybox xargs -0 -r $busybox stat -c '%f %n' 2>/dev/null
    printf '\0'
    look_paths scfl | look_files $sum_blocks | $busybox xargs -0 -r $busybox sha256sum 2>/dev/null
    printf '\0'
    look_paths gfl | look_files 2048 | $busybox xargs -0 -r $busybox grep -lsE "$look_words"
    printf '\0'
    look_paths gf | look_find '' '-type f -size +8388607'
    printf '\0'
    look_paths gl | look_find '' '-type l' |
        while IFS= read -r link; do printf '%s\n' "$link" "$($busybox readlink -f "$link")"; done
    printf '\0'
    memory_peak
    printf '\0'
    cd / || exit 1
    look_paths cfl | look_files $text_blocks | $busybox xargs -0 -r $busybox tar -chf - 2>/dev/null
}

# Prints the most memory that the container has had in use, where that is known.
memory_peak() {
    local file number
    for file in /sys/fs/cgroup/memory.peak /sys/fs/cgroup/memory/memory.max_usage_in_bytes; do
        [ ! -r "$file" ] || { read -r number <"$file" && echo "$number"; }
    done
}

# Paths of what is looked at of the kinds $1, each with a zero byte behind it.
look_paths() {
    case "$newline$looked" in *"$newline"["$1"]"$tab"*) ;; *) return ;; esac
    printf '%s\n' "$looked" | $busybox sed -n "s/^[$1]$tab//p" | $busybox tr '\n' '\0'
}

# Those of them that are files, or lead to one, of less than $1 blocks of 512 bytes.
look_files() {
    look_find -L "-type f -size -$1 -print0"
}

# Those of them that find, with the option $1, finds by the expression $2.
look_find() {
    $busybox xargs -0 -r $busybox sh -c "exec $busybox find $1 \"\$@\" -maxdepth 0 $2" - 2>/dev/null
}
