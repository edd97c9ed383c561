"""What a driver gives an executor to read. Apart from task.py, so that planning does not load what reading needs."""

from pyspark.sql.datasource import InputPartition

from penstock.types import TopicPartition


class ReadTask(InputPartition):
    """A range of one partition. Pickled to an executor."""

    def __init__(self, place: TopicPartition, start: int, end: int) -> None:
        super().__init__((tuple(place), start, end))
        self.place = place
        self.start = start
        self.end = end

    def __repr__(self) -> str:
        return f"ReadTask({self.place}: {self.start} to {self.end})"
