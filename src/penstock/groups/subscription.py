"""The topics that a consumer reads: the only part of a member's metadata that the broker reads.

For groups of protocol type `consumer`, metadata begins with int16 version | int32 number of topics | topics, each an
int16 length and UTF-8 bytes. The rest differs by version and is only for the consumers. It is the clients' own format,
so metadata that cannot be read is no error: the result is "unknown", and nothing is decided by it.
"""

import struct

CONSUMER_PROTOCOL_TYPE = "consumer"


def subscribed_topics(metadata: bytes) -> frozenset[str] | None:
    """The topics that a consumer subscribed to, or None if its metadata cannot be read."""
    try:
        version, count = struct.unpack_from(">hi", metadata, 0)
        if version < 0 or count < 0:
            return None
        topics, position = [], 6
        for _ in range(count):
            (length,) = struct.unpack_from(">h", metadata, position)
            position += 2
            if length < 0 or position + length > len(metadata):
                return None
            topics.append(metadata[position : position + length].decode())
            position += length
    except (struct.error, UnicodeDecodeError):
        return None
    return frozenset(topics)
