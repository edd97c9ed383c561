"""The simulator: production code runs on virtual time, simulated disks and networks, with injected faults.

`checks`, `history`, `compaction_checks`, `retention_checks` and `group_checks` (consumer groups) check the promises;
`group` (bare Raft cores) and `cluster` (whole nodes) are the two levels. tests/sim/mutants.py has the seeded bugs that
the simulator must find.
"""

from penstock.sim.disk import PowerCut, SimDisk

__all__ = ["PowerCut", "SimDisk"]
