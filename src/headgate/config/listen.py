"""Configures where a gateway, an engine or an endpoint picker listens, and judges who can connect there."""

from dataclasses import dataclass
from ipaddress import ip_address
from pathlib import Path
from typing import Annotated, Final, Literal

from headgate.config.hints import Count, Host, SecondsOrZero, between
from headgate.model.errors import UsageError

LOOPBACK: Final = "127.0.0.1"


@dataclass(frozen=True, slots=True, kw_only=True)
class TlsConfig:
    cert: Path
    """PEM file with the certificate and its chain."""
    key: Path
    """PEM file with the private key."""


@dataclass(frozen=True, slots=True, kw_only=True)
class ListenConfig:
    host: Host = LOOPBACK
    """Address to listen on. One other than loopback needs a tenant's key, or --insecure."""
    port: Annotated[int, between(0, 65_535)] = 8000
    """TCP port; 0: a free one."""
    names: tuple[Host, ...] = ()
    """Names of this machine in the Host header, as a proxy in front writes them. Without any key, the gateway answers
    only to these and to loopback's names, because a web page may point any other name here. With a tenant's key, it
    answers to any name."""
    uds: Path | None = None
    """Unix socket to listen on instead of host and port; a leftover socket file is replaced. None: host and port."""
    uds_for: Literal["owner", "group", "everyone"] = "owner"
    """Which users may connect to the socket, by the file's permissions. Admin access without a key needs "owner"."""
    workers: Annotated[int, between(1, 64)] = 1
    """Processes that serve clients on the port; beyond 1, another one decides for all of them. Linux only."""
    tls: TlsConfig | None = None
    """Certificate and key; None: plain HTTP."""
    drain_s: SecondsOrZero = 10.0
    """Maximum time for running streams to finish after SIGTERM."""

    @property
    def is_private(self) -> bool:
        """Whether only this machine can connect or, for a Unix socket, only this user: a proxy, which speaks for
        others, usually runs as another user."""
        return is_loopback(self.host) if self.uds is None else self.uds_for == "owner"


@dataclass(frozen=True, slots=True, kw_only=True)
class EppConfig:
    host: Host = LOOPBACK
    """Address on which proxies ask over gRPC. It has no keys: let only the proxy reach it."""
    port: Annotated[int, between(0, 65_535)] = 9002
    """Its TCP port; 0: a free one."""
    streams: Count = 10_000
    """Maximum requests that proxies may have open; further ones are refused with 503."""


def check_exposure(listen: ListenConfig, has_keys: bool, insecure: bool) -> None:
    """Raises StartupError where other machines could connect and no tenant has a key."""
    if insecure or has_keys or listen.uds is not None or is_loopback(listen.host):
        return
    raise UsageError(
        f"listen.host: {listen.host} can be reached from other machines, and no API key is configured; "
        "give a tenant a key (tenants.NAME.key_sha256), listen on 127.0.0.1, or say --insecure"
    )


def is_loopback(host: str) -> bool:
    try:
        return ip_address(host).is_loopback
    except ValueError:
        return host.lower() == "localhost"
