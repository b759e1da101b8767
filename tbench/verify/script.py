"""What runs in the container around a verifier: tests staged and hashed, repairs, test.sh, what it left sent back.

As root all of it is one exec, written for the tools volume's busybox; without trouble it forks about a dozen times.
Shell words: S is our own directory, L the verifier's logs, `report` what we say about it all, a line per fact.
"""

from __future__ import annotations

import hashlib
import re
import shlex
from collections.abc import Mapping, Sequence
from dataclasses import dataclass

from tbench.sandbox.archive import FileEntry
from tbench.sandbox.backend import BUSYBOX, NOT_STAGED

LOGS = "/logs/verifier"
FORGED = 96
"""Exit code of `prepare` when test.sh must not be run; the report says why."""
_KEPT_FILES, _KEPT_FILE_KB, _KEPT_PATHS, _SUSPECTS = 20, 64, 40, 40
_BAIT_SEC = 0.4
"""Long enough for whoever looks a few times a second."""
_MEND_SEC = 200.0
_COMMANDS_SEC = {"DPKG": 120, "CERTIFICATES": 40}
_FORGED_TESTS = "what lies at /tests is not what was put there"
_FORGED_REWARD = "a process that the agent left writes to /logs/verifier"


@dataclass(frozen=True)
class VerifierScript:
    """The scripts for one run of a verifier. Units: seconds."""

    stage: str
    """A directory of its own in the container, where the tests arrive."""
    tests: Mapping[str, FileEntry]
    """By path in `stage`, below its directory `tests`."""
    workdir: str
    timeout_sec: float
    watched: Sequence[str] = ()
    """Globs of files that test.sh depends on."""
    again: bool = False
    """A verifier ran there before: what lies at /tests and /logs/verifier is our own."""
    uses_apt: bool = False

    @property
    def limit_sec(self) -> float:
        """For all of it."""
        return self.timeout_sec + 60.0 + (_MEND_SEC if self.again or self.uses_apt else 0.0)

    def prepare(self) -> str:
        """Expects the tests as a tar archive on its standard input."""
        when_apt = '[ $left = 0 ] && [ -z "$dpkg" ] || mend' if self.uses_apt else ":"
        words = {
            "NOT_STAGED": NOT_STAGED,
            "MEND_FIRST": "mend" if self.again else ":",
            "FORGET": "$B rm -rf /tests $L" if self.again else ":",
            "MEND_LAST": ":" if self.again else when_apt,
            "WATCHED": " ".join(self.watched),
            "DIGEST": _digest(self.tests, self.stage),
            "BAIT": _BAIT_SEC,
            "PATHS": _KEPT_PATHS,
            "SUSPECTS": _SUSPECTS,
            "FORGED_TESTS": _FORGED_TESTS,
            "FORGED_REWARD": _FORGED_REWARD,
        }
        return self._begin() + _filled(_TOOLS + _MENDING + _STAGE + _EXAMINE + _CHECK, {**words, **_COMMANDS_SEC})

    def run(self) -> str:
        return _filled(_RUN, {"CWD": shlex.quote(self.workdir), "LIMIT": max(1, round(self.timeout_sec))})

    def collect(self) -> str:
        """Prints the report, a zero byte, and an archive of the logs."""
        return _filled(_COLLECT, {"FILES": _KEPT_FILES, "KB": _KEPT_FILE_KB})

    def whole(self) -> str:
        """All of it in one script, for root."""
        return (
            self.prepare()
            + 'if [ -z "$forged" ]; then\n'
            + self.run()
            + "kill -STOP -1 2>/dev/null\nfi\n"
            + self.collect()
        )

    def examine(self) -> str:
        """Only looks, and prints as `collect` does; for a container whose verifier runs in a copy."""
        words = {"WATCHED": " ".join(self.watched), "MEND_LAST": ":", "SUSPECTS": _SUSPECTS}
        return (
            self._begin()
            + "report= forged= sums=\n"
            + _filled(_TOOLS + _EXAMINE, {**words, "NOT_STAGED": NOT_STAGED, "PATHS": _KEPT_PATHS})
            + self.collect().replace("kill -CONT", "$B rm -rf $S; kill -CONT")
        )

    def prepare_alone(self) -> str:
        """Root's part before another user runs the tests; ends with NOT_STAGED, FORGED or 0."""
        save = 'printf %s "$report" >$S/report && printf %s "$sums" >$S/sums && chmod 700 $S\n'
        return self.prepare() + save + f'[ -z "$forged" ] || exit {FORGED}\n'

    def run_alone(self) -> str:
        return self._begin() + self.run() + 'echo "$code $late"\n'

    def collect_alone(self, exit_code: int | None, timed_out: bool) -> str:
        load = 'report="$($B cat $S/report)\n" sums=$($B cat $S/sums)\n'
        code = "" if exit_code is None else exit_code
        return (
            self._begin()
            + f"kill -STOP -1 2>/dev/null\ncode={code} late={int(timed_out)}\n"
            + load
            + _filled(_TOOLS, {"NOT_STAGED": NOT_STAGED, "PATHS": _KEPT_PATHS})
            + self.collect()
        )

    def _begin(self) -> str:
        return f"B={BUSYBOX} S={self.stage} L={LOGS}\n"


