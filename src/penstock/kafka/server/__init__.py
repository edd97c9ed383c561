"""The Kafka port: sockets, frames, order of answers. What a request means is the handlers' business."""

from penstock.kafka.server.listener import KafkaListener

__all__ = ["KafkaListener"]
