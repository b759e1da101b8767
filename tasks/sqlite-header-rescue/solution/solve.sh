#!/bin/bash
set -e
cp rescue/stock.db-wal.saved stock.db-wal
python3 - <<'PY'
from pathlib import Path

size = int.from_bytes(Path("/app/stock.db-wal").read_bytes()[8:12], "big")
header = b"SQLite format 3\0" + (1 if size == 65536 else size).to_bytes(2, "big") + bytes([2, 2, 0, 64, 32, 32])
data = Path("/app/rescue/stock.db.damaged").read_bytes()
Path("/app/stock.db").write_bytes(header + data[len(header):])
PY
sqlite3 stock.db 'PRAGMA wal_checkpoint(TRUNCATE); PRAGMA journal_mode = delete; PRAGMA integrity_check;'
