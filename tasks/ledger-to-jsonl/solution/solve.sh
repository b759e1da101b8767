#!/bin/bash
set -e
python3 - <<'PY'
import json
from pathlib import Path

data = Path("/app/ledger.ebc").read_bytes()
rows = []
for at in range(0, len(data), 60):
    record = data[at : at + 60]
    account, date, name, status = (record[a:b].decode("cp037") for a, b in ((0, 6), (6, 14), (14, 34), (34, 35)))
    memo = record[47:].decode("cp037").rstrip(" ")
    if status == "V":
        continue
    cents = int("".join(str(byte & 15) for byte in record[35:44]))
    sign = "-" if record[43] >> 4 == 0xD and cents else ""
    digits = record[44:47].hex()
    rows.append({
        "account": account,
        "date": f"{date[:4]}-{date[4:6]}-{date[6:]}",
        "name": name.rstrip(" "),
        "amount": f"{sign}{cents // 100}.{cents % 100:02}",
        "quantity": int(digits[:5]) * (-1 if digits[5] == "d" else 1),
        "memo": memo or None,
    })
rows.sort(key=lambda row: (row["account"], row["date"]))
text = "".join(json.dumps(row, ensure_ascii=False, separators=(",", ":")) + "\n" for row in rows)
Path("/app/ledger.jsonl").write_bytes(text.encode())
PY
sha256sum ledger.jsonl | cut -d' ' -f1 | tee ledger.sha256
