"""Defines type hints that carry bounds, for `config/file.py` to check."""

import re
from collections.abc import Callable
from dataclasses import dataclass
from typing import Annotated, Any, Literal
from urllib.parse import urlsplit

from headgate.model.dialect import DIALECTS


@dataclass(frozen=True, slots=True)
class Check:
    expected: str
    """The end of the message "expected a number …"."""
    allows: Callable[[Any], bool]
    secret: bool = False
    """The value is never shown: an operator may have written a key where its hash belongs."""


def between(least: float, most: float) -> Check:
    return Check(f"from {least:g} to {most:d}", lambda value: least <= value <= most)


def above_zero(most: int) -> Check:
    return Check(f"above 0, at most {most:d}", lambda value: 0 < value <= most)


def matching(pattern: str, expected: str) -> Check:
    return Check(expected, lambda value: re.fullmatch(pattern, value) is not None)


def _is_key_hash(value: str) -> bool:
    return re.fullmatch(r"[0-9a-f]{64}", value) is not None and value != _HASH_OF_NOTHING


def _is_replica_url(url: str) -> bool:
    if not re.fullmatch(r"https?://[!-~]+|unix:/[!-~]+", url):
        return False
    if url.startswith("unix:"):
        return True
    try:
        parts = urlsplit(url)
        sane = parts.port != 0 and bool(parts.hostname)
    except ValueError:
        return False
    whole = re.fullmatch(r"/*(v1)?/*", parts.path) is not None and "?" not in url and "#" not in url
    return sane and whole and "@" not in parts.netloc


def _is_header_value(value: str) -> bool:
    return re.fullmatch(r"[ -~]{1,4096}", value) is not None and value == value.strip()


def _is_http_url(url: str) -> bool:
    if not re.fullmatch(r"https?://[!-~]{1,2000}", url):
        return False
    try:
        parts = urlsplit(url)
        return bool(parts.hostname) and parts.port != 0 and "@" not in parts.netloc
    except ValueError:
        return False


def _is_web_origin(origin: str) -> bool:
    return origin == "*" or (_is_http_url(origin) and urlsplit(origin)[2:] == ("", "", ""))


def _is_redis_url(url: str) -> bool:
    if not re.fullmatch(r"(redis|rediss)://[!-~]{1,1000}|unix:///[!-~]{1,1000}", url):
        return False
    try:
        parts = urlsplit(url)
        return parts.scheme == "unix" or (bool(parts.hostname) and parts.port != 0)
    except ValueError:
        return False


_HASH_OF_NOTHING = "e3b0c44298fc1c149afbf4c8996fb92427ae41e4649b934ca495991b7852b855"
GIGA = 1_000_000_000
BEND = 0.65
"""Share of the replicas' room in use above which latency begins to bend: the default of three settings."""

Seconds = Annotated[float, above_zero(86_400)]
SecondsOrZero = Annotated[float, between(0, 86_400)]
Weight = Annotated[float, above_zero(1_000_000)]
WeightOrZero = Annotated[float, between(0, 1_000_000)]
Share = Annotated[float, between(0, 1)]
ShareAboveZero = Annotated[float, above_zero(1)]
Count = Annotated[int, between(1, GIGA)]
CountOrZero = Annotated[int, between(0, GIGA)]
PerMinute = Annotated[int, between(1, 1000 * GIGA)]
Name = Annotated[str, matching(r"[A-Za-z0-9][A-Za-z0-9_-]{0,63}", "of letters, digits, '_' and '-', at most 64")]
Text = Annotated[str, matching(r"[^\x00-\x1f\x7f-\x9f\u2028\u2029\ud800-\udfff]{1,256}", "of 1 to 256 characters")]
Prompt = Annotated[str, matching(r"[^\x00\ud800-\udfff]+", "that is not empty")]
DnsName = Annotated[str, matching(r"[a-z0-9]([a-z0-9-]{0,61}[a-z0-9])?", "of lowercase letters, digits and '-'")]
Host = Annotated[str, matching(r"[A-Za-z0-9.:_%-]{1,253}", "such as 127.0.0.1, ::1 or gateway.internal")]
ReplicaName = Annotated[str, matching(r"[!-~]{1,256}", "without spaces, at most 256 characters")]
ReplicaUrl = Annotated[
    str, Check("such as http://host:8000, with no path but /v1, or unix:/run/x.sock", _is_replica_url)
]
HttpUrl = Annotated[str, Check("such as http://127.0.0.1:4318, without a user and password", _is_http_url)]
WebOrigin = Annotated[str, Check('such as https://app.example.com, without a path, or "*"', _is_web_origin)]
RedisUrl = Annotated[str, Check("such as redis://host:6379/0, rediss://… or unix:///path", _is_redis_url, True)]
HeaderValue = Annotated[str, Check("of 1 to 4096 printable ASCII characters", _is_header_value, True)]
KeyHash = Annotated[
    str, Check("of 64 lowercase hex digits, the SHA-256 of a key that is not empty", _is_key_hash, True)
]

Algorithm = Literal[
    "balanced", "round_robin", "least_connections", "weighted", "token_aware", "power_of_two",
    "prefix", "session", "tenant",
]  # fmt: skip
TierName = Literal["premium", "free"]
Kind: Any = Literal.__getitem__(tuple(DIALECTS))
