"""Checks the history, the files and the state of the repaired repository."""

import subprocess

OLD_COMMITS = [
    "9e225452b5e19e28b2c83b8f13a2dec35aedcf2c",
    "b6a5f17f1df06153c95b00b78e57b634160f68aa",
    "157cf5a58ca31a61ba02b2d3193bf06193baf10d",
    "e2f0c0e186217763433e57c2db0a4e18edd08462",
]
RESTORED = [
    "Mara Lind|Mara@example.org|2024-02-06T14:00:00+01:00|Add simple interest",
    "Mara Lind|Mara@example.org|2024-02-07T10:45:00+01:00|Round interest half up",
]
FILES = {
    "LICENCE.md": "\n## Licence\n\nPublic domain.\n",
    "README.md": "# savings\n\nSmall sums, kept in cents.\n\nInterest is rounded half up.\n",
    "account.py": '''"""An account holds whole cents."""


class Account:
    def __init__(self, cents: int = 0) -> None:
        self.cents = cents

    def deposit(self, cents: int) -> None:
        self.cents += cents

    def withdraw(self, cents: int) -> None:
        if cents > self.cents:
            raise ValueError("not enough money")
        self.cents -= cents
''',
    "interest.py": '''"""Simple interest in whole cents."""


def interest(cents: int, basis_points: int, days: int) -> int:
    """Interest for `days` days, rounded half up."""
    year = 10_000 * 365
    return (2 * cents * basis_points * days + year) // (2 * year)
''',
}


def git(*arguments: str) -> str:
    command = ["git", "-C", "/app/savings", *arguments]
    return subprocess.run(command, check=True, capture_output=True, text=True, timeout=30).stdout


def test_main_is_the_old_commits_and_the_two_restored_ones() -> None:
    assert git("rev-list", "--reverse", "main").split()[:-2] == OLD_COMMITS
    assert git("rev-list", "--merges", "main") == ""
    log = git("log", "--reverse", "--format=%an|%ae|%aI|%B%x00", "main").split("\0")
    assert [entry.strip() for entry in log if entry.strip()][-2:] == RESTORED


def test_the_last_commit_has_the_right_files() -> None:
    names = git("ls-tree", "-r", "--name-only", "main").split()
    assert {name: git("show", f"main:{name}") for name in names} == FILES


def test_the_first_restored_commit_changes_only_interest_py() -> None:
    assert git("log", "-1", "--format=%an", "main~1").strip() == "Mara Lind"
    assert git("diff", "--name-status", "main~2", "main~1").split() == ["A", "interest.py"]
    assert "basis_points * days // (10_000 * 365)" in git("show", "main~1:interest.py")


def test_main_is_checked_out_clean_and_the_only_branch() -> None:
    assert git("symbolic-ref", "HEAD").strip() == "refs/heads/main"
    assert git("status", "--porcelain") == ""
    assert git("for-each-ref", "--format=%(refname)", "refs/heads").split() == ["refs/heads/main"]
