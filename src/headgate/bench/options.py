"""Defines the options of `headgate bench` and checks them."""

from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import msgspec

from headgate.bench.asker import Endpoint
from headgate.model.errors import UsageError
from headgate.workload.load import Workload

MOST_AT_ONCE = 10_000


@dataclass(frozen=True, slots=True, kw_only=True)
class BenchOptions:
    url: str
    """http://host:port of any OpenAI-compatible server."""
    workload: str
    """See workload/spec.py for the syntax."""
    rate: float | None = None
    time_scale: float | None = None
    duration_s: float | None = None
    requests: int | None = None
    concurrency: int | None = None
    """Requests in flight, in a closed loop; None: an open loop, by the workload's own times."""
    seed: int = 0
    model: str | None = None
    """None: the first model that the server lists."""
    endpoint: Endpoint = "chat"
    keys: tuple[str, ...] = ()
    """KEY, or TENANT=KEY; env:NAME in place of a key reads it from the environment."""
    goodput: tuple[str, ...] = ()
    """Targets such as ttft:500 tpot:80, in milliseconds."""
    direct: tuple[str, ...] = ()
    """Addresses of engines that get the same load without the gateway."""
    slice_s: float = 15.0
    """Length of a slice, in seconds: the two ways take turns slice by slice."""
    stream: bool | None = None
    ignore_eos: bool = False
    extra_body: str = ""
    """A JSON object whose fields are added to every body."""
    timeout_s: float = 600.0
    """Timeout of one request, in seconds from when it was due."""
    pin: str | None = None
    """Model version to request from Headgate, with a trusted key; None: the version that Headgate chooses."""
    allow_lag: bool = False
    """Don't fail a run whose client fell behind."""
    json: Path | None = None
    html: Path | None = None
    title: str = ""
    progress: bool = True
    command: str = ""
    """The command line, without secrets, for the report; empty: unknown."""


def check_loop(options: BenchOptions) -> None:
    """Refuses options of the open loop where `concurrency` asks for a closed one. Raises StartupError."""
    if options.concurrency is None:
        return
    if not 1 <= options.concurrency <= MOST_AT_ONCE:
        raise UsageError(f"--concurrency is a number from 1 to {MOST_AT_ONCE}, not {options.concurrency}")
    given = {"--rate": options.rate, "--time-scale": options.time_scale, "--direct": options.direct or None}
    for name, value in given.items():
        if value is not None:
            raise UsageError(f"{name} is of the open loop: with --concurrency the next request goes when one ends")


def read_keys(given: tuple[str, ...], environ: Mapping[str, str]) -> dict[str, str]:
    keys: dict[str, str] = {}
    for text in given:
        tenant, equals, key = text.partition("=")
        if not equals or not key:
            tenant, key = "", text
        if key.startswith("env:"):
            name = key.removeprefix("env:")
            if name not in environ:
                raise UsageError(f"--key: the environment has no {name}")
            key = environ[name]
        if not key.isascii() or not key.isprintable() or " " in key:
            raise UsageError("--key: a key has no spaces and no letters beyond ASCII")
        keys[tenant] = key
    return keys


def check_tenants(workload: Workload, keys: Mapping[str, str]) -> None:
    named = [tenant for stream in workload.streams for tenant in stream.tenant]
    missing = sorted({tenant for tenant in named if tenant not in keys})
    if missing and not (set(keys) <= {""}):
        raise UsageError(f"no key for tenant {missing[0]}: give it with --key {missing[0]}=KEY")
    if missing and len(set(named)) > 1:
        raise UsageError(f"tenants are told apart by their keys: give each one, as in --key {missing[0]}=KEY")


def read_extra(text: str) -> dict[str, Any]:
    try:
        extra = msgspec.json.decode(text) if text else {}
    except msgspec.DecodeError as error:
        raise UsageError(f"--extra-body is no JSON: {error}") from None
    if not isinstance(extra, dict):
        raise UsageError('--extra-body is an object, such as {"temperature":0}')
    return extra