def _filled(script: str, words: Mapping[str, object]) -> str:
    return re.sub(r"@(\w+)@", lambda found: str(words[found[1]]), script)


def _digest(tests: Mapping[str, FileEntry], stage: str) -> str:
    """Of the sorted sums of all files below /tests, when they are what was sent."""
    lines = sorted(
        f"{hashlib.sha256(entry.data).hexdigest()}  {path.removeprefix(stage)}".encode()
        for path, entry in tests.items()
        if entry.data is not None
    )
    return hashlib.sha256(b"\n".join(lines)).hexdigest()


_TOOLS = """note() {
    report="$report$1	$2
"
}
aside() {
    [ -d $S/evidence ] || $B mkdir -p -m 700 $S/evidence || exit @NOT_STAGED@
    $B mv "$1" $S/evidence/$2 || exit @NOT_STAGED@
    note evidence "$1"
    report="$report$($B find $S/evidence/$2 -mindepth 1 -maxdepth 2 | $B head -n @PATHS@ |
        $B sed "s,^$S/evidence/$2,evidence	$1,")
"
}
"""

# By whole paths: busybox has a dpkg of its own.
# Whoever holds dpkg's lock has it open, and a file is the same one by whatever name.
_MENDING = """
holders() {
    for file in /proc/[0-9]*/fd/*; do
        for lock in lib/dpkg/lock-frontend lib/dpkg/lock lib/apt/lists/lock cache/apt/archives/lock; do
            if [ "$file" -ef /var/$lock ]; then file=${file#/proc/}; echo ${file%%/*}; fi
        done
    done
}
mend_lock() {
    held=$(holders)
    [ -n "$held" ] || return 0
    kill -TERM $held 2>/dev/null
    for _ in 1 2 3 4 5 6 7 8 9 10 11 12 13 14 15; do
        rest=$(holders)
        [ -n "$rest" ] || break
        $B usleep 200000
    done
    [ -z "$rest" ] || kill -KILL $rest 2>/dev/null
    note repair "dpkg-lock: a process that held it was ended"
}
mend_dpkg() {
    set -- /var/lib/dpkg/updates/[0-9]*
    [ -e "$1" ] || $B grep -qsE '^Status: .* (half-installed|unpacked|half-configured|triggers-[a-z]*)$' \\
        /var/lib/dpkg/status || return 0
    DEBIAN_FRONTEND=noninteractive $B timeout -k 5 @DPKG@ /usr/bin/dpkg --force-confdef --force-confold \\
        --configure -a </dev/null >/dev/null 2>&1
    note repair "dpkg: it was half configured; dpkg --configure -a ended with $?"
}
mend_certificates() {
    [ ! -s /etc/ssl/certs/ca-certificates.crt ] && [ -x /usr/sbin/update-ca-certificates ] || return 0
    $B timeout -k 5 @CERTIFICATES@ /usr/sbin/update-ca-certificates </dev/null >/dev/null 2>&1
    note repair "certificates: there were none; update-ca-certificates ended with $?"
}
mend_disk() {
    set -- $($B df -P / | $B tail -n 1)
    [ "$5" = 100% ] && $B ls /var/cache/apt/archives/*.deb >/dev/null 2>&1 || return 0
    $B rm -f /var/cache/apt/archives/*.deb
    note repair "disk: it was full; apt's downloads were removed"
}
mend() {
    mend_lock
    mend_dpkg
    mend_certificates
    mend_disk
}
"""

