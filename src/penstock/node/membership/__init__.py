"""How a node finds its cluster, joins and leaves it, and hears which nodes are alive."""
