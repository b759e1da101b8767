"""Writes the untidy notes; a script, because their encodings and line ends would not survive an editor."""

from pathlib import Path

NOTES: dict[str, bytes] = {
    "garden/tomatoes.md": (
        "\ufeff# Tomatoes\r\n\r\nSow in March, 6 °C at night is too cold.\r\n\r\n"
        "- Matina  \r\n- Berner Rose\t\r\n"
    ).encode("utf-8"),
    "garden/compost.md": (
        "# Compost\n\nTwo parts brown, one part green.   \n"
        "Turn it every third week; near the café wall it dries out.\n\n\n\n"
    ).encode("latin-1"),
    "kitchen/rye-bread.md": (
        "draft, not tried yet\r\n#hashtag is no title\r\n# Rye bread  \r\n\r\n"
        "500 g rye, 400 ml water at 30 °C\r\n"
        "## Crust\r\nSteam for 10 min, then 240 °C."
    ).encode("latin-1"),
    "kitchen/jam.md": b"# Plum jam\r\rStone 2 kg of plums.\rBoil with 1 kg of sugar.\r",
    "house/boiler.md": b"# Boiler\n\r\nPressure: 1.4 bar \r\n\tvalve behind the panel\t \nService in October\r\n# Not the title\n",
    "house/paint colours.md": "# Paint – which is where\n\nHall: “Linen”\nKitchen: “Sage”".encode(),
    "house/old/roof.md": "# Dachfenster (Süd)\n\nDichtung geprüft.\n".encode(),
    "house/README.txt": b"These notes are read by a machine from 1987.  \r\nLeave this file as it is. \r\n\r\n",
}

for name, data in NOTES.items():
    path = Path("/app/notes") / name
    path.parent.mkdir(parents=True, exist_ok=True)
    path.write_bytes(data)
