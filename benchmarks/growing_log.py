"""Does a large log cost more per byte than a small one? The log against a bare file, growing side by side.

In turns, a stretch each: `LogWriter.append` of 1 MB batches with a flush every 8 MB, and the same with pwrite and
fdatasync on a bare file. The system itself charges more once a file outgrows what it keeps clean in memory, so only
the ratio says something about the log. Reads are from the middle of what is there, after each stretch.

    python benchmarks/growing_log.py --gb 10
"""

import argparse
import os
import shutil
import tempfile
import time
from collections.abc import Callable
from pathlib import Path

from penstock.batch import Record, build_batch, check_batch
from penstock.config import TopicConfig
from penstock.log import Log
from penstock.log.os_disk import OsDisk
from penstock.types import Offset, Term

MEGABYTE = 1024 * 1024
FLUSH_EVERY = 8
STRETCH_MB = 512
READS = 2000


def cpu_us(work: Callable[[], None], count: int) -> float:
    began = time.process_time()
    work()
    return (time.process_time() - began) / count * 1e6


def append_stretch(log: Log, batch: bytearray) -> None:
    header = check_batch(batch)
    for number in range(STRETCH_MB):
        log.writer.append(batch, header, Term(0), 1_700_000_000_000)
        if number % FLUSH_EVERY == 0:
            ticket = log.flushes.begin()
            assert ticket is not None
            ticket.run()
            log.flushes.finish(ticket)
    chores = log.maintenance.next_task()
    if chores is not None:
        chores()


def write_stretch(file: int, data: bytearray) -> None:
    position = os.fstat(file).st_size
    for number in range(STRETCH_MB):
        os.pwrite(file, data, position + number * len(data))
        if number % FLUSH_EVERY == 0:
            os.fdatasync(file)


def read_middle(log: Log) -> None:
    middle = log.end_offset // 2
    for number in range(READS):
        log.read(Offset(middle + number % 100), 1, limit=log.end_offset)


def run(folder: Path, stretches: int) -> None:
    batch = bytearray(build_batch([Record(0, 1_700_000_000_000, None, os.urandom(MEGABYTE - 100))]))
    log = Log.open(OsDisk(folder), "log", TopicConfig(max_message_bytes=2 * MEGABYTE))
    file = os.open(folder / "bare", os.O_CREAT | os.O_RDWR)
    print("   GB   log, us/MB  bare file, us/MB  ratio   read, us")
    for stretch in range(1, stretches + 1):
        bare = cpu_us(lambda: write_stretch(file, batch), STRETCH_MB)
        ours = cpu_us(lambda: append_stretch(log, batch), STRETCH_MB)
        read = cpu_us(lambda: read_middle(log), READS)
        size_gb = stretch * STRETCH_MB / 1024
        print(f"{size_gb:5.1f}   {ours:10.0f}  {bare:16.0f}  {ours / bare:5.2f}  {read:9.1f}", flush=True)
    os.close(file)
    log.close()


def main() -> None:
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument("--gb", type=float, default=4)
    folder = Path(tempfile.mkdtemp(prefix="penstock-growing-"))
    try:
        run(folder, max(1, round(parser.parse_args().gb * 1024 / STRETCH_MB)))
    finally:
        shutil.rmtree(folder)


if __name__ == "__main__":
    main()
