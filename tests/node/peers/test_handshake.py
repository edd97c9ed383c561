"""The handshake as a transcript, without sockets: what each side sends, and what no peer can make it send."""

import msgspec
import pytest

from penstock.config import Address
from penstock.node.peers.handshake import (
    KEYED,
    MAGIC,
    NEWEST_VERSION,
    OLDEST_VERSION,
    PREAMBLE_SIZE,
    Handshake,
    PeerRefused,
)
from penstock.node.peers.hello import Introduction, PeerRefusal, RefusalCode
from penstock.node.peers.seal import FrameSeal

from .peer_nodes import KEY, accept_all, hello

ONE, TWO = hello(1, run=11), hello(2, run=22)


def dialler(
    key: bytes | None = None, *, nonce: bytes = b"d" * 32, versions: tuple[int, int] = (2, 2)
) -> Handshake:
    return Handshake(dials=True, me=ONE, key=key, nonce=nonce, judge=accept_all, versions=versions)


def listener(
    key: bytes | None = None, *, nonce: bytes = b"l" * 32, versions: tuple[int, int] = (2, 2)
) -> Handshake:
    return Handshake(dials=False, me=TWO, key=key, nonce=nonce, judge=accept_all, versions=versions)


def meet(dials: Handshake, listens: Handshake) -> None:
    introduction = dials.feed(listens.feed(dials.opening()))
    assert dials.feed(listens.feed(introduction)) == b""


@pytest.mark.parametrize("key", [None, KEY])
def test_both_know_each_other_after_two_messages_from_each(key: bytes | None) -> None:
    dials, listens = dialler(key), listener(key)
    meet(dials, listens)
    assert (dials.hello, listens.hello) == (TWO, ONE)


@pytest.mark.parametrize("key", [None, KEY])
def test_the_handshake_does_not_depend_on_how_bytes_are_split(key: bytes | None) -> None:
    dials, listens = dialler(key), listener(key)
    to_listener, to_dialler = dials.opening(), b""
    while to_listener or to_dialler:
        for byte in to_listener:
            to_dialler += listens.feed(bytes([byte]))
        to_listener = b""
        for byte in to_dialler:
            to_listener += dials.feed(bytes([byte]))
        to_dialler = b""
    assert (dials.hello, listens.hello) == (TWO, ONE)


def test_frames_that_follow_at_once_are_kept() -> None:
    dials, listens = dialler(), listener()
    answer = listens.feed(dials.feed(listens.feed(dials.opening())))
    dials.feed(answer + b"first frames")
    assert dials.rest() == b"first frames"


def test_a_listener_does_not_introduce_itself_before_the_dialler_has_proven_the_key() -> None:
    preamble = listener(KEY).feed(dialler(KEY).opening())
    assert preamble == MAGIC + bytes([2, 2, KEYED, 0]) + b"l" * 32
    assert listener().feed(b"PN") == b""


@pytest.mark.parametrize(
    ("dials", "listens", "spoken"),
    [((2, 2), (2, 3), 2), ((2, 3), (3, 4), 3), ((2, 5), (3, 4), 4), ((3, 3), (2, 3), 3)],
)
def test_the_newest_version_that_both_support_is_used(
    dials: tuple[int, int], listens: tuple[int, int], spoken: int
) -> None:
    caller, called = dialler(versions=dials), listener(versions=listens)
    meet(caller, called)
    assert (caller.version, called.version) == (spoken, spoken)


def test_a_node_supports_the_newest_version_and_the_one_before_it() -> None:
    """Version 1 was never negotiated, so version 2 stands alone."""
    assert NEWEST_VERSION == 2, "from version 3 on, the oldest one is the one before the newest"
    assert OLDEST_VERSION == 2


def test_versions_that_do_not_overlap_are_refused_by_both() -> None:
    caller, called = dialler(versions=(4, 5)), listener(versions=(2, 3))
    with pytest.raises(
        PeerRefused, match=r"versions 4 to 5 .* versions 2 to 3: .* on this node"
    ) as by_listener:
        called.feed(caller.opening())
    with pytest.raises(
        PeerRefused, match=r"versions 2 to 3 .* versions 4 to 5: .* on that node"
    ) as by_dialler:
        caller.feed(by_listener.value.farewell)
    assert by_listener.value.refusal.code == by_dialler.value.refusal.code == RefusalCode.VERSION


@pytest.mark.parametrize("old_dials", [True, False])
def test_a_node_of_the_protocol_before_negotiation_is_refused_and_told_what_to_do(old_dials: bool) -> None:
    old = MAGIC + bytes([1, 1, 0, 0]) + b"o" * 32
    ours = (OLDEST_VERSION, NEWEST_VERSION)
    new = listener(versions=ours) if old_dials else dialler(versions=ours)
    with pytest.raises(PeerRefused) as refused:
        new.feed(old)
    assert refused.value.refusal.code == RefusalCode.VERSION
    assert str(refused.value) == (
        "it speaks version 1 of the inter-node protocol, this node version 2: its Penstock is too old to run beside "
        "this one; stop all nodes of the cluster, update Penstock on each, and start them again"
    )
    # The old node gets this node's preamble, from which it can tell the same.
    sent = refused.value.farewell if old_dials else new.opening()
    assert sent[:6] == MAGIC + bytes([2, 2])


