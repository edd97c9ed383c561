"""Settings as frozen values: what a topic does, what a node does, and the limits on what peers may ask."""

from penstock.config.topic import TopicConfig

__all__ = ["TopicConfig"]