# What the agent left is moved, never followed or deleted; a rename within one file system takes no room on it.
_STAGE = """
umask 022
report= forged=
@MEND_FIRST@
$B tar -xf - -C / || exit @NOT_STAGED@
@FORGET@
if [ -L /logs ] || { [ -e /logs ] && [ ! -d /logs ]; }; then aside /logs logs; fi
$B rmdir $L 2>/dev/null
if [ -L $L ] || [ -e $L ]; then aside $L verifier; fi
if [ -L /tests ] || [ -e /tests ]; then aside /tests tests; fi
$B mkdir -p -m 777 $L && $B mv $S/tests /tests || exit @NOT_STAGED@
"""

# Leftover processes: all but ours (one session), tmux and the shell in it. Reading /proc in this way forks nothing.
# A change time cannot be set from inside, and the container has no power over the clock: newer than its first process
# means changed in it.
_EXAMINE = """
stat_of() {
    read -r line 2>/dev/null <$1 || return 1
    name=${line#*\\(} name=${name%)*}
    set -- ${line##*) }
    state=$1 parent=$2 session=$4 began=${20}
}
terminal= left=0 shells=0
stat_of /proc/self/stat
ours=$session
# The terminal's own: tmux, then what starts its shell (a script of ours, run by our busybox), then one shell of that.
for process in /proc/[0-9]*; do
    [ $process = /proc/1 ] || [ ! $process/exe -ef /opt/tbench/bin/tmux ] || terminal="$terminal ${process#/proc/} "
done
for process in /proc/[0-9]*; do
    [ -n "$terminal" ] && [ $process/exe -ef $B ] || continue
    read -r words <$process/cmdline
    case "$words" in ${B}sh/opt/tbench/share/shell*) ;; *) continue ;; esac
    stat_of $process/stat || continue
    case "$terminal" in *" $parent "*) terminal="$terminal ${process#/proc/} " ;; esac
done
for process in /proc/[0-9]*; do
    stat_of $process/stat 2>/dev/null || continue
    [ $process != /proc/1 ] && [ $session != $ours ] && [ $state != Z ] || continue
    case "$terminal" in *" ${process#/proc/} "*) continue ;; esac
    if [ $process/exe -ef $B ]; then
        # busybox's timeout watches over a shell of ours from a session of its own, and up to a second longer.
        read -r words <$process/cmdline
        case "$words" in ${B}timeout-k*) continue ;; esac
    fi
    case "$name$shells$terminal" in
        bash0*" $parent "* | sh0*" $parent "* | busybox0*" $parent "*) shells=1 ;;
        *) left=$((left + 1)) ;;
    esac
done
note left $left
stat_of /proc/1/stat
read -r up _ </proc/uptime
now=${EPOCHREALTIME%????}
begun=$((${now%.*}${now#*.} - ${up%.*}${up#*.} + began))
changed=$($B stat -c '%Z %n' /var/lib/dpkg/status @WATCHED@ 2>/dev/null | while read -r at path; do
    case "$path" in /bin/* | /sbin/*) [ ! -L /bin ] || continue ;; esac
    [ $((at * 100)) -le $begun ] || echo "$path"
done)
dpkg=
case "$changed" in /var/lib/dpkg/status*) dpkg=1 ;; esac
@MEND_LAST@
inspect() {
    real=$($B readlink -f "$1") && [ -f "$real" ] || return
    set -- "$1" $($B stat -c %Z "$real") $($B md5sum <"$real") $($B sha256sum <"$real")
    new=0
    [ $(($2 * 100)) -le $begun ] || new=1
    note suspect "$number	$1	$real	$new	$3	$5"
    [ -d $S/suspects ] || $B mkdir -p -m 700 $S/suspects
    $B head -c 4096 "$real" >$S/suspects/$number
    report="$report$({
        $B grep -hsF "$3  " /var/lib/dpkg/info/*.md5sums
        $B grep -hsF " $real $3" /var/lib/dpkg/status
        for where in /usr/lib /usr/local/lib /root/.local/lib; do
            $B grep -hsF "${real##*/},sha256=" $where/python3*/*-packages/*.dist-info/RECORD
        done
    } | $B head -n 5 | $B sed "s/^/known	$number	/")
"
}
number=0
OLD=$IFS IFS='
'
set -f
for path in $changed; do
    [ "$path" != /var/lib/dpkg/status ] || continue
    number=$((number + 1))
    [ $number -le @SUSPECTS@ ] || break
    IFS=$OLD
    set +f
    inspect "$path"
done
IFS=$OLD
set +f
while read -r line; do
    case "$line" in
        \\#*) ;;
        *astral.sh* | *pypi.org* | *pythonhosted.org* | *github* | *debian.org* | *ubuntu.com*) note hosts "$line" ;;
    esac
done 2>/dev/null </etc/hosts
"""

