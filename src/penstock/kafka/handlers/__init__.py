"""The handlers of Kafka's APIs, one file per family: they translate between wire messages and the node."""
