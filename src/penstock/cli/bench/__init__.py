"""`penstock bench`: separate processes make the load, so that the broker's cost is measured without the client's."""
