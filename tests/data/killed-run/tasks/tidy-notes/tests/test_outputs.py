"""Checks the tidied notes and their index against the texts given here."""

from pathlib import Path

NOTES = Path("/app/notes")
INDEX = Path("/app/index.tsv")

TIDY: dict[str, str] = {
    "garden/compost.md": (
        "# Compost\n\nTwo parts brown, one part green.\n"
        "Turn it every third week; near the café wall it dries out.\n"
    ),
    "garden/tomatoes.md": (
        "# Tomatoes\n\nSow in March, 6 °C at night is too cold.\n\n- Matina\n- Berner Rose\n"
    ),
    "house/boiler.md": (
        "# Boiler\n\nPressure: 1.4 bar\n\tvalve behind the panel\nService in October\n# Not the title\n"
    ),
    "house/old/roof.md": "# Dachfenster (Süd)\n\nDichtung geprüft.\n",
    "house/paint colours.md": "# Paint – which is where\n\nHall: “Linen”\nKitchen: “Sage”\n",
    "kitchen/jam.md": "# Plum jam\n\nStone 2 kg of plums.\nBoil with 1 kg of sugar.\n",
    "kitchen/rye-bread.md": (
        "draft, not tried yet\n#hashtag is no title\n# Rye bread\n\n500 g rye, 400 ml water at 30 °C\n"
        "## Crust\nSteam for 10 min, then 240 °C.\n"
    ),
}
UNTOUCHED = {
    "house/README.txt": b"These notes are read by a machine from 1987.  \r\nLeave this file as it is. \r\n\r\n",
}
EXPECTED_INDEX = (
    "garden/compost.md\tCompost\t4\n"
    "garden/tomatoes.md\tTomatoes\t6\n"
    "house/boiler.md\tBoiler\t6\n"
    "house/old/roof.md\tDachfenster (Süd)\t3\n"
    "house/paint colours.md\tPaint – which is where\t4\n"
    "kitchen/jam.md\tPlum jam\t4\n"
    "kitchen/rye-bread.md\tRye bread\t7\n"
)


def test_every_note_is_tidy() -> None:
    found = {name: (NOTES / name).read_bytes() for name in TIDY}
    assert found == {name: text.encode() for name, text in TIDY.items()}


def test_other_files_are_untouched_and_none_was_added() -> None:
    assert {name: (NOTES / name).read_bytes() for name in UNTOUCHED} == UNTOUCHED
    files = {str(path.relative_to(NOTES)) for path in NOTES.rglob("*") if not path.is_dir()}
    assert files == {*TIDY, *UNTOUCHED}


def test_the_index_is_exact() -> None:
    assert INDEX.read_bytes() == EXPECTED_INDEX.encode()
