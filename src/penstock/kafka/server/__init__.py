"""The Kafka listener: sockets, frames, order of responses. Handlers decide what a request means."""

from penstock.kafka.server.listener import KafkaListener

__all__ = ["KafkaListener"]
