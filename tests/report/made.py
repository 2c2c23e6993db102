"""Results that were never measured, of a distribution that is known."""

import numpy as np

from headgate.report.results import Floats, Results, Rows, Target

LANES = ("fast", "slow", "agents")


def made(
    seed: int,
    requests: int = 900,
    *,
    factor: float = 1.0,
    refused: float = 0.05,
    lanes: tuple[str, ...] = LANES,
    title: str = "made up",
    notes: tuple[str, ...] = (),
) -> Results:
    """TTFT is log-normal with a median of 200 ms times the factor."""
    rng = np.random.default_rng(seed)
    rows = Rows()
    at = np.cumsum(rng.exponential(0.05, requests))
    for when in at:
        lane = lanes[int(rng.integers(len(lanes)))]
        if rng.random() < refused:
            why = "503 lane_full" if rng.random() < 0.5 else "429 over_limit"
            rows.add(at_s=when, lane=lane, kind="refused", why=why, e2e_s=0.001, gaps=())
            continue
        ttft, tpot, tokens = (
            0.2 * factor * rng.lognormal(0, 0.6),
            0.03 * rng.lognormal(0, 0.2),
            int(rng.integers(2, 99)),
        )
        rows.add(
            at_s=when,
            lane=lane,
            ttft_s=ttft,
            tpot_s=tpot,
            max_gap_s=3 * tpot,
            e2e_s=ttft + tpot * (tokens - 1),
            prompt_tokens=100,
            output_tokens=tokens,
            gaps=[tpot] * (tokens - 1),
        )
    return rows.results(
        title,
        source="simulation",
        goodput=[Target("ttft", 0.5), Target("tpot", 0.08)],
        promises=[Target("ttft", 0.7, lanes[0], 0.95)],
        facts={"seed": str(seed), "workload": "made up <here>"},
        notes=notes,
    )


def remembering(rng: np.random.Generator, n: int, memory: float) -> Floats:
    """Log-normal, each value like the one before."""
    noise = rng.normal(0, np.sqrt(1 - memory**2), n)
    state = float(rng.normal())
    found = np.empty(n)
    for index in range(n):
        state = memory * state + float(noise[index])
        found[index] = state
    return np.asarray(np.exp(found))
