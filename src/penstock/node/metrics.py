"""Counters of the node: plain numbers, formatted only when a client scrapes them."""

from bisect import bisect_left
from copy import copy

LATENCY_BUCKETS_SECONDS = (0.0005, 0.001, 0.0025, 0.005, 0.01, 0.025, 0.05, 0.1, 0.25, 0.5, 1.0, 5.0, 30.0)


class ApiMetrics:
    """One API's requests. `buckets[i]` counts those of at most LATENCY_BUCKETS_SECONDS[i]; the last, all others."""

    __slots__ = ("buckets", "errors", "requests", "seconds")

    def __init__(self) -> None:
        self.requests = 0
        self.errors = 0
        self.seconds = 0.0
        self.buckets = [0] * (len(LATENCY_BUCKETS_SECONDS) + 1)

    def copy(self) -> "ApiMetrics":
        other = copy(self)
        other.buckets = self.buckets[:]
        return other


class NodeMetrics:
    """Counters that the hot path bumps; everything that can be derived is derived at scrape time instead."""

    __slots__ = (
        "apis",
        "bytes_in",
        "bytes_out",
        "connections",
        "connections_total",
        "elections_won",
        "failed_logins",
        "http_bytes_in",
        "http_bytes_out",
        "loop_lag_seconds",
        "slow_turns",
        "started_seconds",
        "throttled",
    )

    def __init__(self, started_seconds: float) -> None:
        self.started_seconds = started_seconds
        self.bytes_in = 0
        self.bytes_out = 0
        self.connections = 0
        self.connections_total = 0
        self.elections_won = 0
        self.failed_logins = 0
        self.http_bytes_in = 0
        self.http_bytes_out = 0
        """Requests that publish, responses and frames with records. `bytes_in` and `bytes_out` count Kafka clients."""
        self.loop_lag_seconds = 0.0
        self.slow_turns = 0
        self.throttled: dict[str, int] = {}
        """Requests and connections, by the quota that they exceeded."""
        self.apis: dict[int, ApiMetrics] = {}

    def request_done(self, api_key: int, seconds: float, error: bool) -> None:
        api = self.apis.get(api_key)
        if api is None:
            api = self.apis[api_key] = ApiMetrics()
        api.requests += 1
        api.seconds += seconds
        api.buckets[bisect_left(LATENCY_BUCKETS_SECONDS, seconds)] += 1
        if error:
            api.errors += 1

    def copy(self) -> "NodeMetrics":
        """The counters as they are now, for a thread that formats them."""
        other = copy(self)
        other.throttled = dict(self.throttled)
        other.apis = {api_key: api.copy() for api_key, api in self.apis.items()}
        return other
