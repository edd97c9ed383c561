"""Cliques: workers of which each owns a part of the keys.

`coordinators` keeps who is a member of which clique and owns which slots, durably, on the node that leads the clique's
partition of `__clique_state`; `penstock.ring` decides. `tables` has the newest tables of the cliques whose workers are
connected to this node, and passes them to the queues (`node.queues.lane_driver`), which deliver by them. `cliques` is
the part of the node that has both.
"""

from penstock.node.cliques.cliques import CliqueFigures, Cliques
from penstock.node.cliques.tables import TableWatch

__all__ = ["CliqueFigures", "Cliques", "TableWatch"]
