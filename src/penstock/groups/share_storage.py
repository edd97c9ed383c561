"""The records of share groups in the offsets topic, byte by byte: Kafka's own layout, as in `storage.py`.

    key     int16 11 | str group
    value   int16 0 | int32 epoch | int64 a hash of the topics that it reads | varint number of tagged fields

Kafka compares the hash to see whether topics have changed; members are not stored here, so there is nothing to compare,
and it is 0. There are no tagged fields. A null value deletes the group.
"""

import struct

from penstock.errors import UnknownFormat

KEY_VERSION = 11
VALUE_VERSION = 0

_KEY_HEAD = struct.Struct(">hh")
_VALUE = struct.Struct(">hiqB")


def encode_share_group_key(group_id: str) -> bytes:
    name = group_id.encode()
    return _KEY_HEAD.pack(KEY_VERSION, len(name)) + name


def encode_share_group(epoch: int) -> bytes:
    return _VALUE.pack(VALUE_VERSION, epoch, 0, 0)


def decode_share_group_key(key: bytes) -> str | None:
    """The group that the key names; None for a key of another kind."""
    if int.from_bytes(key[:2], "big", signed=True) != KEY_VERSION:
        return None
    name = key[_KEY_HEAD.size :]
    if key[2 : _KEY_HEAD.size] != struct.pack(">h", len(name)):
        raise _unknown(f"a key of {len(key)} bytes")
    try:
        return name.decode()
    except UnicodeDecodeError:
        raise _unknown("a name that is not UTF-8") from None


def decode_share_group(value: bytes) -> int:
    """The epoch."""
    if len(value) != _VALUE.size:
        raise _unknown(f"a value of {len(value)} bytes")
    version, epoch, _hash, tags = _VALUE.unpack(value)
    if version != VALUE_VERSION or tags:
        raise _unknown(f"value version {version} with {tags} tagged fields")
    return int(epoch)


def _unknown(what: str) -> UnknownFormat:
    return UnknownFormat(f"a share group in the offsets topic has {what}; start the version that wrote it")
