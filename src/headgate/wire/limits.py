"""Defines every bound of the wire in one place: how much one client may ask of this process.

What the config sets has the config's default.
"""

from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import Final

from headgate.config.gateway import LimitsConfig, TimeoutsConfig

LIMITS: Final = LimitsConfig()
TIMEOUTS: Final = TimeoutsConfig()


@dataclass(frozen=True, slots=True, kw_only=True)
class WireLimits:
    header_bytes: int = LIMITS.header_bytes
    """Maximum size of request line and headers together; more is answered 431. Also bounds trailers and chunk
    extensions."""
    header_count: int = LIMITS.header_count
    """Maximum number of headers, trailers included; more are answered 431."""
    body_bytes: int = LIMITS.body_bytes
    """Maximum size of a body; a larger one is answered 413: unread if it announces its length, else as soon as it is
    passed."""
    bodies_bytes: int = LIMITS.bodies_bytes
    """Bytes of all clients that have arrived and are not handed to a handler yet: unfinished bodies and WebSocket
    messages, and pipelined requests. Past it, the client that has taken longest is answered 503."""
    header_timeout_s: float = TIMEOUTS.header_s
    """Seconds from a request's first byte to the end of its headers; then 408. Also for a TLS handshake; then the
    connection is closed."""
    body_timeout_s: float = TIMEOUTS.body_s
    """Seconds from the end of the headers to the end of the body; then 408."""
    idle_timeout_s: float = TIMEOUTS.idle_s
    """Seconds after which a connection on which no request begins is closed, silently."""
    linger_s: float = 2.0
    """Seconds after a refusal during which unread input is still read and thrown away. Closing at once would send a
    reset, and a client busy sending its body would never see the answer."""
    flush_timeout_s: float = 30.0
    """Seconds after which a closing connection is aborted if its client does not read the rest."""
    max_connections: int = LIMITS.connections
    """Maximum connections. For a further one, the oldest idle connection is closed, or one whose request is not
    complete. Where all are being answered, the newcomer is answered 503."""
    extra_connections: int = 256
    """Connections beyond max_connections at the same time: to be answered 503, or for health checks, which are
    served."""
    pipelined: int = 16
    """Requests taken at once, from one read or from held bytes; further ones are not answered, and the connection is
    closed."""
    held_bytes: int = 1024 * 1024
    """Bytes kept unparsed while a request is being answered; beyond that all of them are thrown away, and the
    connection is closed after that answer. The socket is still read: else the client's leaving would not be noticed."""
    write_high_water: int = 32 * 1024
    """Unsent bytes at which an exchange stops being writable; it is writable again at a quarter of them."""
    notsent_lowat: int = 16 * 1024
    """Unsent bytes that the kernel accepts. By its own default it accepts 4 MB, 19 000 small events, before a stalled
    reader is noticed."""
    uploads: Mapping[str, int] = field(default_factory=dict)
    """Paths to which bodies are POSTed that their handler takes piece by piece, and the maximum bytes of each: see
    Exchange.sink. `body_bytes` holds for all others."""
    upload_pace_bytes: int = 1024 * 1024
    """Bytes of such a body that have to arrive within each body_timeout_s; then 408."""
    ping_every_s: float = 20.0
    """Seconds of silence after which a WebSocket is pinged: proxies cut quiet ones, often after a minute."""
    pong_timeout_s: float = 20.0
    """Seconds of silence after a ping, after which a WebSocket is dropped."""
    json_depth: int = LIMITS.json_depth
    """Maximum depth of nested objects and arrays in a body."""
    json_containers: int = LIMITS.json_containers
    """Maximum objects, arrays, fractions and words such as true in a body: the values that are slow to read or to
    write. Keys: twice as many."""
    json_values: int = LIMITS.json_values
    """Maximum commas outside of strings in a body: about as many values."""
    messages: int = LIMITS.messages
    """Maximum messages of a chat, or items of a response's input."""


def wire_limits(
    limits: LimitsConfig, timeouts: TimeoutsConfig, most_connections: int, uploads: Mapping[str, int] | None = None
) -> WireLimits:
    """The bounds that a config gives the wire. `most_connections`: as many as there are file descriptors for.
    `uploads`: see WireLimits; None: there are none."""
    return WireLimits(
        header_bytes=limits.header_bytes,
        header_count=limits.header_count,
        body_bytes=limits.body_bytes,
        bodies_bytes=limits.bodies_bytes,
        json_depth=limits.json_depth,
        json_containers=limits.json_containers,
        json_values=limits.json_values,
        messages=limits.messages,
        max_connections=min(limits.connections, most_connections),
        header_timeout_s=timeouts.header_s,
        body_timeout_s=timeouts.body_s,
        idle_timeout_s=timeouts.idle_s,
        uploads=uploads or {},
    )
