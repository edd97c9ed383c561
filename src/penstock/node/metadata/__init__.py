"""The metadata group: its log, the controller, and the replicas that this node opens because of it."""
