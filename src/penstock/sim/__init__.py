"""The simulator: production code runs on virtual time, simulated disks and networks, with injected faults.

`checks`, `history`, `compaction_checks`, `retention_checks`, `group_checks` (consumer groups) and `transaction_history`
check the promises; `group` (bare Raft cores), `cluster` (whole nodes), `transaction_world` (whole nodes with
transactional programs) and `ring_world` (cliques) are the levels. tests/sim/mutants.py has the seeded bugs that the
simulator must find.
"""

from penstock.sim.disk import PowerCut, SimDisk

__all__ = ["PowerCut", "SimDisk"]
