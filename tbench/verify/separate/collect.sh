# shellcheck shell=dash
# Packs a task's artifacts: for each source one or more archives, followed by an empty one. For the tools volume's
# busybox ash, as root. collecting.py appends the calls of these functions.

busybox=/opt/tbench/bin/busybox
exit_large=98
exit_broken=3
follow=  # not empty: the agent, who may have made the links, could read every file
sum=0
real=

# Sets real to the real path of $1; fails at a link that is not root's, as it may lead to a file that its owner cannot
# read.
find_real() {
    local rest=$1 at='' part target hops=0
    while [ -n "$rest" ]; do
        part=${rest%%/*}
        case "$rest" in */*) rest=${rest#*/} ;; *) rest= ;; esac
        case "$part" in
            '' | .) continue ;;
            ..) at=${at%/*} && continue ;;
        esac
        if [ -L "$at/$part" ]; then
            # A link to a file is not an artifact itself.
            [ -n "$rest" ] || [ -d "$at/$part" ] || return 1
            hops=$((hops + 1))
            [ $hops -le 40 ] || return 1
            [ -n "$follow" ] || [ "$($busybox stat -c %u "$at/$part")" = 0 ] || return 1
            target=$($busybox readlink "$at/$part")
            case "$target" in /*) at= ;; esac
            rest=$target/$rest
        else
            at=$at/$part
        fi
    done
    real=${at:-/}
}

# Prints the bytes of the files at $real, and the number of files and folders. The arguments are those of find that
# exclude files.
measure() {
    # shellcheck disable=SC2016 # awk's variables
    {
        if cd "$real"; then
            $busybox find . "$@" -exec $busybox stat -c '%F %s' {} +
        else
            $busybox stat -c '%F %s' "$real"
        fi
    } 2>/dev/null | $busybox awk '
        /^regular/ { sum += $NF }
        END { printf "%.0f %d\n", sum, NR }'
}

# Exits before anything is read if the sources up to $3 have more than $1 bytes, or $3 alone more than $2 entries.
weigh() {
    local size count most_bytes=$1 most_entries=$2 source=$3
    shift 3
    find_real "$source" && [ -e "$real" ] || return 0
    read -r size count <<-END
	$(measure "$@")
	END
    sum=$((sum + size))
    [ "$sum" -gt "$most_bytes" ] || [ "$count" -gt "$most_entries" ] || return 0
    printf '%s %s %s' "$sum" "$count" "$source"
    exit $exit_large
}

nothing() {
    $busybox head -c 1024 /dev/zero
}

pack_folder() {
    cd "$real" || return
    if [ $# = 0 ]; then
        $busybox tar -cf - .
    else
        $busybox find . "$@" -print0 | $busybox xargs -0 $busybox tar -cf - --no-recursion
    fi
}

pack_file() {
    cd "${real%/*}/" && $busybox tar -cf - "./${real##*/}"
}

# Packs source $1; the other arguments are those of find that exclude files.
pack() {
    if find_real "$1"; then
        shift
        if [ -d "$real" ]; then
            pack_folder "$@" 2>/dev/null || exit $exit_broken
        elif [ -f "$real" ]; then
            pack_file 2>/dev/null || exit $exit_broken
        fi
    fi
    nothing
}

# Packs source $2 if it has at most $1 bytes.
pack_small() {
    local size=0
    ! find_real "$2" || [ ! -d "$real" ] || read -r size _ <<-END
	$(measure)
	END
    if [ "$size" -le "$1" ]; then pack "$2"; else nothing; fi
}

continue_others() {
    kill -CONT -1 2>/dev/null
}

