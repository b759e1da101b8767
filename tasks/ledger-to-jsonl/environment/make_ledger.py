"""Writes the ledger: 90 records of 60 bytes, in EBCDIC, with zoned and packed numbers."""

from pathlib import Path
from random import Random

NAMES = [
    "MÜLLER & SÖHNE",
    "O'HARA, PATRICIA",
    "SMITH",
    "ÅKERLUND",
    'PEÑA "EL RÁPIDO"',
    "DE LA CRUZ  ANA",
    "Ng",
    "LEFÈVRE",
]
MEMOS = ["", "", "REFUND", "PAID \\ CASH", "1/2 PRICE", "£ ONLY", "SEE #4"]


def zoned(cents: int, plain: bool) -> bytes:
    """Nine EBCDIC digits; the zone of the last one is the sign: C plus, D minus, F none."""
    digits = f"{abs(cents):09}"
    zone = 0xD0 if cents < 0 else 0xF0 if plain else 0xC0
    return bytes(0xF0 | int(digit) for digit in digits[:-1]) + bytes([zone | int(digits[-1])])


def packed(number: int) -> bytes:
    """Five digits and a sign, two to a byte."""
    return bytes.fromhex(f"{abs(number):05}{'d' if number < 0 else 'c'}")


def ledger() -> bytes:
    source = Random(411).random
    records = []

    def pick(things: list[str]) -> str:
        return things[int(source() * len(things))]

    for number in range(90):
        account = f"{int(source() * 30) * 331 + 7:06}"
        date = f"2024{int(source() * 3) + 1:02}{int(source() * 4) + 10:02}"
        name = pick(NAMES).ljust(20)
        status = "V" if source() < 0.15 else "A"
        cents = int((source() - 0.4) * 10 ** int(source() * 8))
        amount = zoned(cents, plain=source() < 0.3)
        if number in (20, 44):
            amount = b"\xf0" * 8 + b"\xd0"  # minus nothing
        quantity = packed(int(source() * 400) - 60)
        memo = pick(MEMOS).ljust(13)
        start = (account + date + name + status).encode("cp037")
        records.append(start + amount + quantity + memo.encode("cp037"))
    assert all(len(record) == 60 for record in records)
    return b"".join(records)


Path("/app/ledger.ebc").write_bytes(ledger())
