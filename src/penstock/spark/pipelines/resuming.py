"""Where Spark would go on with a checkpoint, so that an archive is not led past records that it does not have.

Spark goes on after the newest batch that its folder `commits` names: from the place that `offsets` has under the same
number. A batch after that, which was planned and not done, runs again as planned, and its place says where partitions
begin that came with it (`since`).
"""

import json
from collections.abc import Mapping
from typing import Final

from penstock.errors import ConfigError
from penstock.spark import stream_offset
from penstock.spark.pipelines.files import Files
from penstock.spark.problems import ArchiveError
from penstock.spark.stream_offset import StreamOffset
from penstock.types import TopicPartition

OFFSETS: Final = "offsets"
COMMITS: Final = "commits"


def goes_on_at(checkpoint: Files) -> dict[TopicPartition, int]:
    """The first offset that Spark would read, by partition; empty for a new checkpoint."""
    planned, done = _numbers(checkpoint, OFFSETS), _numbers(checkpoint, COMMITS)
    last = max(done, default=-1)
    found = dict(_place(checkpoint, last).positions) if last >= 0 else {}
    if last + 1 in planned:
        found |= {tp: offset for tp, offset in _place(checkpoint, last + 1).since.items() if tp not in found}
    return found


def check_not_ahead(
    topic_partitions: Mapping[TopicPartition, int], expected: Mapping[TopicPartition, int], checkpoint: str
) -> None:
    """ArchiveError where Spark would leave out records that the archive does not have."""
    ahead = [
        tp for tp in sorted(topic_partitions) if topic_partitions[tp] > expected.get(tp, topic_partitions[tp])
    ]
    if ahead:
        tp = ahead[0]
        raise ArchiveError(
            f"the checkpoint {checkpoint} goes on at offset {topic_partitions[tp]} of {tp}, and the archive needs "
            f"{expected[tp]}: what is between would be left out. Run without a checkpoint, since the archive itself "
            "knows where it goes on"
        )


def _numbers(checkpoint: Files, folder: str) -> set[int]:
    return {int(each.name) for each in checkpoint.names(folder) if each.name.isdecimal()}


def _place(checkpoint: Files, batch: int) -> StreamOffset:
    """The file's last line: before it come a version and Spark's own settings. An archive has one source."""
    lines = (checkpoint.read(f"{OFFSETS}/{batch}") or b"").decode(errors="replace").splitlines()
    try:
        return stream_offset.from_json(json.loads(lines[-1]))
    except (ValueError, AttributeError, LookupError):
        raise ConfigError(
            "checkpoint",
            checkpoint.root,
            f"a checkpoint of an archive's stream, and {OFFSETS}/{batch} in it cannot be read. Run without one",
        ) from None
