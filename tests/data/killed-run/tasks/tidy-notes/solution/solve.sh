#!/bin/bash
set -e
python3 - <<'PY'
import re
from pathlib import Path

root = Path("/app/notes")
index = []
for path in root.rglob("*.md"):
    data = path.read_bytes()
    try:
        text = data.decode("utf-8-sig")
    except UnicodeDecodeError:
        text = data.decode("latin-1")
    lines = [line.rstrip(" \t") for line in re.split(r"\r\n|\r|\n", text)]
    while lines and not lines[-1]:
        lines.pop()
    path.write_bytes("".join(line + "\n" for line in lines).encode())
    title = next(line[2:] for line in lines if line.startswith("# "))
    index.append((str(path.relative_to(root)), title, len(lines)))
index.sort(key=lambda row: row[0].encode())
Path("/app/index.tsv").write_bytes("".join(f"{p}\t{t}\t{n}\n" for p, t, n in index).encode())
PY
