"""`penstock bench`: load from processes of its own, so that a client's cost is apart from the broker's."""
