"""How many series there can be, and what becomes of names."""

import random
import time
from dataclasses import replace

import pytest

from headgate.config.gateway import ObserveConfig
from headgate.measure.figures import MOST_SERIES, Figures
from headgate.model.lane import LANES
from headgate.model.outcome import Outcome
from tests.observe.records import T0, compliance, figures, record


def count(of: Figures, figure: str, window_s: int, now: float, **which: str) -> int:
    return of.sketch(figure, window_s, now, **which).count


def names(given: Figures, place: int) -> set[str]:
    return {labels[place] for labels in given.series}


def test_more_names_than_allowed_are_other() -> None:
    given = figures(labels=3)
    given.take([record(model=f"m{n}", version="v", ttft_s=0.1) for n in range(10)], T0)
    assert names(given, 1) == {"m0", "m1", "m2", "other"}
    assert count(given, "ttft", 60, T0, model="other") == 7
    assert count(given, "ttft", 60, T0) == 10


def test_a_model_that_nobody_looked_up_takes_no_name() -> None:
    given = figures(labels=3)
    made_up = (Outcome.UNKNOWN_MODEL, Outcome.INVALID, Outcome.UNAUTHORIZED, Outcome.OVER_LIMIT)
    given.take([record(model=f"junk{n}", outcome=outcome) for n in range(10) for outcome in made_up], T0)
    given.take([record(model="real")], T0)
    given.take([record(model="real", outcome=Outcome.OVER_LIMIT)], T0)
    assert names(given, 1) == {"other", "real"}
    assert given.counts(60, T0, model="real").requests == 2


def test_a_lane_that_is_not_configured_is_other() -> None:
    given = figures()
    given.take([record("made up", outcome=Outcome.INVALID), record("", outcome=Outcome.UNAUTHORIZED)], T0)
    assert names(given, 0) == {"other"}
    assert given.counts(60, T0).requests == 2
    assert given.counts(60, T0, lane="other").requests == 2


def test_the_number_of_series_has_an_end_whatever_the_labels_are() -> None:
    given = figures(labels=50)
    rng = random.Random(2)
    given.take(
        [
            record(
                rng.choice(list(LANES)),
                model=f"m{rng.randrange(100)}",
                version=f"v{rng.randrange(100)}",
                tier=f"t{rng.randrange(100)}",
                quantization=f"q{rng.randrange(100)}",
                gpu_type=f"g{rng.randrange(100)}",
                ttft_s=0.1,
            )
            for _ in range(20_000)
        ],
        T0,
    )
    assert MOST_SERIES <= len(given.series) <= MOST_SERIES + len(LANES)
    assert count(given, "ttft", 60, T0) == 20_000
    assert sum(count(given, "ttft", 60, T0, model=model) for model in names(given, 1)) == 20_000


def test_names_that_are_not_used_any_more_make_room() -> None:
    given = figures(labels=2)
    given.take([record(model="a", prompt_tokens=1), record(model="b", prompt_tokens=1)], T0)
    now = T0
    while now < T0 + 3800:
        now += 30
        given.take([record(model="b", prompt_tokens=1), record(model="c", prompt_tokens=1)], now)
    assert names(given, 1) == {"b", "c", "other"}
    assert {labels[1] for labels in given._windows} == {"b", "c", "other"}
    assert {model for _, model in given.tokens} == {"b", "c", "other"}
    while now < T0 + 8000:
        now += 30
        given.take([record(model="b", prompt_tokens=1), record(model="c", prompt_tokens=1)], now)
    assert names(given, 1) == {"b", "c"}


def test_a_models_tokens_do_not_fall_when_one_of_its_versions_is_forgotten() -> None:
    given = figures()
    given.take([record(version="old", prompt_tokens=100), record(version="new", prompt_tokens=1)], T0)
    before, now = 0, T0
    while now < T0 + 4000:
        now += 30
        given.take([record(version="new", prompt_tokens=1)], now)
        tokens = given.tokens["fast", "m"].prompt
        assert tokens > before
        before = tokens
    assert names(given, 2) == {"new"}
    assert before > 200


def test_a_new_config_is_followed() -> None:
    lanes = dict(LANES)
    given = Figures(lanes, ObserveConfig(), T0)
    given.take([record(ttft_s=0.4)], T0)
    lanes["fast"] = replace(lanes["fast"], ttft_target_s=0.3)
    lanes["extra"] = replace(lanes["slow"], name="extra")
    given.take([record(ttft_s=0.4), record("extra", ttft_s=1.0)], T0 + 6)
    assert given.counts(60, T0 + 6, lane="fast").late == 1
    assert given.counts(60, T0 + 6, lane="extra").requests == 1
    assert [kept.within_s for kept in compliance(given, "fast", T0 + 6)][1] == 0.3


@pytest.mark.timeout(60)
def test_a_hundred_thousand_names_are_taken_quickly_and_leave_no_more_series_than_allowed() -> None:
    given = figures()
    records = [
        record(
            ("fast", "slow")[n % 2], id=f"user-{n}", tenant=f"tenant-{n}", model=f"model-{n}", version=f"v{n}",
            tier=f"tier-{n}", quantization=f"q{n}", gpu_type=f"g{n}", ttft_s=0.1 + n / 1e6, tpot_s=0.01, queue_s=0.001,
        )
        for n in range(100_000)
    ]  # fmt: skip
    began = time.thread_time()
    given.take(records, T0)
    took_us = (time.thread_time() - began) / len(records) * 1e6
    print(f"{took_us:.1f} µs a record")
    assert took_us < 60
    assert len(given.series) <= 101 * 2
    assert len(given._windows) == len(given.series)
    assert all(len(cap) == 100 for cap in given._caps)
    assert given.counts(60, T0).requests == 100_000
