"""Seeded bugs of nodes that share a machine."""

from penstock.cluster import layout, quorum
from penstock.sim.seeds import MACHINES
from tests.sim.mutant import Change, Mutant

MACHINE_MUTANTS = (
    Mutant(
        "repair beside another replica",
        "the replica of a lost machine is rebuilt on one that has a replica already",
        (
            Change(
                layout.Layout,
                "best_destination",
                "node != instead_of and self.machine(node) not in taken",
                "node != instead_of and node not in others",
            ),
        ),
        level=MACHINES,
        seeds=10,
    ),
    Mutant(
        "two votes for one machine",
        "the loss of one machine costs the metadata group two voters",
        (
            Change(
                quorum._Candidates,
                "best",
                "for node in self._newcomers() if self._machine(node) not in taken",
                "for node in self._newcomers()",
            ),
        ),
        level=MACHINES,
        seeds=10,
    ),
)
