"""Made-up tasks whose digest depends on ignore files, each with the digest by the packager of Harbor 0.25."""

from __future__ import annotations

from pathlib import Path

PLAIN = {
    "task.toml": "",
    "instruction.md": "Do it.\n",
    "README.md": "about\n",
    "environment/Dockerfile": "FROM scratch\n",
    "solution/solve.sh": "true\n",
    "tests/test.sh": "echo 1\n",
}
LITTER = {
    "tests/x.pyc": "compiled",
    "tests/x.log": "log",
    "tests/keep.log": "log",
    "tests/.DS_Store": "",
    "tests/__pycache__/y.py": "",
    "environment/a.swp": "",
    "environment/data~/inside": "",
    "environment/sub/b.log": "",
    "solution/solve.sh~": "",
    "NOTES": "not part of any digest",
}
VENV = {"tests/.venv/bin/python": "elf", "tests/.venv/keep": "kept", "tests/data/a.bin": "a", "tests/data/b.bin": "b"}
CASES: dict[str, dict[str, str]] = {
    "plain": PLAIN,
    "usual ignores": PLAIN | LITTER,
    "gitignore replaces them": PLAIN | LITTER | {".gitignore": "*.log\n"},
    "an empty gitignore": PLAIN | LITTER | {".gitignore": ""},
    "a gitignore with negation, anchor and folder": PLAIN
    | LITTER
    | {".gitignore": "# a comment\n*.log\n!keep.log\n/tests/x.pyc\n__pycache__/\n**/sub/\n"},
    "a gitignore that hides single files": PLAIN | {".gitignore": "README.md\n/tests/test.sh\n"},
    "a gitignore further in has no effect": PLAIN | LITTER | {"tests/.gitignore": "*.log\n"},
    "harborignore": PLAIN | VENV | {"tests/.harborignore": ".venv/\n*.bin\n"},
    "harborignore with negation": PLAIN | VENV | {"tests/.harborignore": "*.bin\n!b.bin\n.venv\n!.venv/keep\n"},
    "harborignore further in wins": PLAIN
    | VENV
    | {"tests/.harborignore": "*.bin\n", "tests/data/.harborignore": "!a.bin\n"},
    "harborignore in an excluded folder": PLAIN
    | VENV
    | {"tests/.harborignore": "data/\n", "tests/data/.harborignore": "!a.bin\n"},
    "harborignore anchored": PLAIN | VENV | {"tests/.harborignore": "/a.bin\n/data/b.bin\n"},
    "harborignore of the solution": PLAIN
    | {"solution/.harborignore": "draft*\n", "solution/draft.sh": "", "solution/sub/draft/x": ""},
    "harborignore of steps": PLAIN
    | {
        "steps/one/tests/.harborignore": "*.tmp\n",
        "steps/one/tests/a.tmp": "",
        "steps/one/solution/a.tmp": "",
        "steps/one/workdir/a.tmp": "",
        "steps/one/instruction.md": "Do.",
    },
    "harborignore counts nowhere else": PLAIN
    | {
        ".harborignore": "*\n",
        "environment/.harborignore": "*\n",
        "environment/data": "d",
        "steps/.harborignore": "*\n",
        "steps/one/.harborignore": "*\n",
        "steps/one/tests/t": "t",
    },
    "both kinds": PLAIN | LITTER | VENV | {".gitignore": "*.pyc\n*.bin\n", "tests/.harborignore": "*.log\n!x.log\n"},
    "trajectories": PLAIN | {"trajectory.json": "{}", "trajectory": "no part of it"},
    "links": PLAIN
    | {
        "tests/real/file": "x",
        "tests/alias": "-> real",
        "tests/again": "-> real/file",
        "tests/hidden": "-> .secret/file",
        "tests/.secret/file": "s",
        "tests/.harborignore": ".secret/\n",
    },
}
DIGESTS: dict[str, str] = {
    "plain": "c027502ef11f97a1f9b45c3d764ed65a3aba2bfb1f80f9b1c65d76e03530a204",
    "usual ignores": "ab2f9803a7c048cd8932d45fadfcd38c72dce638bf15f646e7dffd1082f612bb",
    "gitignore replaces them": "ffe5eeb73340a8078065b18928b0b81b127a5980a33257b2aefb8222c2e0342c",
    "an empty gitignore": "48334d08f442c6ecde2704980e1e09634249237636afaa4ed429b83f599be506",
    "a gitignore with negation, anchor and folder": "4e86eb57b5476af1988e8a66e4f1e43fbb06aca6bca43f5e21586eccc86ed29b",
    "a gitignore that hides single files": "0a83a5711595037e8e0f27302d3fae4f2b1dbc05739f24769da3df5011807ec5",
    "a gitignore further in has no effect": "59ab3dc0d99b2f23560d9e8630c79f333d415a88651fc2d6881f6f945646b167",
    "harborignore": "c027502ef11f97a1f9b45c3d764ed65a3aba2bfb1f80f9b1c65d76e03530a204",
    "harborignore with negation": "fa5ab8de6e50c760c2ea69904f3f58ccdcb85da210136ecfb5bb282f57653f62",
    "harborignore further in wins": "552af5ad10f7e5685c10e476b600c57aeca5be687552ac6fd93546b8cd0f69ca",
    "harborignore in an excluded folder": "6ab47105202097e607e4e874d2bdad74c8d295836791b55a210fbf2d829a7ac3",
    "harborignore anchored": "552af5ad10f7e5685c10e476b600c57aeca5be687552ac6fd93546b8cd0f69ca",
    "harborignore of the solution": "c027502ef11f97a1f9b45c3d764ed65a3aba2bfb1f80f9b1c65d76e03530a204",
    "harborignore of steps": "36128194c1d2279e33b90e66a54367c05e1dee03ca48dd28bb385c4352bb1210",
    "harborignore counts nowhere else": "c7eaaa68fe563e758d8433e29097e3bed7f77ad08c31453a2b8973697b337cd8",
    "both kinds": "055ca25ca93689566ff317dec801b7d37ca22fa7a534ced510b69f0f7478704e",
    "trajectories": "6dc51a7b62512016f4de20140c3c8ea5eb88bafd19641401d3bce1ade188cba4",
    "links": "1578237c609f8467b3868aa48b2356a5c3aa0b0710374128cd331ecc33074991",
}


def write_task(directory: Path, files: dict[str, str]) -> Path:
    """The task as files below `directory`; `-> target` makes a link."""
    for name, content in files.items():
        path = directory / name
        path.parent.mkdir(parents=True, exist_ok=True)
        if content.startswith("-> "):
            path.symlink_to(content[3:])
        else:
            path.write_text(content)
    return directory
