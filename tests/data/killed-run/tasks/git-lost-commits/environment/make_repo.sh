#!/bin/bash
# Builds /app/savings with fixed dates, so that every commit has the same hash in every build.
set -e
git config --global init.defaultBranch main
git init -q /app/savings
cd /app/savings
git config user.name "Desk" && git config user.email "desk@example.org"

commit() { # who, date, message: everything in the work tree
  git add -A
  GIT_AUTHOR_NAME="$1" GIT_AUTHOR_EMAIL="${1%% *}@example.org" GIT_AUTHOR_DATE="$2" GIT_COMMITTER_DATE="$2" \
    git commit -q -m "$3"
}

printf '# savings\n\nSmall sums, kept in cents.\n' > README.md
commit "Mara Lind" "2024-02-05T09:00:00+01:00" "Start the savings project"

cat > account.py <<'PY'
"""An account holds whole cents."""


class Account:
    def __init__(self, cents: int = 0) -> None:
        self.cents = cents

    def deposit(self, cents: int) -> None:
        self.cents += cents
PY
commit "Mara Lind" "2024-02-05T11:30:00+01:00" "Add accounts"

cat >> account.py <<'PY'

    def withdraw(self, cents: int) -> None:
        if cents > self.cents:
            raise ValueError("not enough money")
        self.cents -= cents
PY
commit "Olu Adeyemi" "2024-02-06T08:15:00+01:00" "Allow withdrawals"

# An experiment that was thrown away on purpose.
cat > interest.py <<'PY'
def interest(cents, rate, days):
    return cents * rate * days / 365  # floats!
PY
commit "Olu Adeyemi" "2024-02-06T09:00:00+01:00" "WIP: interest with floats, do not use"
git reset -q --hard HEAD~1

# The two commits that got lost.
cat > interest.py <<'PY'
"""Simple interest in whole cents."""


def interest(cents: int, basis_points: int, days: int) -> int:
    return cents * basis_points * days // (10_000 * 365)
PY
commit "Mara Lind" "2024-02-06T14:00:00+01:00" "Add simple interest"

cat > interest.py <<'PY'
"""Simple interest in whole cents."""


def interest(cents: int, basis_points: int, days: int) -> int:
    """Interest for `days` days, rounded half up."""
    year = 10_000 * 365
    return (2 * cents * basis_points * days + year) // (2 * year)
PY
printf '\nInterest is rounded half up.\n' >> README.md
commit "Mara Lind" "2024-02-07T10:45:00+01:00" "Round interest half up"
git reset -q --hard HEAD~2

printf '\n## Licence\n\nPublic domain.\n' > LICENCE.md
commit "Desk" "2024-02-08T16:20:00+01:00" "Add a licence"

rm -rf .git/logs .git/ORIG_HEAD
