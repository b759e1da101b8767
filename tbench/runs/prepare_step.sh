# shellcheck shell=dash
# Prepares a container for a task step: removes tests and logs of the previous step, and makes room for a new terminal.
# Runs in the tools volume's busybox ash, as root.
workdir=$TBENCH_STEP_WORKDIR
before=$TBENCH_STEP_BEFORE # number of the steps before this one
busybox=/opt/tbench/bin/busybox
terminal=$TBENCH_STEP_TERMINAL # the socket of its agent's tmux
is_failed=

if [ "$before" != 0 ]; then
    # The last terminal stays under another name: its processes may be part of the work.
    LOCPATH=/opt/tbench/share/locale /opt/tbench/bin/limit 10 /opt/tbench/bin/tmux -u -S "$terminal" \
        rename-session -t main "step-$before" >/dev/null 2>&1
    # Stop all processes, so that none can put links in the way of the removal.
    stop_others
    # The terminal's files have the state of its last shell.
    $busybox rm -rf /tests /.tbench-* /logs/agent /logs/verifier "$terminal".command* || is_failed=1
fi
for directory in /logs /logs/agent /logs/verifier /logs/artifacts; do
    [ -d $directory ] && continue
    $busybox mkdir -p $directory && $busybox chmod 777 $directory || is_failed=1
done
[ -d "$workdir" ] || $busybox mkdir -p "$workdir" || is_failed=1
kill -CONT -1 2>/dev/null
[ -z "$is_failed" ]
