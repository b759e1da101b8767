#!/bin/bash
set -e
cat > /app/board.py <<'PY'
"""A note board in memory, on 127.0.0.1:8077."""

import itertools
import json
import threading
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer

notes: dict[str, bytes] = {}
ids = itertools.count(1)
lock = threading.Lock()


class Board(BaseHTTPRequestHandler):
    def answer(self, status: int, body: bytes = b"", kind: str = "text/plain") -> None:
        self.send_response(status)
        if status != 204:
            self.send_header("Content-Type", kind)
            self.send_header("Content-Length", str(len(body)))
        self.end_headers()
        self.wfile.write(body)

    def note_id(self) -> str:
        return self.path.removeprefix("/notes/") if self.path.startswith("/notes/") else ""

    def do_GET(self) -> None:
        if self.path == "/health":
            return self.answer(200, b"ok")
        body = notes.get(self.note_id())
        if body is None:
            return self.answer(404)
        return self.answer(200, body, "application/octet-stream")

    def do_POST(self) -> None:
        body = self.rfile.read(int(self.headers.get("Content-Length", 0)))
        if self.path != "/notes":
            return self.answer(404)
        with lock:
            number = next(ids)
            notes[str(number)] = body
        return self.answer(201, json.dumps({"id": number}).encode(), "application/json")

    def do_DELETE(self) -> None:
        with lock:
            found = notes.pop(self.note_id(), None)
        self.answer(404 if found is None else 204)


ThreadingHTTPServer(("127.0.0.1", 8077), Board).serve_forever()
PY
setsid nohup python3 /app/board.py > /app/board.log 2>&1 < /dev/null &
for _ in $(seq 50); do
  python3 -c 'import urllib.request as u; u.urlopen("http://127.0.0.1:8077/health")' 2>/dev/null && exit 0
  sleep 0.1
done
exit 1
