"""The status report of the cluster, and the status log: events of the broker as records of a topic."""
