"""What each Kafka API does: one file per family, translating between wire messages and the node."""
