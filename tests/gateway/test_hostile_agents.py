"""A program in a real container that uses the endpoint badly in every way that it can think of."""

from __future__ import annotations

import asyncio
import resource
import time
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

import pytest
from conftest import MakeTask, StartSandbox

from harness.trajectory import Message, Reply, Usage
from tbench.gateway.connections import PROGRAM, Connections
from tbench.gateway.server import Gateway
from tbench.sandbox.backend import TOOLS

pytestmark = [pytest.mark.engine, pytest.mark.slow]

# Each attack prints what came of it in one line.
HOSTILE = r"""
use strict; use IO::Socket::INET; use Socket;
$SIG{PIPE} = "IGNORE"; $| = 1;
my ($port, $key, $other) = @ARGV;
sub dial { IO::Socket::INET->new(PeerAddr => "127.0.0.1:$port", Timeout => 20) }
sub answer { my ($socket) = @_; my $text = ""; local $SIG{ALRM} = sub { die "late" };
             eval { alarm 60; while (sysread($socket, my $more, 65536)) { $text .= $more } alarm 0 }; $text }
sub head { my ($path, $length, $key) = @_;
           "POST $path HTTP/1.1\r\nHost: x\r\nAuthorization: Bearer $key\r\n" .
           "Connection: close\r\nContent-Length: $length\r\n\r\n" }
sub ask { my ($path, $body, $key) = @_; my $socket = dial() or return "no connection";
          print $socket head($path, length $body, $key) . $body; (split /\r\n/, answer($socket))[0] // "nothing" }
my $body = '{"model": "gpt-of-somebody-else", "messages": [{"role": "user", "content": "Hello"}]}';
my $chat = "/v1/chat/completions";
print "other secret: ", ask($chat, $body, $other), "\n";
print "path: ", ask("/v1/../../etc/passwd", $body, $key), "\n";
print "encoded path: ", ask("/v1/%2e%2e/%2e%2e/proc/self/environ", $body, $key), "\n";
print "absolute: ", ask("http://169.254.169.254/latest/meta-data", $body, $key), "\n";
print "another model: ", ask($chat, $body, $key), "\n";
print "deep: ", ask($chat, "[" x 1000000, $key), "\n";

# 1 GB, said and unsaid
my $socket = dial(); print $socket head($chat, 1 << 30, $key);
print "1 GB: ", (split /\r\n/, answer($socket))[0], "\n";
$socket = dial();
print $socket "POST $chat HTTP/1.1\r\nHost: x\r\nAuthorization: Bearer $key\r\nTransfer-Encoding: chunked\r\n\r\n";
my ($sent, $piece) = (0, "100000\r\n" . ("x" x (1 << 20)) . "\r\n");
while ($sent < 1024) { last unless print $socket $piece; $sent++ }
print "1 GB in pieces: ", $sent < 1024 ? "hung up" : "taken", "\n";

# Large requests, all at once, which have to be parsed
my $large = '{"messages": [{"role": "user", "content": "' . ("x" x (8 << 20)) . '"}]}';
my @at_once = map { dial() } 1 .. 12;
for my $one (@at_once) { if (!fork) { print $one head($chat, length $large, $key) . $large; exit } }
wait for 1 .. 12;
my $answered = grep { defined && answer($_) =~ /^HTTP.1.1 200/ } @at_once;
print "large at once: $answered\n";

# Half a request and no more, by 1,000 clients; then half-closed and hung up
my @slow; for (1 .. 1000) { my $one = IO::Socket::INET->new(PeerAddr => "127.0.0.1:$port", Timeout => 0.01) or next;
                            syswrite $one, "POST $chat HTTP/1.1\r\nHost"; push @slow, $one }
print "connections: ", scalar(@slow) > 100 ? "many" : "few", "\n";
close $_ for @slow; undef @slow;
$socket = dial(); print $socket head($chat, length $body, $key) . $body; shutdown($socket, 1);
print "half-closed: ", (split /\r\n/, answer($socket))[0] // "nothing", "\n";
for (1 .. 50) { my $one = dial() or next; print $one head($chat, length $body, $key) . $body; close $one }
$socket = dial(); print $socket "\x16\x03\x01 no HTTP at all \x00\xff" x 100 . "\r\n\r\n";
print "nonsense: ", (split /\r\n/, answer($socket))[0] // "nothing", "\n";
print "at last: ", ask($chat, $body, $key), "\n";
"""


async def note_work(seconds: list[float]) -> None:
    """Note what the event loop computes before others get their turn, which does not depend on the machine's load."""
    before = time.thread_time()
    while True:
        await asyncio.sleep(0.01)
        now = time.thread_time()
        seconds.append(now - before)
        before = now


async def test_an_endpoint_stands_what_a_hostile_program_does_and_the_loop_stays_responsive(
    make_task: MakeTask, start_sandbox: StartSandbox, tools_volume: str, tmp_path: Path
) -> None:
    asked: list[tuple[str, int]] = []

    async def ask(messages: Sequence[Message], max_tokens: int, tools: Sequence[Mapping[str, Any]]) -> Reply:
        asked.append((messages[-1].content[:10], max_tokens))
        return Reply(content="Hi", usage=Usage(prompt_tokens=5, completion_tokens=1))

    sandbox = await start_sandbox(make_task())
    gateway = Gateway(ask, secret="own", model="tiny", max_tokens=100, context_tokens=4096)
    worked: list[float] = []
    watch = asyncio.create_task(note_work(worked))
    before_kb = resource.getrusage(resource.RUSAGE_SELF).ru_maxrss
    try:
        async with Connections(sandbox.connect, f"{TOOLS}/bin/{PROGRAM}", gateway.serve).listen() as (port, serving):
            script = f"cat >/tmp/hostile.pl && perl /tmp/hostile.pl {port} own others"
            ended = await sandbox.shell(script, timeout_sec=300, stdin=HOSTILE.encode())
            assert not serving.done()
    finally:
        watch.cancel()
        await gateway.close()
    output = ended.output.decode()
    assert ended.exit_code == 0, output
    found = dict(line.split(": ", 1) for line in output.splitlines())
    refused, answered = "HTTP/1.1 401 Unauthorized", "HTTP/1.1 200 OK"
    assert found["other secret"] == refused
    for path in ("path", "encoded path", "absolute"):
        assert found[path] == "HTTP/1.1 404 Not Found", path
    assert found["deep"] == "HTTP/1.1 400 Bad Request"
    assert found["1 GB"] == "HTTP/1.1 413 Request Entity Too Large"
    assert found["1 GB in pieces"] == "hung up"
    assert found["large at once"] == "12"
    assert found["connections"] == "many"
    assert found["half-closed"] in (answered, "nothing")
    assert found["nonsense"] == "HTTP/1.0 400 Bad Request"
    assert found["another model"] == found["at last"] == answered
    assert {tokens for _, tokens in asked} == {100}
    worked.sort()
    assert worked[int(len(worked) * 0.99)] < 0.05, worked[-20:]
    assert worked[-1] < 0.5
    grown_mb = (resource.getrusage(resource.RUSAGE_SELF).ru_maxrss - before_kb) >> 10
    assert grown_mb < 600
