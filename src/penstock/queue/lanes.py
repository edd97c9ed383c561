"""Key order: the undone messages of one key stand in a lane, and only the first of a lane may be handed out.

A lane is a chain of offsets. It knows nothing of states: who is first stays first through leases, releases, retry
delays and members that come and go, until it is done. So order does not rest on which member has what: there is no
assignment of keys to members that would have to be moved when members change.

A key with one message costs one dictionary entry, each message behind it three more.
"""


class Lanes:
    """Chains of offsets by key."""

    def __init__(self) -> None:
        self._last: dict[int, int] = {}
        self._after: dict[int, int] = {}
        self._before: dict[int, int] = {}

    def __len__(self) -> int:
        return len(self._last)

    def join(self, offset: int, key: int) -> bool:
        """Offsets join in their order; returns whether this one has to wait."""
        before = self._last.get(key)
        self._last[key] = offset
        if before is None:
            return False
        self._after[before] = offset
        self._before[offset] = before
        return True

    def waits(self, offset: int) -> bool:
        return offset in self._before

    def leave(self, offset: int, key: int) -> int | None:
        """It is done, from whatever place in its lane. Returns who is first from now on, if that is news."""
        before = self._before.pop(offset, None)
        after = self._after.pop(offset, None)
        if before is not None and after is not None:
            self._after[before] = after
            self._before[after] = before
        elif before is not None:
            del self._after[before]
            self._last[key] = before
        elif after is not None:
            del self._before[after]
            return after
        else:
            del self._last[key]
        return None
