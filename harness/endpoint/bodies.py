"""Reads the bodies of answers with bounded memory, whatever a server sends: compressed data, nested JSON, HTML pages.

An answer out of bounds is reported as a failure of the endpoint, and takes at most some 200 MB of memory.
"""

from __future__ import annotations

import asyncio
import contextlib
import html
import json
import re
import zlib
from collections.abc import AsyncIterator, Iterator
from typing import Any, NamedTuple

from harness.endpoint.retry import TransientError

ENCODINGS = "gzip, deflate"
"""Accepted encodings: those that the standard library decompresses piece by piece."""
MAX_BYTES = 32 << 20
"""Largest decompressed body. A reply of 16,384 tokens with ids and log probabilities has 2 MB, with five alternatives
per token 10 MB; a reply of 131,072 tokens has 17 MB; a prompt's million ids have 7 MB."""
_MAX_ERROR_BYTES = 256 << 10
"""Maximum number of bytes read of a refusal's body."""
_MAX_DECODED_BYTES = 180 << 20
"""Maximum memory for the decoded JSON of a body."""
_MAX_LEVELS = 100
"""Deepest JSON: a reply has about ten levels, and later processing is recursive."""
_LARGE_BYTES = 1 << 20
"""Size above which bodies are read and decoded one at a time."""
_PIECE_BYTES = 256 << 10
_PAGE = re.compile(r"\s*(?:\ufeff\s*)?<(?:!doctype|html|head|body|\?xml|!--|h[1-6]|title|center|p)\b", re.IGNORECASE)
_HEADINGS = re.compile(r"<(title|h[1-6])\b[^<>]*>([^<]{1,300})", re.IGNORECASE)
_MARKUP = re.compile(r"<(?:style|script)\b.*?(?:</(?:style|script)\s*>|\Z)|<[^>]*>?", re.IGNORECASE | re.DOTALL)


class RawAnswer(NamedTuple):
    """A decompressed answer. The body of a refusal may be truncated."""

    status: int
    content: bytes
    content_type: str = ""
    server: str = ""
    """The header `Server`."""
    retry_after: str | None = None

    @property
    def text(self) -> str:
        return self.content.decode("utf-8", "replace")

    @property
    def is_page(self) -> bool:
        """Whether it is an HTML page, by its content type or its beginning."""
        kind = self.content_type.partition(";")[0].strip().lower()
        return kind in {"text/html", "application/xhtml+xml"} or bool(_PAGE.match(self.text[:200]))

    @property
    def words(self) -> str:
        """Text of an answer that is not JSON: a page's title and headings, or else its beginning, without markup."""
        if not self.is_page:
            return self.text
        found = dict.fromkeys(" ".join(words.split()) for _, words in _HEADINGS.findall(self.text))
        plain = "; ".join(filter(None, found)) or " ".join(_MARKUP.sub(" ", self.text).split())[:200]
        return html.unescape(plain)

    def json(self) -> Any:
        """Return the decoded body. Raises ValueError if it is not JSON, or too large or deep to process."""
        if len(self.content) > 4 * _LARGE_BYTES and _decoded_bytes(self.content) > _MAX_DECODED_BYTES:
            megabytes = len(self.content) >> 20
            raise OutOfBoundsError(f"{megabytes} MB of JSON with too many values to fit into memory")
        try:
            value = json.loads(self.content)
        except RecursionError:
            raise _too_deep() from None
        # Counting the opening brackets is cheap, and enough for nearly every reply.
        if self.content.count(b"[") + self.content.count(b"{") > _MAX_LEVELS and _is_deep(value):
            raise _too_deep()
        return value


class OutOfBoundsError(ValueError):
    """Raised for a body that exceeds a limit; the message says which."""


