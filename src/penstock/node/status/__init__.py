"""The state of the cluster in one report, and the status log."""
