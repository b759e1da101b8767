"""The name of a published image, taken apart: registry, repository, tag, digest."""

from __future__ import annotations

from dataclasses import dataclass

HUB = "docker.io"
"""The registry of names that name none."""


@dataclass(frozen=True)
class ImageName:
    """A name as a task gives it, such as `debian:12`, `HOST:5000/lab/tool:1` or `lab/tool:1@sha256:…`."""

    text: str
    """As it was given."""
    repository: str
    """Without tag and digest, with the registry where it was given."""
    tag: str | None
    digest: str | None
    """`sha256:…` of an image that is pinned; None for whatever the tag stands for."""

    @classmethod
    def parse(cls, text: str) -> ImageName:
        """Take a name apart; one without tag and digest stands for its tag `latest`."""
        named, _, digest = text.partition("@")
        repository, colon, tag = named.rpartition(":")
        if not colon or "/" in tag:
            repository, tag = named, "" if digest else "latest"
        return cls(text, repository, tag or None, digest or None)

    @property
    def version(self) -> str:
        """What is asked for: the digest where there is one, as engines take no tag beside it; else the tag."""
        return self.digest or self.tag or "latest"

    @property
    def wanted(self) -> str:
        """The name by which the engine knows the image, and by which it is pulled."""
        return f"{self.repository}@{self.digest}" if self.digest else f"{self.repository}:{self.version}"

    @property
    def shown(self) -> str:
        """The name for a message, as it was given but for the greater part of a digest."""
        return f"{self.text.partition('@')[0]}@{self.digest[:19]}" if self.digest else self.text

    @property
    def registry(self) -> str:
        """Host and port, or `docker.io`."""
        return self._parts[0]

    @property
    def path(self) -> str:
        """The repository within its registry."""
        registry, path = self._parts
        return f"library/{path}" if registry == HUB and "/" not in path else path

    @property
    def _parts(self) -> tuple[str, str]:
        first, slash, rest = self.repository.partition("/")
        if slash and ("." in first or ":" in first or first == "localhost"):
            return first, rest
        return HUB, self.repository
