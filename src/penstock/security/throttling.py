"""How long to throttle a client that exceeds its quota, as Kafka computes it.

Bytes, request time and connections have a *windowed rate*: the sum of the last 11 windows of a second, divided by the
time that they cover, which is at least 10 seconds. So a client may burst, and pays later. A client above its limit is
throttled until the average is back at the limit:

    throttle_ms = (rate - limit) / limit * covered_ms          at most MAX_THROTTLE_MS

Request time is throttled for at most one second at a time, because its measure is rough. The value is recorded in any
case: the work is done.

Controller mutations have a *token bucket* (KIP-599): it holds the limit times 11 seconds, and refills at the limit. A
request that finds tokens may take more than there are, and leaves a debt; one that finds a debt is refused (`strict`),
or admitted with a throttle time for clients that do not know the refusal.

The caller passes a time in milliseconds that never goes back. The number of rates in memory is bounded: the one that
was not used for longest is forgotten, and with it a debt. To profit, a client needs `MAX_TRACKED` other client ids.
"""

from collections import OrderedDict, deque

from penstock.security.quotas import NO_QUOTAS, Quota, QuotaKind, QuotaTable

WINDOWS = 11
"""Kafka's quota.window.num: ten whole ones and the current one."""
WINDOW_MS = 1_000
"""Kafka's quota.window.size.seconds."""
MAX_REQUEST_THROTTLE_MS = WINDOW_MS
MAX_THROTTLE_MS = 3_600_000
"""An hour. Responses say it in 32 bits, which a few megabytes exceed if the limit is one byte a second. A client that
waits for days would not notice either that its quota was raised."""
MAX_TRACKED = 20_000
"""Rates in memory, each under 1 KB: 20 MB. It is as many as a node has connections."""


def _bounded(throttle_ms: float) -> int:
    return round(min(throttle_ms, MAX_THROTTLE_MS))


