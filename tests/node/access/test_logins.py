"""Logins on one node: what a check costs, what is remembered of it, and how failures are slowed down."""

import asyncio
import threading

import pytest

from penstock.cluster import ClusterState, UserChanged
from penstock.config.oidc import OidcSettings
from penstock.node.access import check_queue, logins
from penstock.node.access.logins import Logins
from penstock.security import plain
from penstock.security.bearer_tokens import VerifiedToken
from penstock.security.credentials import ScramMechanism, make_credential
from penstock.security.errors import AuthenticationError
from penstock.security.exchange import Accepted

SHA_256 = ScramMechanism.SCRAM_SHA_256


class Clock:
    now = 0.0

    def __call__(self) -> float:
        return self.now


def state_with(user: str, password: str) -> ClusterState:
    state = ClusterState(1)
    set_password(state, user, password)
    return state


def set_password(state: ClusterState, user: str, password: str) -> None:
    made = make_credential(password, b"0123456789abcdef", 4096, SHA_256)
    state.apply(UserChanged(user=user, passwords={SHA_256.sasl_name: made}))


@pytest.fixture
def checks(monkeypatch: pytest.MonkeyPatch) -> list[str]:
    """The threads in which passwords were checked."""
    found: list[str] = []
    check = plain.check_password

    def noted(*arguments: object) -> str:
        found.append(threading.current_thread().name)
        return check(*arguments)  # type: ignore[arg-type]

    monkeypatch.setattr(logins, "check_password", noted)
    return found


def test_a_right_password_is_checked_in_a_thread_and_then_remembered_for_a_while(checks: list[str]) -> None:
    clock = Clock()

    async def check() -> None:
        found = Logins(state_with("alice", "secret"), now=clock)
        assert await found.check_password("alice", "secret") == "User:alice"
        assert await found.check_password("alice", "secret") == "User:alice"
        clock.now += logins.REMEMBER_SECONDS + 1
        assert await found.check_password("alice", "secret") == "User:alice"
        await found.stop()

    asyncio.run(check())
    assert len(checks) == 2
    assert all(name.startswith("penstock-passwords") for name in checks)


def test_a_password_that_was_changed_or_deleted_is_not_remembered() -> None:
    async def check() -> None:
        state = state_with("alice", "secret")
        found = Logins(state)
        await found.check_password("alice", "secret")
        set_password(state, "alice", "another")
        with pytest.raises(AuthenticationError):
            await found.check_password("alice", "secret")
        await found.check_password("alice", "another")
        state.apply(UserChanged(user="alice", passwords={}))
        with pytest.raises(AuthenticationError):
            await found.check_password("alice", "another")
        await found.stop()

    asyncio.run(check())


