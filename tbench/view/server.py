"""The server of `tbench view`: a thread for each connection, beside those that watch runs and write pages."""

from __future__ import annotations

from typing import Self

from tbench.serving.local_server import LocalServer
from tbench.view.requests import ViewHandler
from tbench.view.viewing import Viewing


class ViewServer(LocalServer):
    """Serves the pages in a folder, and what happens below others. A context manager, whose end ends every thread."""

    def __init__(self, viewing: Viewing) -> None:
        """Raises OSError where the port is taken."""
        self.viewing = viewing
        self.address_family = viewing.address.family
        super().__init__((viewing.address.host, viewing.address.port), ViewHandler)

    @property
    def url(self) -> str:
        """What a user opens."""
        return self.viewing.address.url(self.port)

    def __enter__(self) -> Self:
        self.viewing.begin()
        return self

    def __exit__(self, *_: object) -> None:
        self.end()

    def end(self) -> None:
        """Close every connection and end every thread."""
        self.viewing.end()
        self.close()
