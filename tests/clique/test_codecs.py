"""Codecs: what they write, what they read, and what they refuse."""

from contextlib import suppress

import msgspec
import pytest
from hypothesis import given
from hypothesis import strategies as st

from penstock.clique import (
    Codec,
    FlowCodec,
    JsonCodec,
    Message,
    MsgpackCodec,
    RecordCodec,
    Undecodable,
    WrappingCodec,
)

keys = st.none() | st.binary(min_size=1, max_size=50)
headers = st.lists(st.tuples(st.text(max_size=10), st.none() | st.binary(max_size=20)), max_size=4).map(tuple)
json_values = st.recursive(
    st.none() | st.booleans() | st.integers(-(2**53), 2**53) | st.text(),
    lambda inner: st.lists(inner, max_size=3),
)


@given(keys, st.none() | st.binary(max_size=100), headers)
def test_the_wrapping_codec_gives_every_message_back(key, value, headers) -> None:
    codec = WrappingCodec()
    message = Message(stream="orders", key=key, value=value, headers=headers)
    assert codec.decode("orders", codec.encode(message)) == message


@given(keys, st.binary(max_size=100))
def test_the_codec_of_flow_gives_key_and_value_back(key, value) -> None:
    codec = FlowCodec()
    message = Message(stream="orders", key=key, value=value)
    assert codec.decode("orders", codec.encode(message)) == message


def test_the_layout_of_flow() -> None:
    data = b"\x00\x00\x00\x08mystream\x00\x00\x00\x05alicehello flow 1"
    message = FlowCodec().decode("mystream", data)
    assert message == Message(stream="mystream", key=b"alice", value=b"hello flow 1")
    assert FlowCodec().encode(message) == data


@pytest.mark.parametrize(
    "data",
    [
        b"",
        b"\x00\x00\x00",
        b"\x00\x00\x00\x09mystream",
        b"\x00\x00\x00\x00\x00\x00\x00\x01",
        b"\x00\x00\x00\x01\xff" + bytes(4),
    ],
)
def test_bytes_that_are_not_of_flow_are_refused(data: bytes) -> None:
    with pytest.raises(Undecodable):
        FlowCodec().decode("mystream", data)


@given(st.none() | st.text(min_size=1), json_values)
def test_a_json_codec_gives_the_document_back(key, value) -> None:
    codec = JsonCodec()
    encoded_key = None if key is None else key.encode()
    message = Message(
        stream="orders", key=encoded_key, value=msgspec.json.encode(value), headers=(("a", b"b"),)
    )
    assert codec.decode("orders", codec.encode(message)) == message


def test_json_of_other_programs_is_a_message() -> None:
    message = JsonCodec().decode("orders", b'{"value": {"item": 7}, "key": "alice", "more": 1}')
    assert (message.key, message.json()) == (b"alice", {"item": 7})


@given(keys, json_values)
def test_a_msgpack_codec_gives_the_document_back(key, value) -> None:
    codec = MsgpackCodec()
    message = Message(stream="orders", key=key, value=msgspec.msgpack.encode(value))
    assert codec.decode("orders", codec.encode(message)) == message


def test_msgpack_of_other_programs_may_have_a_key_of_text() -> None:
    data = msgspec.msgpack.encode({"key": "alice", "value": [1, 2]})
    message = MsgpackCodec().decode("orders", data)
    assert (message.key, message.value) == (b"alice", msgspec.msgpack.encode([1, 2]))


def test_values_that_are_no_document_are_refused_when_they_are_published() -> None:
    for codec in (JsonCodec(), MsgpackCodec()):
        with pytest.raises(ValueError, match="orders"):
            codec.encode(Message(stream="orders", value=b"{not\xc1"))
    with pytest.raises(ValueError, match="UTF-8"):
        JsonCodec().encode(Message(stream="orders", value=b"1", headers=(("a", b"\xff"),)))


@pytest.mark.parametrize("codec", [WrappingCodec(), JsonCodec(), MsgpackCodec()])
@pytest.mark.parametrize("data", [b"", b"\xc1", b"[1,2", b"{}", b"\x80", b"null", b"\x92\x07\xc0"])
def test_bytes_that_make_no_sense_are_undecodable(codec: Codec, data: bytes) -> None:
    with pytest.raises(Undecodable):
        codec.decode("orders", data)


@given(st.binary(max_size=200))
def test_any_bytes_are_a_message_or_undecodable(data: bytes) -> None:
    for codec in (WrappingCodec(), JsonCodec(), MsgpackCodec(), FlowCodec()):
        with suppress(Undecodable):
            assert isinstance(codec.decode("orders", data), Message)


def test_a_wrapped_message_of_a_later_version_is_undecodable() -> None:
    with pytest.raises(Undecodable, match="version 2"):
        WrappingCodec().decode("orders", msgspec.msgpack.encode([2, b"alice", b"..."]))


def test_the_record_codec_takes_the_bytes_as_they_are() -> None:
    message = RecordCodec().decode("orders", b"\x00anything")
    assert message == Message(stream="orders", value=b"\x00anything")
    assert RecordCodec().encode(message) == b"\x00anything"