def test_wrong_passwords_are_never_remembered_and_the_right_ones_are_bounded(
    checks: list[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(logins, "REMEMBERED_PASSWORDS", 2)

    async def check() -> None:
        state = ClusterState(1)
        for name in "abc":
            set_password(state, name, "secret")
        found = Logins(state)
        for _ in range(2):
            with pytest.raises(AuthenticationError):
                await found.check_password("a", "wrong")
        for name in "abc":
            await found.check_password(name, "secret")
        assert len(found._right) == 2
        await found.stop()

    asyncio.run(check())
    assert len(checks) == 5


def test_too_many_logins_at_once_are_refused_and_the_others_are_served(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.setattr(check_queue, "MAX_WAITING", 2)
    may_go_on = threading.Event()
    monkeypatch.setattr(logins, "check_password", lambda *arguments: may_go_on.wait() and "User:alice")

    async def check() -> None:
        found = Logins(ClusterState(1))
        waiting = [asyncio.ensure_future(found.check_password("alice", str(number))) for number in range(3)]
        await asyncio.sleep(0)
        with pytest.raises(AuthenticationError, match="too many logins"):
            await found.check_password("alice", "one more")
        may_go_on.set()
        assert await asyncio.gather(*waiting) == ["User:alice"] * 3
        await found.stop()

    asyncio.run(check())


def test_an_address_that_guesses_leaves_room_for_the_others(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(check_queue, "MAX_WAITING_SUSPECT", 2)
    may_go_on = threading.Event()
    monkeypatch.setattr(logins, "check_password", lambda *arguments: may_go_on.wait() and "User:alice")

    async def check() -> None:
        clock = Clock()
        found = Logins(ClusterState(1), now=clock)

        def login(host: str, number: int) -> asyncio.Future[str]:
            return asyncio.ensure_future(found.check_password("alice", str(number), host))

        for _ in range(logins.FREE_FAILURES + 1):
            found.failed("10.0.0.1")
        waiting = [login("10.0.0.1", number) for number in range(3)]
        await asyncio.sleep(0)
        with pytest.raises(AuthenticationError, match="too many logins"):
            await login("10.0.0.1", 3)
        waiting += [login("10.0.0.2", number) for number in range(4, 8)]
        await asyncio.sleep(0)
        clock.now += logins.FORGET_SECONDS + 1
        waiting.append(login("10.0.0.1", 8))
        may_go_on.set()
        assert await asyncio.gather(*waiting) == ["User:alice"] * 8
        await found.stop()

    asyncio.run(check())


def test_passwords_are_checked_while_tokens_wait_for_their_provider(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(check_queue, "MAX_WAITING", 1)
    may_go_on = threading.Event()

    async def check() -> None:
        found = Logins(state_with("alice", "secret"))
        found._verify_token = lambda token: may_go_on.wait() and VerifiedToken("User:bob", (), 0)
        waiting = asyncio.ensure_future(found.check_bearer("a token"))
        await asyncio.sleep(0)
        assert await found.check_password("alice", "secret") == "User:alice"
        may_go_on.set()
        assert (await waiting).principal == "User:bob"
        await found.stop()

    asyncio.run(check())


def test_failures_of_an_address_are_answered_later_and_later_until_it_has_none_for_a_while() -> None:
    clock = Clock()
    found = Logins(ClusterState(1), now=clock)
    delays = [found.failed("10.0.0.1") for _ in range(20)]
    assert delays[: logins.FREE_FAILURES] == [logins.FIRST_DELAY_SECONDS] * logins.FREE_FAILURES
    assert delays == sorted(delays)
    assert delays[-1] == logins.SLOWEST_SECONDS
    assert found.failed("10.0.0.2") == logins.FIRST_DELAY_SECONDS, "others do not pay for it"
    clock.now += logins.FORGET_SECONDS + 1
    assert found.failed("10.0.0.1") == logins.FIRST_DELAY_SECONDS


def test_addresses_with_failures_are_bounded(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(logins, "MAX_ADDRESSES", 3)
    found = Logins(ClusterState(1))
    for number in range(10):
        found.failed(f"10.0.0.{number}")
    assert len(found._failures) == 3


@pytest.mark.parametrize(
    ("max_session_ms", "expires_in_ms", "lowest", "highest"),
    [
        (0, None, 0, 0),
        (5_000, None, 5_000, 5_000),
        (0, 60_000, 50_000, 60_000),
        (5_000, 60_000, 5_000, 5_000),
        (0, -10_000, 10_000, 20_000),
        (0, -60_000, 1, 1),
    ],
)
def test_a_session_lasts_until_its_token_expires_or_as_long_as_the_setting_says(
    max_session_ms: int, expires_in_ms: int | None, lowest: int, highest: int
) -> None:
    import time

    expires_ms = None if expires_in_ms is None else int(time.time() * 1000) + expires_in_ms
    found = Logins(ClusterState(1), oidc=OidcSettings(clock_skew_ms=30_000), max_session_ms=max_session_ms)
    assert lowest <= found.lifetime_ms(Accepted(b"", "User:alice", expires_ms=expires_ms)) <= highest
