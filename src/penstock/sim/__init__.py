"""The simulator: virtual time, disks and networks in which the real code runs and may fail.

`checks`, `history`, `thinning` (compaction), `retaining` (retention) and `ledger` (consumer groups) have what must
hold, `group` and `cluster` the two levels. tests/sim/mutants.py has the bugs it must find.
"""

from penstock.sim.disk import PowerCut, SimDisk, SimFile

__all__ = ["PowerCut", "SimDisk", "SimFile"]
