"""The effect of a script under `bash -c` in a terminal's container, with which delivered commands are compared.

One process runs script after script, on a pty of its own or with its output in a file.
"""

from __future__ import annotations

import base64
import io
import secrets
import tarfile
from collections.abc import Mapping
from dataclasses import dataclass

from harness.stream import ByteStream
from tbench.sandbox.docker.container import Container

LIMIT_SEC = 20
_DRIVER = r"""
IFS= read -rd '' nonce <&3 && IFS= read -rd '' D <&3 && IFS= read -rd '' environment <&3 && IFS= read -rd '' ends <&3
while IFS='=' read -rd '' name _; do unset "$name"; done < <(env -0)
. "$environment"
ended=$environment.ended
# The directory at the end, without a word in the script itself.
printf 'unset BASH_ENV; trap '\''builtin printf "%%s" "$PWD" >|"%s"'\'' EXIT\n' "$ended" >"$environment.trap"
tell() { printf '%s%s' "$nonce" "$*"; }
files() {
    tell
    local all=(*)
    [ ${#all[@]} != 0 ] || return
    tar --no-unquote --numeric-owner -b1 -cf - -- "${all[@]}" | base64 -w0
    rm -rf -- "${all[@]}"
}
shopt -s nullglob dotglob
stty raw -echo cols 160 rows 40 2>/dev/null
cd "$D"; cd "$D"
tell
while IFS= read -rd '' text <&3; do
    files
    : >"$ended"
    tell
    # A process group of its own.
    BASH_ENV=$environment.trap timeout -k 1 LIMIT bash -c -- "$text" </dev/null 3<&- >"$ends" 2>&1 &
    pid=$!
    wait $pid 2>/dev/null
    code=$?
    # What is left of it may have something to say yet.
    for turn in {1..100}; do kill -0 -- -$pid 2>/dev/null && sleep 0.01 || break; done
    [ $turn != 100 ] || kill -9 -- -$pid
    [ "$ends" = /dev/tty ] || cat "$ends"
    tell "$code"
    tell "$(<"$ended")"
    files
    tell
done
""".replace("LIMIT", str(LIMIT_SEC))


@dataclass(frozen=True)
class File:
    kind: bytes
    mode: int
    content: bytes


Files = Mapping[str, File]


@dataclass(frozen=True)
class Ran:
    """Outcome of a script."""

    printed: bytes
    exit_code: int
    directory: str | None
    """Where the shell was at its end; None where another program took its place, or a signal ended it."""
    files: Files


class PlainBash:
    """Runs scripts as `bash -c` does, with nothing to read, in one directory that is empty before each."""

    def __init__(self, stream: ByteStream, nonce: bytes) -> None:
        self._stream = stream
        self._nonce = nonce
        self._read = b""

    @classmethod
    async def start(cls, box: Container, directory: str, environment: str, *, on_a_pty: bool) -> PlainBash:
        """`environment`: a file in the container with what `export -p` says in a terminal's shell."""
        nonce = f"<{secrets.token_hex(16)}>"
        variables = {"DRIVER": _DRIVER, "SHELL": "/bin/bash"}
        begin = "exec 3<&0 </dev/null; "
        # `script` would pass on what it reads, through the pty: the driver reads beside it.
        begin += "exec script -qfc" if on_a_pty else "exec bash -c"
        begin += """ 'eval "$DRIVER"'"""
        begin += " /dev/null" if on_a_pty else ""
        stream = await box.connect(["bash", "-c", begin], variables)
        bash = cls(stream, nonce.encode())
        output = "/dev/tty" if on_a_pty else f"{environment}.output"
        await stream.write("".join(f"{word}\0" for word in (nonce, directory, environment, output)).encode())
        await bash._until_told()
        return bash

    async def run(self, script: str) -> tuple[Files, Ran]:
        """The files that were in the directory before, which are gone then; and what became of the script."""
        await self._stream.write(script.encode() + b"\0")
        await self._until_told()
        before = _files(await self._until_told())
        printed, code, directory = [await self._until_told() for _ in range(3)]
        files = _files(await self._until_told())
        return before, Ran(printed, int(code), directory.decode() or None, files)

    async def close(self) -> None:
        await self._stream.close()

    async def _until_told(self) -> bytes:
        while self._nonce not in self._read:
            data = await self._stream.read()
            if not data:
                raise ConnectionError(f"plain bash ended: {self._read!r}")
            self._read += data
        told, _, self._read = self._read.partition(self._nonce)
        return told


def _files(archive: bytes) -> Files:
    if not archive:
        return {}
    with tarfile.open(fileobj=io.BytesIO(base64.b64decode(archive))) as tar:
        return {member.name: _file(tar, member) for member in tar.getmembers()}


def _file(tar: tarfile.TarFile, member: tarfile.TarInfo) -> File:
    content = tar.extractfile(member) if member.isreg() else None
    return File(member.type, member.mode, member.linkname.encode() if content is None else content.read())