class WindowedRate:
    """Kafka's Rate: the average of a sum over the last windows."""

    __slots__ = ("_samples",)

    def __init__(self) -> None:
        self._samples: deque[list[float]] = deque()
        """Pairs of a window's begin and its sum."""

    def record(self, value: float, now_ms: int) -> None:
        """Adds to the current window, or begins one. A negative value takes back."""
        self._forget(now_ms)
        if not self._samples or now_ms - self._samples[-1][0] >= WINDOW_MS:
            self._samples.append([now_ms, 0.0])
        self._samples[-1][1] += value

    def _forget(self, now_ms: int) -> None:
        while self._samples and now_ms - self._samples[0][0] >= WINDOWS * WINDOW_MS:
            self._samples.popleft()

    def covered_ms(self, now_ms: int) -> int:
        """The time that the sum is divided by: since the oldest window began, at least 10 windows."""
        self._forget(now_ms)
        elapsed_ms = int(now_ms - self._samples[0][0]) if self._samples else 0
        missing = max(0, WINDOWS - 1 - elapsed_ms // WINDOW_MS)
        return elapsed_ms + missing * WINDOW_MS

    def per_second(self, now_ms: int) -> float:
        """The rate."""
        covered_ms = self.covered_ms(now_ms)
        return sum(total for _, total in self._samples) / (covered_ms / 1000)

    def throttle_ms(self, limit: float, now_ms: int) -> int:
        """How long it takes until the rate is back at the limit; 0 if it is not above."""
        excess = self.per_second(now_ms) - limit
        return _bounded(excess / limit * self.covered_ms(now_ms)) if excess > 0 else 0


class TokenBucket:
    """Kafka's TokenBucket. It is full at the beginning."""

    __slots__ = ("_tokens", "_updated_ms")

    def __init__(self, limit: float, now_ms: int) -> None:
        self._tokens = _burst(limit)
        self._updated_ms = now_ms

    def _refill(self, limit: float, now_ms: int) -> None:
        gained = limit * (now_ms - self._updated_ms) / 1000
        self._tokens = min(_burst(limit), self._tokens + gained)
        self._updated_ms = now_ms

    def throttle_ms(self, limit: float, now_ms: int) -> int:
        """How long it takes until the debt is paid; 0 if there is none."""
        self._refill(limit, now_ms)
        return _bounded(-self._tokens / limit * 1000) if self._tokens < 0 else 0

    def take(self, amount: float, limit: float, now_ms: int) -> None:
        """Takes tokens, also those that are not there."""
        self._refill(limit, now_ms)
        self._tokens -= amount


def _burst(limit: float) -> float:
    return limit * WINDOWS * WINDOW_MS / 1000


_Key = tuple[QuotaKind, str | None, str | None]


def request_share(busy_ms: float) -> float:
    """The value to record for REQUEST_PERCENTAGE when a request has kept a thread busy for so long."""
    return busy_ms / 10


class ClientQuotas:
    """What clients have used, and how long to throttle them for it."""

    __slots__ = ("_buckets", "_max_tracked", "_rates", "table")

    def __init__(self, table: QuotaTable = NO_QUOTAS, max_tracked: int = MAX_TRACKED) -> None:
        self.table = table
        """Replaced when quotas change. Usage from before still counts."""
        self._max_tracked = max_tracked
        self._rates: OrderedDict[_Key, WindowedRate] = OrderedDict()
        self._buckets: OrderedDict[_Key, TokenBucket] = OrderedDict()

    @property
    def tracked(self) -> int:
        """Rates and buckets in memory."""
        return len(self._rates) + len(self._buckets)

    def _rate(self, key: _Key) -> WindowedRate:
        rate = self._rates.get(key)
        if rate is None:
            rate = self._rates[key] = WindowedRate()
            if len(self._rates) > self._max_tracked:
                self._rates.popitem(last=False)
        else:
            self._rates.move_to_end(key)
        return rate

    def record(self, kind: QuotaKind, user: str, client_id: str, value: float, now_ms: int) -> int:
        """Records that a client used so much, and returns how long to throttle it, in milliseconds."""
        quota = self.table.find(kind, user, client_id)
        if quota is None:
            return 0
        rate = self._rate((kind, quota.user, quota.client_id))
        rate.record(value, now_ms)
        throttle_ms = rate.throttle_ms(quota.limit, now_ms)
        return (
            min(throttle_ms, MAX_REQUEST_THROTTLE_MS) if kind == QuotaKind.REQUEST_PERCENTAGE else throttle_ms
        )

    def throttle_ms(self, kind: QuotaKind, user: str, client_id: str, now_ms: int) -> int:
        """How long a client must wait because of what it has used before."""
        quota = self.table.find(kind, user, client_id)
        rate = None if quota is None else self._rates.get((kind, quota.user, quota.client_id))
        return 0 if quota is None or rate is None else rate.throttle_ms(quota.limit, now_ms)

    def unrecord(self, kind: QuotaKind, user: str, client_id: str, value: float, now_ms: int) -> None:
        """Takes back what was recorded and then not sent: a throttled Fetch gets an empty response."""
        quota = self.table.find(kind, user, client_id)
        if quota is not None:
            self._rate((kind, quota.user, quota.client_id)).record(-value, now_ms)

    def most_at_once(self, kind: QuotaKind, user: str, client_id: str) -> float | None:
        """The most that one response may have without exceeding the quota by itself; None without a quota."""
        quota = self.table.find(kind, user, client_id)
        return None if quota is None else quota.limit * (WINDOWS - 1) * WINDOW_MS / 1000

    def record_mutations(
        self, user: str, client_id: str, partitions: int, now_ms: int, *, strict: bool
    ) -> tuple[bool, int]:
        """Whether the mutations are admitted, and how long to throttle the client. `strict` is for versions of requests
        that may be answered with THROTTLING_QUOTA_EXCEEDED; others are always admitted."""
        quota = self.table.find(QuotaKind.CONTROLLER_MUTATION_RATE, user, client_id)
        if quota is None:
            return True, 0
        bucket = self._bucket(quota, now_ms)
        debt_ms = bucket.throttle_ms(quota.limit, now_ms)
        if strict and debt_ms:
            return False, debt_ms
        bucket.take(partitions, quota.limit, now_ms)
        return True, 0 if strict else bucket.throttle_ms(quota.limit, now_ms)

    def _bucket(self, quota: Quota, now_ms: int) -> TokenBucket:
        key = (QuotaKind.CONTROLLER_MUTATION_RATE, quota.user, quota.client_id)
        bucket = self._buckets.get(key)
        if bucket is None:
            bucket = self._buckets[key] = TokenBucket(quota.limit, now_ms)
            if len(self._buckets) > self._max_tracked:
                self._buckets.popitem(last=False)
        else:
            self._buckets.move_to_end(key)
        return bucket

    def record_connection(self, ip: str, now_ms: int) -> int:
        """Records a new connection and returns how long to wait before it is served. A connection that is throttled is
        not counted, as in Kafka: else clients that try again would never get in."""
        limit = self.table.connection_rate(ip)
        if limit is None:
            return 0
        rate = self._rate((QuotaKind.CONNECTION_CREATION_RATE, ip, None))
        rate.record(1, now_ms)
        throttle_ms = rate.throttle_ms(limit, now_ms)
        if throttle_ms:
            rate.record(-1, now_ms)
        return throttle_ms
