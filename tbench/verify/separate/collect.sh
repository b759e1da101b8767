# shellcheck shell=dash
# Packs what a task hands over: for each source one archive or several, and an empty one behind them. For the tools
# volume's busybox ash, as root. What is to be packed is called for below these functions (collecting.py writes it).

busybox=/opt/tbench/bin/busybox
exit_large=98
exit_broken=3
follow=  # not empty: whoever made the links could read everything here
sum=0
real=

# Sets real to where path $1 leads; fails at a link that is not root's, as it may lead to what its owner cannot read.
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
            # A file that is a link is none of its own.
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

# Prints how many bytes lie in the files at $real, and how many files and folders there are. The words are find's, for
# what does not count.
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

# Ends everything where source $3, with all before it, holds more than $1 bytes or $2 entries: nothing is read then.
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

# Packs source $1; the other words are find's, for what is left out.
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

# Packs source $2 where it holds at most $1 bytes.
pack_small() {
    local size=0
    ! find_real "$2" || [ ! -d "$real" ] || read -r size _ <<-END
	$(measure)
	END
    if [ "$size" -le "$1" ]; then pack "$2"; else nothing; fi
}

# Everything else stands still meanwhile, so that nothing changes while it is read.
stop_others() {
    { kill -STOP -1; kill -CONT $PPID; } 2>/dev/null
}

continue_others() {
    kill -CONT -1 2>/dev/null
}

