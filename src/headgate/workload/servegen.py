"""Generates a day of one of ServeGen's models: some dozens of clients, each with a rate that changes every ten minutes,
and with its own distributions of gaps and lengths."""

import csv
import heapq
import io
import math
import random
from bisect import bisect_right
from collections.abc import Iterator
from dataclasses import dataclass, field
from functools import lru_cache

from headgate.workload.arrival import Arrival
from headgate.workload.traces import data

WINDOW_S = 600.0
DAY_S = 86_400.0


@dataclass(slots=True)
class ServegenClient:
    name: str
    windows: list[tuple[float, float, str, float]] = field(default_factory=list)
    """Begin, requests per second, G(amma) or W(eibull), shape."""
    prompts: list[tuple[float, tuple[float, ...]]] = field(default_factory=list)
    """Begin, quantiles at LEVELS."""
    outputs: list[tuple[float, tuple[float, ...]]] = field(default_factory=list)


LEVELS = (0, 0.01, 0.05, 0.1, 0.2, 0.3, 0.4, 0.5, 0.6, 0.7, 0.8, 0.9, 0.95, 0.99, 0.999, 1)


@lru_cache(maxsize=2)
def clients(model: str) -> tuple[ServegenClient, ...]:
    found: dict[str, ServegenClient] = {}
    for row in csv.DictReader(io.TextIOWrapper(data(f"servegen_{model}_rates.csv.gz"))):
        client = found.setdefault(row["client"], ServegenClient(f"client-{row['client']}"))
        client.windows.append((float(row["t_s"]), float(row["rate_rps"]), row["dist"], float(row["shape"])))
    for row in csv.DictReader(io.TextIOWrapper(data(f"servegen_{model}_lengths.csv.gz"))):
        if row["client"] in found:
            client = found[row["client"]]
            quantiles = tuple(float(row[f"q{level:g}"]) for level in LEVELS)
            kept = client.prompts if row["field"] == "input_tokens" else client.outputs
            kept.append((float(row["t_s"]), quantiles))
    everyone = tuple(found.values())
    _lend_lengths(everyone)
    return everyone


def _lend_lengths(everyone: tuple[ServegenClient, ...]) -> None:
    """Gives clients without lengths in the source data the lengths of another client, drawn at random."""
    known = [client for client in everyone if client.prompts and client.outputs]
    rng = random.Random("lengths")
    for client in everyone:
        if not client.prompts or not client.outputs:
            lender = rng.choice(known)
            client.prompts, client.outputs = lender.prompts, lender.outputs


def mean_rate(model: str, begin_s: float, end_s: float) -> float:
    """Requests per second in that part of the day, all clients together."""
    total = sum(
        rate * max(0.0, min(begin + WINDOW_S, end_s) - max(begin, begin_s))
        for client in clients(model)
        for begin, rate, _, _ in client.windows
    )
    return total / (end_s - begin_s)


def day(model: str, seed: str, rate_scale: float, begin_s: float, end_s: float) -> Iterator[Arrival]:
    """Arrivals in that part of the day, at the day's own times, with every rate multiplied by `rate_scale`."""
    streams = (
        _client(client, random.Random(f"{seed}/{client.name}"), rate_scale, begin_s, end_s) for client in clients(model)
    )
    return heapq.merge(*streams, key=lambda arrival: arrival.at_s)


def _client(
    client: ServegenClient, rng: random.Random, scale: float, begin_s: float, end_s: float
) -> Iterator[Arrival]:
    """Gaps are drawn with a mean of one request, and pass at the current rate, so the end of a window cuts no gap
    short. The fitted scales are not used: for bursty clients they miss the measured rate."""
    due = rng.random()
    for begin, rate, kind, shape in client.windows:
        at, end, rate = max(begin, begin_s), min(begin + WINDOW_S, end_s), rate * scale
        if end <= at:
            continue
        while (took := due / rate) <= end - at:
            at += took
            prompt, output = _length(client.prompts, at, rng), _length(client.outputs, at, rng)
            yield Arrival(at, prompt, output, tenant=client.name)
            due = _gap(kind, shape, rng)
        due -= (end - at) * rate


def _gap(kind: str, shape: float, rng: random.Random) -> float:
    if kind == "G":
        return rng.gammavariate(shape, 1 / shape)
    return rng.weibullvariate(1 / math.gamma(1 + 1 / shape), shape)


def _length(windows: list[tuple[float, tuple[float, ...]]], at_s: float, rng: random.Random) -> int:
    quantiles = windows[0][1]
    for begin, later in windows:
        if begin <= at_s:
            quantiles = later
    share = rng.random()
    index = min(bisect_right(LEVELS, share), len(LEVELS) - 1)
    low, high = LEVELS[index - 1], LEVELS[index]
    length = quantiles[index - 1] + (quantiles[index] - quantiles[index - 1]) * (share - low) / (high - low)
    return max(1, round(length))
