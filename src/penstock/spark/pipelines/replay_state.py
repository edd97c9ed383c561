"""How far a replay has come, so that the same replay continues after a crash.

A replay writes in steps: step n has the records of every partition whose offsets are in

    [first + n * step_offsets, first + (n + 1) * step_offsets)    and before the partition's end

The ends are those of the archive when the replay began, so that a step that runs again has the same records, though
the archive grows meanwhile. Each step is one transaction, named by the replay's id and the step's number. A file has
the ends and the number of steps that are done. It is written after the step's commit: a step that was committed and is
not in the file runs again, and the brokers know its name and write nothing.

The file is deleted when the replay is done, and does not count if a target was created again since.
"""

import hashlib
import json
import os
from collections.abc import Mapping
from dataclasses import asdict, dataclass, replace
from pathlib import Path
from typing import Any, Final
from uuid import uuid4

from penstock.errors import ConfigError
from penstock.spark.lake.storage import SCHEME
from penstock.spark.problems import PipelineError

VERSION: Final = 1
FOLDER: Final = "_replays"
"""In the archive's folder. It is no table, so it is not taken for a topic."""


@dataclass(frozen=True, kw_only=True, slots=True)
class ReplayState:
    replay_id: str
    target_ids: Mapping[str, str]
    """The ids of the topics that are written to."""
    ends: Mapping[str, Mapping[str, int]]
    """By archived topic and partition: the offset after the last one."""
    first: int
    step_offsets: int
    steps_done: int = 0
    rows: Mapping[str, int]
    """Written so far, by target."""
    version: int = VERSION

    @property
    def last(self) -> int:
        """The highest end."""
        return max((end for ends in self.ends.values() for end in ends.values()), default=0)

    @property
    def steps(self) -> int:
        return max(0, -(-(self.last - self.first) // self.step_offsets))

    def bounds(self, step: int) -> tuple[int, int]:
        start = self.first + step * self.step_offsets
        return start, min(start + self.step_offsets, self.last)

    def remaining(self) -> int:
        """Offsets that are not done."""
        reached = self.first + self.steps_done * self.step_offsets
        return sum(
            max(0, end - max(reached, self.first)) for ends in self.ends.values() for end in ends.values()
        )

    def advanced(self, rows: Mapping[str, int]) -> "ReplayState":
        total = {name: count + rows.get(name, 0) for name, count in self.rows.items()}
        return replace(self, steps_done=self.steps_done + 1, rows=total)


def new_state(
    *,
    target_ids: Mapping[str, str],
    ends: Mapping[str, Mapping[str, int]],
    first: int,
    step_offsets: int,
) -> ReplayState:
    return ReplayState(
        replay_id=uuid4().hex,
        target_ids=target_ids,
        ends=ends,
        first=first,
        step_offsets=step_offsets,
        rows=dict.fromkeys(target_ids, 0),
    )


class StateFile:
    """The state of the replay that was asked for; another wish has another file."""

    def __init__(self, folder: str, asked: Mapping[str, Any]) -> None:
        digest = hashlib.sha256(json.dumps(asked, sort_keys=True).encode()).hexdigest()
        self._path = Path(folder) / f"{digest[:32]}.json"

    def load(self) -> ReplayState | None:
        try:
            text = self._path.read_text()
        except (FileNotFoundError, NotADirectoryError):
            return None
        try:
            found = ReplayState(**json.loads(text))
        except (ValueError, TypeError):
            found = None
        if found is None or found.version != VERSION:
            raise PipelineError(
                f"{self._path} is no state of a replay that this version can continue. Delete it, and the "
                "topic that the replay was writing, to begin again"
            )
        return found

    def save(self, state: ReplayState) -> None:
        """Whole or not at all, and on the disk when this returns."""
        try:
            self._path.parent.mkdir(parents=True, exist_ok=True)
            unfinished = self._path.with_suffix(".tmp")
            with unfinished.open("w") as file:
                json.dump(asdict(state), file)
                file.flush()
                os.fsync(file.fileno())
            unfinished.replace(self._path)
            _flush_folder(self._path.parent)
        except OSError as problem:
            raise PipelineError(
                f"{self._path.parent}, where the replay keeps how far it has come, cannot be written "
                f"({problem.strerror}): name another folder (checkpoint)"
            ) from None

    def delete(self) -> None:
        self._path.unlink(missing_ok=True)


def _flush_folder(folder: Path) -> None:
    handle = os.open(folder, os.O_RDONLY)
    try:
        os.fsync(handle)
    finally:
        os.close(handle)


def state_folder(archive: str, checkpoint: str | None) -> str:
    folder = checkpoint if checkpoint is not None else f"{archive.rstrip('/')}/{FOLDER}"
    plain = folder.removeprefix("file://").removeprefix("file:")
    if not plain or SCHEME.match(plain):
        raise ConfigError(
            "checkpoint",
            checkpoint,
            "a folder on a disk of the driver, where a replay keeps how far it has come",
        )
    return os.path.abspath(plain)
