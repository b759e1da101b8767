"""Images: their names in registries, and the known facts about one."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field, replace
from typing import Any, Literal

from tbench.results import ImageOrigin
from tbench.sandbox.container_proxy import PROXY_VARIABLES
from tbench.sandbox.owner import LABEL_ORIGINAL
from tbench.sandbox.startup import NO_STARTUP, Startup

HUB = "docker.io"
"""Registry of image names without a registry."""


@dataclass(frozen=True)
class ImageName:
    """An image name as in a task, such as `debian:12`, `HOST:5000/lab/tool:1` or `lab/tool:1@sha256:…`."""

    text: str
    """The whole name as given."""
    repository: str
    """The name without tag and digest, with the registry if given."""
    tag: str | None
    digest: str | None
    """`sha256:…` of a pinned image; None otherwise."""

    @classmethod
    def parse(cls, text: str) -> ImageName:
        """Parse a name; without tag and digest the tag is `latest`."""
        named, _, digest = text.partition("@")
        repository, colon, tag = named.rpartition(":")
        if not colon or "/" in tag:
            repository, tag = named, "" if digest else "latest"
        return cls(text, repository, tag or None, digest or None)

    @property
    def version(self) -> str:
        """The digest if there is one, since engines accept no tag with it; otherwise the tag."""
        return self.digest or self.tag or "latest"

    @property
    def reference(self) -> str:
        """The name by which the engine pulls and finds the image."""
        return f"{self.repository}@{self.digest}" if self.digest else f"{self.repository}:{self.version}"

    @property
    def display_name(self) -> str:
        """The name for messages: as given, with a shortened digest."""
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


@dataclass(frozen=True)
class Image:
    """An image on the engine, with its configuration."""

    id: str
    reference: str
    user: str
    workdir: str
    has_locale: bool
    has_home: bool = False
    size: int = 0
    """Bytes on the engine's disk, including layers shared with other images."""
    original: str = ""
    """For a snapshot, the id of the sandbox's own image; otherwise empty."""
    triggers: tuple[str, ...] = ()
    """ONBUILD instructions, which run in builds with this image in FROM."""
    digests: tuple[str, ...] = ()
    """Names in registries with digests: `name@sha256:…`."""
    origin: ImageOrigin | None = None
    """Origin of a task's image; None for other images."""
    proxies: Mapping[str, str] = field(default_factory=dict)
    """Proxy variables set by the image."""
    startup: Startup = NO_STARTUP
    """Commands that the image starts in its containers; for a snapshot, those of its original image."""

    @classmethod
    def from_inspection(cls, reference: str, inspection: dict[str, Any]) -> Image:
        config = inspection.get("Config") or {}
        variables = dict(variable.partition("=")[::2] for variable in config.get("Env") or ())
        names = variables.keys()
        return cls(
            id=inspection["Id"],
            reference=reference,
            user=config.get("User") or "",
            workdir=config.get("WorkingDir") or "/",
            has_locale=bool(names & {"LANG", "LC_ALL", "LC_CTYPE"}),
            triggers=tuple(config.get("OnBuild") or ()),
            has_home="HOME" in names,
            size=int(inspection.get("Size") or 0),
            original=(config.get("Labels") or {}).get(LABEL_ORIGINAL, ""),
            digests=tuple(inspection.get("RepoDigests") or ()),
            proxies={name: value for name in PROXY_VARIABLES if (value := variables.get(name))},
            startup=Startup.from_config(config),
        )

    def as_published(self, how: Literal["pulled", "present"]) -> Image:
        """Return this image with the origin of a published one."""
        name = ImageName.parse(self.reference)
        # The engine may know one image by several names; Podman lists short names in full.
        own = [each for each in self.digests if each.partition("@")[0].endswith(name.repository)] or list(self.digests)
        digest = name.digest or (own[0].partition("@")[2] if own else None)
        return replace(self, origin=ImageOrigin(how=how, reference=self.reference, digest=digest))

    def built(self, how: Literal["built", "present"]) -> Image:
        """Return this image with the origin of one built from a task; its tag is the hash of environment/."""
        built_from = self.reference.rpartition(":")[2]
        return replace(self, origin=ImageOrigin(how=how, reference=self.reference, built_from=built_from))
