# shellcheck shell=dash
# look: tells which files of a container changed, and what lies at paths. For the tools volume's busybox ash as root.
#
# `look "SINCE LATER MOST"` walks through all files (images/tools/changed.c), and looks at those that changed, if they
# are no more than MOST and small. `look ""` looks at the paths of standard input, a line each: what is wanted of it
# (s: its sum, c: its content, g: whether $look_words, a regular expression, is in it, or it holds too much), tab, path.
#
# Prints the paths of the walk, and behind another zero byte modes, sums, the files with the words in them, those of 4 GB or more,
# links, each with the path that it leads to in a line behind it, the most memory that was in use, and an archive of the
# contents, with a zero byte between. Of a file whose content is there a walk has no sum and looks for no words. Fails where
# the walk does.
busybox=/opt/tbench/bin/busybox
tab='	'
newline='
'

look() {
    local looked sum_blocks=1000000 text_blocks=512
    if [ -n "$1" ]; then
        # Nobody has asked for them: what is larger is asked for by its path. Logs have an archive of their own.
        sum_blocks=2049 text_blocks=33
        # shellcheck disable=SC2086 # a word per number
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
    look_each scafbl "$busybox stat -c '%f %n' \"\$@\""
    printf '\0'
    look_find sfl -L "-type f -size -$sum_blocks -exec $busybox sha256sum {} +"
    printf '\0'
    look_find gfl -L "-type f -size -2048 -exec $busybox grep -lsE \"\$words\" {} +"
    printf '\0'
    look_find gb '' '-type f -size +8388607'
    printf '\0'
    look_find gl '' '-type l' |
        while IFS= read -r link; do printf '%s\n' "$link" "$($busybox readlink -f "$link")"; done
    printf '\0'
    memory_peak
    printf '\0'
    cd / || exit 1
    look_find cl -L "-type f -size -$text_blocks -exec $busybox tar -chf - {} +"
    return 0  # what is not there is no failure
}

# Prints the most memory that the container has had in use, where that is known.
memory_peak() {
    local file number
    for file in /sys/fs/cgroup/memory.peak /sys/fs/cgroup/memory/memory.max_usage_in_bytes; do
        [ ! -r "$file" ] || { read -r number <"$file" && echo "$number"; }
    done
}

# Runs the shell's command $2 with those paths of what is looked at that are of the kinds $1. Logs are none of them.
look_each() {
    case "$newline$looked" in *"$newline"["$1"]"$tab"*) ;; *) return ;; esac
    $busybox sed -n "\\,^.$tab/logs/,d;s/^[$1]$tab//p" <<END | $busybox tr '\n' '\0' |
$looked
END
        words=${look_words:?} $busybox xargs -0 -r $busybox sh -c "exec $2" - 2>/dev/null
}

# Runs find on those paths, with the option $2 and the expression $3.
look_find() {
    look_each "$1" "$busybox find $2 \"\$@\" -maxdepth 0 $3"
}
