"""What only the place of publication tells of the package: its URLs, and where the README's links lead.

The repository is where git's remote `origin` is, so a fork names itself. A copy without one that the web knows is built
without URLs, and its README keeps the links that hold inside the repository.
"""

from __future__ import annotations

import re
import subprocess
from pathlib import Path
from typing import Any

from hatchling.metadata.plugin.interface import MetadataHookInterface

_LINK = re.compile(r"(?P<picture>!?)(?P<words>\[[^\]]*\])\((?!https?:|#|mailto:)(?P<path>[^)\s]+)\)")
_REMOTE = re.compile(
    r"(?:(?:https?|ssh|git)://(?:[^@/\s]*@)?(?P<host>[\w.-]+)(?::\d+)?/|[^@/\s]+@(?P<short>[\w.-]+):)(?P<path>[\w./~-]+)"
)
"""A URL, or ssh's short form."""


class Published(MetadataHookInterface):
    """Fills in `readme` and `urls`, which pyproject.toml declares as dynamic."""

    PLUGIN_NAME = "custom"

    def update(self, metadata: dict[str, Any]) -> None:
        """Set both for the checkout that is built; hatchling takes an sdist's from its PKG-INFO and does not ask."""
        root = Path(self.root)
        readme = (root / "README.md").read_text(encoding="utf-8")
        url = repository(origin(root))
        if url is not None:
            readme = absolute(readme, url)
            metadata["urls"] = {
                "Repository": url,
                "Documentation": f"{url}/blob/HEAD/docs/first-run.md",
                "Changelog": f"{url}/blob/HEAD/CHANGELOG.md",
                "Issues": f"{url}/issues",
            }
        metadata["readme"] = {"content-type": "text/markdown", "text": readme}


def origin(root: Path) -> str:
    """Where git fetches this checkout from; empty without git or remote, and for a folder of another checkout."""
    if not (root / ".git").exists():
        return ""
    try:
        asked = ["git", "-C", str(root), "remote", "get-url", "origin"]
        return subprocess.run(asked, capture_output=True, text=True, timeout=20, check=False).stdout.strip()
    except (OSError, subprocess.TimeoutExpired):
        return ""


def repository(remote: str) -> str | None:
    """The page of a remote, without a user's name or token; None for a path or a host that the web does not know."""
    found = _REMOTE.fullmatch(remote)
    host = found and (found["host"] or found["short"])
    if found is None or host is None or "." not in host:
        return None
    return f"https://{host}/{found['path'].strip('/').removesuffix('.git')}"


def absolute(readme: str, url: str) -> str:
    """A README whose relative links lead to the repository's pages, and its pictures to the files themselves."""

    def followed(link: re.Match[str]) -> str:
        place = "raw" if link["picture"] else "blob"
        return f"{link['picture']}{link['words']}({url}/{place}/HEAD/{link['path']})"

    return _LINK.sub(followed, readme)