class BodyReader:
    """Reads the bodies of one server's answers."""

    def __init__(self) -> None:
        self._one_large = asyncio.Lock()

    @contextlib.asynccontextmanager
    async def read(self, response: Any) -> AsyncIterator[RawAnswer]:
        """Yield the answer in an httpx response, with its body. Raises TransientError.

        While a large body is yielded, no other large body is in memory.
        """
        status, headers = response.status_code, response.headers
        is_good = 200 <= status < 300
        body = bytearray()
        async with contextlib.AsyncExitStack() as stack:
            is_large = False
            try:
                async with contextlib.aclosing(response.aiter_raw()) as pieces:
                    unpacked = _unpacker_for(headers.get("content-encoding", ""))
                    async for packed in pieces:
                        for piece in unpacked(packed):
                            body += piece
                            if len(body) > (MAX_BYTES if is_good else _MAX_ERROR_BYTES):
                                raise OutOfBoundsError(f"a body of more than {MAX_BYTES >> 20} MB")
                            if not is_large and len(body) > _LARGE_BYTES:
                                await stack.enter_async_context(self._one_large)
                                is_large = True
            except (OutOfBoundsError, zlib.error) as error:
                if is_good:
                    raise rejected_body_error(status, error) from None
            del body[_MAX_ERROR_BYTES if not is_good else MAX_BYTES :]
            yield RawAnswer(
                status,
                bytes(body),
                headers.get("content-type", ""),
                headers.get("server", ""),
                headers.get("retry-after"),
            )


def rejected_body_error(status: int, why: Exception) -> TransientError:
    """Return the error for a rejected body; if it was too large, a retry costs the server a whole reply."""
    words = "a body that is not compressed as declared" if isinstance(why, zlib.error) else str(why)
    return TransientError(f"HTTP {status} with {words}", costly=isinstance(why, OutOfBoundsError))


def _unpacker_for(encoding: str) -> Any:
    """Return a function that decompresses parts of a body into pieces of bounded size. Raises OutOfBoundsError."""
    encodings = [name for each in encoding.lower().split(",") if (name := each.strip()) not in {"", "identity"}]
    if not encodings:
        return lambda packed: (packed,)
    if len(encodings) > 1 or encodings[0] not in {"gzip", "x-gzip", "deflate"}:
        raise OutOfBoundsError(f"a body in the encoding {encoding[:40]!r}, which was not requested")
    return _Unpacker()


class _Unpacker:
    """Decompresses gzip, and deflate with or without its header."""

    def __init__(self) -> None:
        self._stream = zlib.decompressobj(zlib.MAX_WBITS | 32)
        self._is_first = True

    def __call__(self, packed: bytes) -> Iterator[bytes]:
        is_more = True
        while is_more and not self._stream.eof:
            try:
                piece = self._stream.decompress(packed, _PIECE_BYTES)
            except zlib.error:
                if not self._is_first:
                    raise
                self._stream = zlib.decompressobj(-zlib.MAX_WBITS)
                piece = self._stream.decompress(packed, _PIECE_BYTES)
            self._is_first = False
            packed = self._stream.unconsumed_tail
            is_more = bool(packed) or len(piece) == _PIECE_BYTES
            yield piece


def _decoded_bytes(content: bytes) -> int:
    """Estimate generously the memory for decoding: the text twice, and each value."""
    text = len(content) * (1 if content.isascii() else 4)
    values = 32 * content.count(b",") + 30 * content.count(b'"') + 200 * content.count(b"{") + 64 * content.count(b"[")
    return 2 * text + values


def _is_deep(value: object) -> bool:
    level = [value]
    for _ in range(_MAX_LEVELS):
        level = [
            inner
            for outer in level
            if isinstance(outer, dict | list)
            for inner in (outer.values() if isinstance(outer, dict) else outer)
            if isinstance(inner, dict | list)
        ]
        if not level:
            return False
    return True


def _too_deep() -> OutOfBoundsError:
    return OutOfBoundsError(f"JSON of more than {_MAX_LEVELS} levels")
