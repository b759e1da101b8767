"""A value that can be compared with, but not read. Its source is added to control tests, for the Python of any task."""


class SealedValue:
    """Equal to one value, of which it knows only a hash."""

    def __init__(self, hashed: str, salt: str) -> None:
        self.hashed, self.salt = hashed, salt

    def __eq__(self, other: object) -> bool:
        return self.hash(other, self.salt) == self.hashed

    __hash__ = object.__hash__

    @classmethod
    def hash(cls, value: object, salt: str) -> str:
        """Return a hash that is slow to compute, so that trying many values takes long."""
        import hashlib

        text = repr(cls.plain(value)).encode("utf-8", "replace")
        return hashlib.pbkdf2_hmac("sha256", text, salt.encode(), 20000).hex()

    @classmethod
    def plain(cls, value: object) -> object:
        """Return a number as float and a sequence as list: the task's own tests have compared the types."""
        if isinstance(value, str):
            return str.__str__(value)
        if isinstance(value, bytes):
            return bytes(value)
        if isinstance(value, dict):
            return sorted(repr(cls.plain(each)) for each in value.items())
        try:
            return float(value)  # type: ignore[arg-type]
        except (TypeError, ValueError, OverflowError):
            pass
        try:
            parts = [cls.plain(each) for each in value]  # type: ignore[attr-defined]
        except TypeError:
            return repr(value)
        return sorted(parts, key=repr) if isinstance(value, (set, frozenset)) else parts
