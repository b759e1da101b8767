"""Makes the database, keeps its last transactions in the write-ahead log only, and wipes the start of its header."""

import sqlite3
from pathlib import Path

PAGE = 1024
WIPED = 24  # magic, page size, format versions and payload fractions
work, rescue = Path("/tmp/stock"), Path("/app/rescue")
work.mkdir()
rescue.mkdir(parents=True)

db = sqlite3.connect(work / "stock.db", isolation_level=None)
db.execute(f"PRAGMA page_size = {PAGE}")
db.execute("PRAGMA journal_mode = wal")
db.executescript(
    """
    CREATE TABLE items (id INTEGER PRIMARY KEY, name TEXT NOT NULL, shelf TEXT NOT NULL, quantity INTEGER, cents INTEGER);
    CREATE TABLE moves (id INTEGER PRIMARY KEY, item INTEGER REFERENCES items(id), change INTEGER, note TEXT);
    CREATE INDEX moves_by_item ON moves(item);
    """
)
for n in range(1, 61):
    item = (n, f"item-{n:03}", "ABCDEF"[n % 6], n * 7 % 23, 95 + n * n % 401)
    db.execute("INSERT INTO items VALUES (?, ?, ?, ?, ?)", item)
for n in range(1, 31):
    db.execute("INSERT INTO moves VALUES (?, ?, ?, ?)", (n, n * 11 % 60 + 1, n % 9 - 4, f"count {n}"))
db.execute("PRAGMA wal_checkpoint(TRUNCATE)")
db.execute("PRAGMA wal_autocheckpoint = 0")
db.execute("UPDATE items SET quantity = quantity + 5 WHERE shelf = 'C'")
db.execute("UPDATE items SET cents = 1999, name = 'item-17b' WHERE id = 17")
db.execute("DELETE FROM items WHERE id IN (8, 29, 50)")
for n in range(31, 34):
    db.execute("INSERT INTO moves VALUES (?, ?, ?, ?)", (n, n, -n, "late"))

data = bytearray((work / "stock.db").read_bytes())
log = (work / "stock.db-wal").read_bytes()
pages = {int.from_bytes(log[at : at + 4], "big") for at in range(32, len(log), 24 + PAGE)}
assert len(pages) > 3 and 1 not in pages, f"page 1 would bring the header back: {pages}"
data[:WIPED] = b"\xff" * WIPED
(rescue / "stock.db.damaged").write_bytes(data)
(rescue / "stock.db-wal.saved").write_bytes(log)
db.close()
