"""The last offset of each key, by which compaction finds superseded records.

The map takes about 200 bytes a key, so 100 MB at most. Keys longer than a digest are stored as one; two keys with one
digest of 160 bits do not happen.
"""

from hashlib import blake2b

MAX_KEYS = 500_000
DIGEST_SIZE = 20


class KeyMap:
    """The last offset of each key, for a bounded number of keys."""

    __slots__ = ("_max_keys", "_offsets")

    def __init__(self, max_keys: int = MAX_KEYS) -> None:
        self._offsets: dict[bytes, int] = {}
        self._max_keys = max_keys

    def put(self, key: bytes, offset: int) -> bool:
        """False, without storing anything, if the key is new and the map is full."""
        if len(key) >= DIGEST_SIZE:
            key = blake2b(key, digest_size=DIGEST_SIZE).digest()
        if len(self._offsets) >= self._max_keys and key not in self._offsets:
            return False
        self._offsets[key] = offset
        return True

    def supersedes(self, key: bytes, offset: int) -> bool:
        """Whether a later record has this key."""
        if len(key) >= DIGEST_SIZE:
            key = blake2b(key, digest_size=DIGEST_SIZE).digest()
        return self._offsets.get(key, -1) > offset
