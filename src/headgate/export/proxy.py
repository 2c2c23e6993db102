"""Derives the settings for a proxy in front of the gateway: the figures for nginx, Envoy, an ALB and Cloudflare.

One rule is behind all of them: the gateway should give up first, because it knows why and says so. A proxy with a
shorter timeout turns a waiting request into a bare 504; a proxy that keeps connections longer than the gateway sends
requests into connections that are being closed.
"""

import math
from collections.abc import Sequence
from dataclasses import dataclass
from urllib.parse import urlsplit

from headgate.config.gateway import GatewayConfig
from headgate.model.errors import UsageError

CLIENTS_WAIT_S = 600.0
"""Seconds that the official clients wait for a whole answer that is not streamed. In all that time nothing may be
sent."""
KEPT_SHARE = 0.8
"""Share of the gateway's idle timeout for which a proxy may keep an unused connection."""
_EVERYWHERE = {"0.0.0.0": "127.0.0.1", "::": "::1"}


@dataclass(frozen=True, slots=True)
class Address:
    host: str
    port: int

    def __str__(self) -> str:
        return f"[{self.host}]:{self.port}" if ":" in self.host else f"{self.host}:{self.port}"


@dataclass(frozen=True, slots=True)
class Facing:
    """The gateway as a proxy sees it."""

    gateways: tuple[Address, ...]
    tls: bool
    """Whether the gateways themselves use TLS."""
    quiet_s: int
    """Longest time in seconds for which a healthy gateway may send nothing."""
    kept_s: int
    """Seconds for which an unused connection to a gateway may be kept."""
    connect_s: int
    drain_s: int
    header_s: int
    body_s: int
    header_bytes: int
    body_bytes: int
    connections: int


def facing(config: GatewayConfig, gateways: Sequence[str] = ()) -> Facing:
    """`gateways`: addresses as host:port; empty: this machine, on the configured port."""
    limits, timeouts = config.limits, config.timeouts
    return Facing(
        gateways=tuple(map(address, gateways)) or (_own(config),),
        tls=config.listen.tls is not None,
        quiet_s=_up(max(CLIENTS_WAIT_S, first_byte_s(config), timeouts.stall_s)),
        kept_s=max(1, int(KEPT_SHARE * timeouts.idle_s)),
        connect_s=_up(timeouts.connect_s),
        drain_s=_up(config.listen.drain_s),
        header_s=_up(timeouts.header_s),
        body_s=_up(timeouts.body_s),
        header_bytes=limits.header_bytes,
        body_bytes=limits.body_bytes,
        connections=limits.connections,
    )


def first_byte_s(config: GatewayConfig) -> float:
    """Longest time in seconds that a request may wait for its first byte: in the queue, for a replica, and on each
    attempt."""
    timeouts = config.timeouts
    waiting = max((lane.wait_bound_s for lane in config.lanes), default=0.0) + timeouts.no_replica_wait_s
    return waiting + timeouts.first_token_s * config.retry.attempts


def address(text: str) -> Address:
    try:
        parts = urlsplit(f"//{text}")
        host, port = parts.hostname, parts.port
    except ValueError:
        host = port = None
    if not host or not port or parts.path or parts.username or any(c in text for c in " \t\r\n;{}\"'"):
        raise UsageError(f"--gateway: expected host:port, such as 10.0.0.7:8000; got {text!r}")
    return Address(host, port)


def _own(config: GatewayConfig) -> Address:
    listen = config.listen
    if listen.uds is not None:
        raise UsageError("listen.uds: this is for a gateway with a port; say where with --gateway HOST:PORT")
    if listen.port == 0:
        raise UsageError("listen.port is 0, so the port is known only once it runs; say where with --gateway HOST:PORT")
    return Address(_EVERYWHERE.get(listen.host, listen.host), listen.port)


def _up(value: float) -> int:
    return max(1, math.ceil(value))
