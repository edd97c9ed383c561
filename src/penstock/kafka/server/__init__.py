"""The Kafka listener: sockets, frames, and the order of responses. `kafka.handlers` answers the requests."""

from penstock.kafka.server.listener import KafkaListener

__all__ = ["KafkaListener"]
