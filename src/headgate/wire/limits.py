"""How much may one client ask of this process? Every bound of the wire, in one place."""

from dataclasses import dataclass


@dataclass(frozen=True, slots=True, kw_only=True)
class WireLimits:
    header_bytes: int = 16 * 1024
    """Request line and headers together; more is answered 431. Also bounds trailers and chunk extensions."""
    header_count: int = 100
    """More headers (trailers included) are answered 431."""
    body_bytes: int = 8 * 1024 * 1024
    """A larger body is answered 413: unread if it announces its length, else as soon as it is passed."""
    bodies_bytes: int = 256 * 1024 * 1024
    """Bytes of all clients that have arrived and are not handed to a handler yet: unfinished bodies and WebSocket
    messages, and what is pipelined. Past it, the one that has taken longest is answered 503."""
    header_timeout_s: float = 10.0
    """From a request's first byte to the end of its headers; then 408. Also for a TLS handshake; then the connection is
    closed."""
    body_timeout_s: float = 60.0
    """From the end of the headers to the end of the body; then 408."""
    idle_timeout_s: float = 75.0
    """A connection on which no request begins is closed, silently, after this."""
    linger_s: float = 2.0
    """After a refusal, how long unread input is still read and thrown away. Closing at once would send a
    reset, and a client busy sending its body would never see the answer."""
    flush_timeout_s: float = 30.0
    """A closing connection whose client does not read the rest is aborted after this."""
    max_connections: int = 16_384
    """For a further one the oldest idle connection is closed, or one whose request is not complete. Where all are being
    answered, it is answered 503."""
    extra_connections: int = 256
    """Connections beyond max_connections at the same time: to be told 503, or for health checks, which are served."""
    pipelined: int = 16
    """Requests taken at once, from one read or from what was held; those behind are not answered, and the
    connection is closed."""
    held_bytes: int = 1024 * 1024
    """Bytes kept unparsed while a request is being answered; at more, all of it is thrown away, and the connection is
    closed after that answer. The socket is read on: else the client's leaving would not be noticed."""
    write_high_water: int = 32 * 1024
    """Unsent bytes at which an exchange stops being writable; it is again at a quarter of it."""
    notsent_lowat: int = 16 * 1024
    """Unsent bytes the kernel accepts. By its own default it takes 4 MB, 19 000 small events, before a
    stalled reader is noticed."""
    ping_every_s: float = 20.0
    """A WebSocket on which nothing has come for this long is pinged: proxies cut quiet ones, often after a minute."""
    pong_timeout_s: float = 20.0
    """A WebSocket on which nothing has come for this long after a ping is dropped."""
    json_depth: int = 64
    """Objects and arrays within each other in a body."""
    json_containers: int = 30_000
    """Objects, arrays, fractions and words such as true in a body: what is slow to read or to write.
    Keys: twice as many."""
    json_values: int = 500_000
    """Commas outside of strings in a body: about as many values."""
    messages: int = 10_000
    """Messages of a chat, or items of a response's input."""
