"""Defines type hints that carry bounds, for `config/file.py` to check."""

import re
from collections.abc import Callable
from dataclasses import dataclass, replace
from typing import Annotated, Any, Literal
from urllib.parse import urlsplit

from headgate.model.dialect import DIALECTS


@dataclass(frozen=True, slots=True)
class Check:
    expected: str
    """The end of the message "expected a number …"."""
    allows: Callable[[Any], bool]
    secret: bool = False
    """The value is never shown: an operator may have written a key where its hash belongs. It may be given as
    NAME_file, too: a path, whose file holds it."""
    duration: bool = False
    """The value is a number of seconds, or text such as 5m."""
    least: float | None = None
    """Smallest number allowed; None: any. `above`: the bound itself is not allowed."""
    most: float | None = None
    above: bool = False
    pattern: str | None = None
    """What the whole text has to match; None: any text, or nothing that a pattern says."""
    advice: Callable[[str], str] | None = None
    """Returns what to do, for a value that is not allowed; empty: nothing is known. None: never."""


def between(least: float, most: float, *, duration: bool = False) -> Check:
    told = f"from {least:g} to {most:d}"
    return Check(told, lambda value: least <= value <= most, duration=duration, least=least, most=most)


def above_zero(most: int, *, duration: bool = False) -> Check:
    told = f"above 0, at most {most:d}"
    return Check(told, lambda value: 0 < value <= most, duration=duration, least=0, most=most, above=True)


def matching(pattern: str, expected: str) -> Check:
    return Check(expected, lambda value: re.fullmatch(pattern, value) is not None, pattern=pattern)


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


def _replica_url_advice(url: str) -> str:
    if re.fullmatch(r"[\w.-]+(:\d+)?(/v1)?/?|\[[0-9a-fA-F:.]+\](:\d+)?/?", url):
        return f"did you mean http://{url}?"
    found = re.fullmatch(r"(https?://[^/@?#]+)[/?#].*", url)
    return f"leave out the path: {found[1]}" if found else ""


def _hash_advice(value: str) -> str:
    if re.fullmatch(r"[0-9a-fA-F]{64}", value):
        return "write it in lowercase" if value != value.lower() else ""
    return "`headgate key --hash` prints the hash of a key"


def _share_advice(value: str) -> str:
    found = re.fullmatch(r"(\d+(?:\.\d+)?) ?%", value)
    return f"write {float(found[1]) / 100:g}" if found else ""


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

Seconds = Annotated[float, above_zero(86_400, duration=True)]
SecondsOrZero = Annotated[float, between(0, 86_400, duration=True)]
Weight = Annotated[float, above_zero(1_000_000)]
WeightOrZero = Annotated[float, between(0, 1_000_000)]
Share = Annotated[float, replace(between(0, 1), advice=_share_advice)]
ShareAboveZero = Annotated[float, replace(above_zero(1), advice=_share_advice)]
Count = Annotated[int, between(1, GIGA)]
CountOrZero = Annotated[int, between(0, GIGA)]
PerMinute = Annotated[int, between(1, 1000 * GIGA)]
Name = Annotated[str, matching(r"[A-Za-z0-9][A-Za-z0-9_-]{0,63}", "of letters, digits, '_' and '-', at most 64")]
Text = Annotated[str, matching(r"[^\x00-\x1f\x7f-\x9f\u2028\u2029\ud800-\udfff]{1,256}", "of 1 to 256 characters")]
Prompt = Annotated[str, matching(r"[^\x00\ud800-\udfff]+", "that is not empty")]
DnsName = Annotated[str, matching(r"[a-z0-9]([a-z0-9-]{0,61}[a-z0-9])?", "of lowercase letters, digits and '-'")]
PoolName = Annotated[
    str, matching(r"[a-z]([a-z0-9-]{0,30}[a-z0-9])?", "of lowercase letters, digits and '-', at most 32")
]
Host = Annotated[str, matching(r"[A-Za-z0-9.:_%-]{1,253}", "such as 127.0.0.1, ::1 or gateway.internal")]
ReplicaName = Annotated[str, matching(r"[!-~]{1,256}", "without spaces, at most 256 characters")]
ReplicaUrl = Annotated[
    str,
    Check(
        "such as http://host:8000, with no path but /v1, or unix:/run/x.sock",
        _is_replica_url,
        advice=_replica_url_advice,
    ),
]
HttpUrl = Annotated[str, Check("such as http://127.0.0.1:4318, without a user and password", _is_http_url)]
SecretUrl = Annotated[
    str, Check("such as https://hooks.example.com/x, without a user and password", _is_http_url, True)
]
WebOrigin = Annotated[str, Check('such as https://app.example.com, without a path, or "*"', _is_web_origin)]
RedisUrl = Annotated[str, Check("such as redis://host:6379/0, rediss://… or unix:///path", _is_redis_url, True)]
HeaderValue = Annotated[str, Check("of 1 to 4096 printable ASCII characters", _is_header_value, True)]
KeyHash = Annotated[
    str,
    Check(
        "of 64 lowercase hex digits, the SHA-256 of a key that is not empty",
        _is_key_hash,
        True,
        pattern="[0-9a-f]{64}",
        advice=_hash_advice,
    ),
]

Algorithm = Literal[
    "balanced", "round_robin", "least_connections", "weighted", "token_aware", "power_of_two",
    "prefix", "session", "tenant",
]  # fmt: skip
TierName = Literal["premium", "free"]
CountedTokens = Literal["whole", "uncached"]
Kind: Any = Literal.__getitem__(tuple(DIALECTS))
Currency = Annotated[str, matching(r"[A-Za-z€£¥₹$]{1,8}", "of 1 to 8 letters, such as USD, or €")]
