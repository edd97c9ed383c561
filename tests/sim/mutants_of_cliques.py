"""Seeded bugs of cliques: who owns what, for how long, and what becomes of messages."""

from penstock.queue import lane_leases
from penstock.ring import clique_state, coordinator, member, observer, routing, view
from penstock.sim import ring_membership, ring_worker
from penstock.sim.seeds import RING
from tests.sim.mutant import Change, Mutant

CLIQUE_MUTANTS = (
    Mutant(
        "ack before handler",
        "a worker acknowledges a message when it starts its handler",
        (
            Change(
                ring_worker.RingWorker,
                "_try",
                "lane.waiting.popleft()",
                "lane.waiting.popleft()\n    self._acknowledge(delivery)",
            ),
        ),
        level=RING,
        seeds=10,
    ),
    Mutant(
        "newcomer owns all",
        "a newcomer gets its slots while their owners still work on them",
        (
            Change(
                clique_state.CliqueState,
                "_settle",
                "if owner is not None and owner != target:",
                "if False:",
            ),
        ),
        level=RING,
        seeds=10,
    ),
    Mutant(
        "no fencing",
        "a leader leaves messages with a member that has lost their slots, and accepts its acknowledgements",
        (
            Change(
                lane_leases.LaneLeases,
                "_lost_parts",
                "if table.owner(lane) != owner or table.epoch_of(lane) != before.epoch_of(lane):",
                "if False:",
            ),
            Change(lane_leases.LaneLeases, "is_fenced", "return any(", "return False and any("),
        ),
        level=RING,
        seeds=20,
    ),
    Mutant(
        "resurrected member",
        "a delayed heartbeat of a removed member brings it back",
        (
            Change(
                clique_state.CliqueState,
                "may_join",
                "heartbeat.epoch != NO_EPOCH and self.removed_epoch <= heartbeat.epoch",
                "heartbeat.epoch != NO_EPOCH",
            ),
        ),
        level=RING,
        seeds=40,
    ),
    Mutant(
        "lease from the receipt of the reply",
        "a worker counts its lease from when it hears, and trusts it for longer than others do",
        (
            Change(
                member.MemberCore,
                "_confirmed",
                "lease_ends_ms = sent_ms +",
                "lease_ends_ms = now_ms +",
            ),
        ),
        level=RING,
        seeds=40,
    ),
    Mutant(
        "lease without a margin",
        "a worker with a slow clock trusts its lease for longer than a coordinator with a fast clock",
        (Change(member.MemberCore, "_confirmed", " * (1 - LEASE_MARGIN)", ""),),
        level=RING,
        seeds=400,
    ),
    Mutant(
        "a worker ignores its lease",
        "a worker that has lost contact starts handlers as before",
        (Change(member.MemberCore, "may_start", " or now_ms >= self.lease_ends_ms", ""),),
        level=RING,
        seeds=40,
    ),
    Mutant(
        "release by an uninformed heartbeat",
        "a member that does not know of a handover releases slots that it is about to use",
        (
            Change(
                clique_state.CliqueState,
                "_released_by",
                "and since <= heartbeat.epoch\n",
                "",
            ),
        ),
        level=RING,
        seeds=20,
    ),
    Mutant(
        "release while a handler runs",
        "a worker lets go of a slot before its last handler has finished",
        (Change(member.MemberCore, "_is_releasable", " and not holding.running", ""),),
        level=RING,
        seeds=20,
    ),
    Mutant(
        "tables go back",
        "a worker takes up an old table from a reply that was overtaken",
        (
            Change(
                member.MemberCore,
                "_confirmed",
                "reply.table is not None and reply.table.epoch > self.epoch",
                "reply.table is not None",
            ),
        ),
        level=RING,
        seeds=80,
    ),
    Mutant(
        "fencing tokens stay",
        "the next owner of a slot has the same token as the one before",
        (
            Change(
                clique_state.CliqueState,
                "_settle",
                "epochs[slot] = self.epoch",
                "epochs[slot] = epochs[slot] or self.epoch",
            ),
        ),
        level=RING,
        seeds=10,
    ),
    Mutant(
        "a name is taken at once",
        "a second process under the same name pushes out the first one, whose lease lasts",
        (
            Change(
                coordinator.CliqueCoordinator,
                "_without_expired",
                "if (LEASE, hosted.name, worker, member.member_id) in self._timers:",
                "if worker not in hosted.newcomers and "
                "(LEASE, hosted.name, worker, member.member_id) in self._timers:",
            ),
        ),
        level=RING,
        seeds=30,
    ),
    Mutant(
        "a coordinator tells too early",
        "workers are told of changes that may be lost",
        (
            Change(
                coordinator.CliqueCoordinator,
                "_write",
                "hosted.is_writing = True",
                "hosted.state = state\n    self._answer(0, hosted, requests)\n    requests = []\n"
                "    hosted.is_writing = True",
            ),
        ),
        level=RING,
        seeds=80,
    ),
    Mutant(
        "leases are over when a coordinator loads",
        "the next coordinator removes members that its predecessor has just confirmed",
        (
            Change(
                coordinator.CliqueCoordinator,
                "_renew_all",
                "now_ms + member.lease_ms",
                "now_ms + 1",
            ),
        ),
        level=RING,
        seeds=30,
    ),
    Mutant(
        "a handover that is called off keeps its epoch",
        "an owner that had dropped the messages of a slot gets later ones first",
        (
            Change(
                clique_state.CliqueState,
                "_settle",
                "if self.revoked.pop(slot, None) is not None or owner != target:",
                "if self.revoked.pop(slot, None) is not None and owner is None or owner != target:",
            ),
        ),
        level=RING,
        seeds=600,
    ),
    Mutant(
        "impatient observers",
        "members that share a cell judge each other after half a lease",
        (
            Change(
                observer.SilenceObserver,
                "silent",
                "member.lease_ms * SILENCE",
                "member.lease_ms * 0.5",
            ),
        ),
        level=RING,
        seeds=20,
    ),
    Mutant(
        "compare without set",
        "a member overwrites a state that it has not seen",
        (Change(ring_membership.Cell, "_put", "revision != self._revision", "False"),),
        level=RING,
        seeds=20,
    ),
    Mutant(
        "forward loop",
        "workers with different tables send a message to each other for ever",
        (Change(routing, "route", "if hops < HOPS_MAX else Refuse()", ""),),
        level=RING,
        seeds=150,
    ),
    Mutant(
        "hearsay",
        "a member is believed to be alive because another one says so",
        (
            Change(
                view.View,
                "_hear_claim",
                "self._ask(claim.worker, now_ms)",
                "self._hear(Gossip(kind=GossipKind.ANNOUNCE, worker=claim.worker, member_id=claim.worker, "
                "incarnation=claim.incarnation, settled=True), now_ms)",
            ),
        ),
        level=RING,
        seeds=10,
    ),
    Mutant(
        "a late message is a sign of life",
        "a message of a dead member that was delayed brings it back",
        (
            Change(
                view.View,
                "received",
                "elif gossip.incarnation <= self._dead.get(gossip.worker, -1):",
                "elif False:",
            ),
        ),
        level=RING,
        seeds=10,
    ),
    Mutant(
        "a newcomer is settled at once",
        "a newcomer takes all slots before it has heard of the others",
        (Change(view.View, "_settle_if_known", "(knows or now_ms >= self._settle_by_ms)", "True"),),
        level=RING,
        seeds=10,
    ),
)