@pytest.mark.parametrize(("ours", "theirs"), [(KEY, None), (None, KEY)])
def test_a_key_on_one_side_only_is_refused_by_both(ours: bytes | None, theirs: bytes | None) -> None:
    caller, called = dialler(ours), listener(theirs)
    with pytest.raises(PeerRefused, match="cluster key") as by_listener:
        called.feed(caller.opening())
    with pytest.raises(PeerRefused, match="cluster key"):
        caller.feed(by_listener.value.farewell)


def test_another_key_is_refused_and_the_dialler_is_told() -> None:
    caller, called = dialler(KEY), listener(KEY + b"!")
    introduction = caller.feed(called.feed(caller.opening()))
    with pytest.raises(PeerRefused) as by_listener:
        called.feed(introduction)
    assert by_listener.value.refusal.code == RefusalCode.KEY
    assert by_listener.value.hello is None
    with pytest.raises(PeerRefused, match="keys differ") as told:
        caller.feed(by_listener.value.farewell)
    assert told.value.ours is False


def test_a_recorded_introduction_is_refused_with_another_nonce() -> None:
    caller, called = dialler(KEY), listener(KEY)
    recorded = caller.opening(), caller.feed(called.feed(caller.opening()))
    fresh = listener(KEY, nonce=b"m" * 32)
    fresh.feed(recorded[0])
    with pytest.raises(PeerRefused, match="keys differ"):
        fresh.feed(recorded[1])


def test_an_introduction_sent_back_to_its_author_proves_nothing() -> None:
    caller = dialler(KEY)
    # A mirror without the key: the dialler's own bytes come back to it, first its preamble, then its proof.
    introduction = caller.feed(caller.opening())
    with pytest.raises(PeerRefused, match="keys differ"):
        caller.feed(introduction)


def test_a_changed_introduction_is_refused() -> None:
    caller, called = dialler(KEY), listener(KEY)
    introduction = bytearray(caller.feed(called.feed(caller.opening())))
    introduction[-3] ^= 1
    with pytest.raises(PeerRefused, match="keys differ"):
        called.feed(introduction)


def test_a_refusing_listener_still_introduces_itself() -> None:
    def judge(introduction: Introduction) -> PeerRefusal:
        return PeerRefusal(RefusalCode.ALREADY_CONNECTED, "connected already")

    called = Handshake(dials=False, me=TWO, key=KEY, nonce=b"l" * 32, judge=judge)
    caller = dialler(KEY)
    introduction = caller.feed(called.feed(caller.opening()))
    with pytest.raises(PeerRefused) as by_listener:
        called.feed(introduction)
    with pytest.raises(PeerRefused) as told:
        caller.feed(by_listener.value.farewell)
    assert (told.value.hello, told.value.refusal.code) == (TWO, RefusalCode.ALREADY_CONNECTED)


def test_text_of_strangers_is_escaped_for_the_log() -> None:
    refusal = PeerRefusal(1, "a\nfake line\x1b[31m" + "x" * 10_000)
    assert str(refusal).startswith("a?fake line?[31mxxx")
    assert len(str(refusal)) == 400


@pytest.mark.parametrize(
    "address",
    [Address("h", -1), Address("h", 65536), Address("a\nb", 1), Address("h h", 1), Address("h" * 256, 1)],
)
def test_an_address_that_cannot_be_dialled_is_refused(address: Address) -> None:
    me = msgspec.structs.replace(ONE, cluster=address)
    caller = Handshake(dials=True, me=me, key=None, nonce=b"d" * 32, judge=accept_all)
    called = listener()
    introduction = caller.feed(called.feed(caller.opening()))
    with pytest.raises(PeerRefused, match="a hello with the address"):
        called.feed(introduction)


def test_an_http_port_that_listens_everywhere_is_no_reason_to_refuse() -> None:
    me = msgspec.structs.replace(ONE, http=Address("", 8080))
    caller, called = Handshake(dials=True, me=me, key=None, nonce=b"d" * 32, judge=accept_all), listener()
    meet(caller, called)
    assert called.hello == me


@pytest.mark.parametrize("junk", [b"GET ", b"\x00", b"PNSX", b"P" + bytes(39)])
def test_bytes_that_do_not_begin_with_a_preamble_get_no_answer(junk: bytes) -> None:
    with pytest.raises(PeerRefused, match="not Penstock's inter-node protocol") as refused:
        listener().feed(junk)
    assert refused.value.farewell == b""


def test_a_preamble_has_forty_bytes() -> None:
    assert len(dialler().opening()) == PREAMBLE_SIZE == 40


def test_a_seal_accepts_each_frame_once_and_in_order() -> None:
    sends, receives = FrameSeal(KEY, b"dials", b"p"), FrameSeal(KEY, b"dials", b"p")
    first, second = sends.tag(b"head", [b"bo", b"dy"]), sends.tag(b"head", [b"body"])
    assert first != second
    assert receives.is_next(b"head", memoryview(b"body"), memoryview(first))
    assert receives.is_next(b"head", memoryview(b"body"), memoryview(second))
    assert not receives.is_next(b"head", memoryview(b"body"), memoryview(second))


@pytest.mark.parametrize(
    ("sender", "head", "body"),
    [(b"listens", b"head", b"body"), (b"dials", b"hEad", b"body"), (b"dials", b"head", b"bOdy")],
)
def test_a_seal_refuses_changed_or_reflected_frames(sender: bytes, head: bytes, body: bytes) -> None:
    tag = FrameSeal(KEY, b"dials", b"p").tag(b"head", [b"body"])
    assert not FrameSeal(KEY, sender, b"p").is_next(head, memoryview(body), memoryview(tag))  # type: ignore[arg-type]