# Whoever rewrites rewards cannot tell the bait from the verdict.
_CHECK = """
sums=$($B find /tests ! -type d -exec $B sha256sum {} + | $B sort)
if [ "$(printf %s "$sums" | $B sha256sum)" != "@DIGEST@  -" ]; then
    forged=1
    note forged "@FORGED_TESTS@"
elif [ $left != 0 ]; then
    echo 0 >$L/reward.txt
    $B sleep @BAIT@
    set -- $L/*
    read -r bait <$L/reward.txt
    if [ "$*:$bait" != "$L/reward.txt:0" ]; then
        forged=1
        note forged "@FORGED_REWARD@"
    fi
    $B rm -rf $L/*
fi
"""

# Output goes to a file: a server that test.sh leaves behind would hold a pipe open for ever.
_RUN = """cd @CWD@ 2>/dev/null || {
    $B mkdir -p @CWD@
    cd @CWD@
    report="${report}repair	cwd: the working directory was gone and was made again
"
}
began=$EPOCHSECONDS
$B timeout -k 5 @LIMIT@ bash /tests/test.sh >$L/stdout.txt 2>&1 </dev/null
code=$? late=0
[ $code -lt 124 ] || [ $((EPOCHSECONDS - began)) -lt @LIMIT@ ] || late=1
"""

# Everything else in the container stands still meanwhile: nobody can write a reward after the verifier has ended.
# The verdict's files first: whatever else is there, a limit must not cut them off.
_COLLECT = """
altered=
[ -z "$sums" ] || altered=$(printf '%s\\n' "$sums" | (cd / && $B sha256sum -c 2>/dev/null) |
    $B sed -n 's/: FAILED.*//p' | $B head -n 20)
[ -z "$altered" ] || [ -n "$forged" ] || report="$report$(echo "$altered" | $B sed "s/^/changed	/")
"
printf 'code\\t%s\\nlate\\t%s\\n%send\\t\\n\\0' "$code" "$late" "$report"
cd / && set --
for name in reward.json reward.txt ctrf.json; do [ ! -e $L/$name ] || set -- "$@" logs/verifier/$name; done
[ ! -d $S/suspects ] || set -- "$@" ${S#/}/suspects
if [ -d $S/evidence ]; then
    OLD=$IFS IFS='
'
    set -f
    set -- "$@" $($B find ${S#/}/evidence -type f -size -@KB@k | $B head -n @FILES@)
    set +f
    IFS=$OLD
fi
for name in verifier agent artifacts; do [ ! -e /logs/$name ] || set -- "$@" logs/$name; done
$B tar -cf - "$@" 2>/dev/null
kill -CONT -1 2>/dev/null
exit 0
"""
