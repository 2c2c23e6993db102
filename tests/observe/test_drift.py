"""Replicas beside their machine profiles."""

from collections.abc import Sequence
from typing import Any

import pytest

from headgate.explain.diagnose import DriftView, View, findings
from headgate.machine.profile import PROFILES
from headgate.machine.step_features import StepFeatures
from headgate.model.outcome import Outcome
from headgate.model.record import Record
from headgate.model.replica import Replica
from headgate.surface.drift import AT_A_TIME, EVERY_S, LEAST, Drift, token_ratios

H100 = PROFILES["h100-llama3-8b"]
TOKENS = 41


def answer(
    at: float, stream_s: float, *, prompt: int = 100, ttft_s: float = 0.02, tokens: int = TOKENS, **more: Any
) -> Record:
    fields: dict[str, Any] = {
        "id": f"r{at}", "at": at, "lane": "fast", "tenant": "t", "model": "m", "replica": "a", "stream": True,
        "outcome": Outcome.COMPLETED, "prompt_tokens": prompt, "output_tokens": tokens, "ttft_s": ttft_s,
        "stream_s": stream_s,
    } | more  # fmt: skip
    return Record(**fields)


def step_s(decodes: int, context: float, prefill: int = 0) -> float:
    return H100.step_s(StepFeatures(decodes=decodes, context=round(context), prefill=prefill, pairs=prefill**2))


def alone(count: int, slower: float = 1.0) -> list[Record]:
    """One answer after the other."""
    took_s = slower * (TOKENS - 1) * step_s(1, 100 + TOKENS / 2)
    return [answer(10.0 * number, took_s) for number in range(count)]


def test_answers_that_are_alone_take_what_the_profile_says() -> None:
    assert token_ratios(H100, alone(5)) == pytest.approx([1.0] * 5, rel=0.01)
    assert token_ratios(H100, alone(5, slower=1.7)) == pytest.approx([1.7] * 5, rel=0.01)


def test_a_batch_is_judged_as_a_batch() -> None:
    took_s = (TOKENS - 1) * step_s(16, 16 * (1000 + TOKENS / 2))
    batch = [answer(0.0, took_s, prompt=1000) for _ in range(16)]
    assert token_ratios(H100, batch) == pytest.approx([1.0] * 16, rel=0.01)


def test_prompts_that_are_computed_meanwhile_are_counted() -> None:
    chunk_s, decode_s = step_s(1, 120, prefill=512), step_s(1, 120)
    running = answer(0.0, (TOKENS - 3) * decode_s + 2 * chunk_s)
    beside = answer(0.1, 5.0, prompt=1024, ttft_s=0.05, tokens=7)  # too short to be judged, and known for its prompt
    ratios = token_ratios(H100, [running, Record(**(_fields(beside) | {"output_tokens": 400}))])
    assert ratios[0] == pytest.approx(1.0, rel=0.15)


def _fields(record: Record) -> dict[str, Any]:
    return {name: getattr(record, name) for name in record.__struct_fields__}


@pytest.mark.parametrize(
    "odd",
    [
        {"outcome": Outcome.CANCELLED}, {"stream": False}, {"choices": 2}, {"ttft_s": None}, {"stream_s": 0.0},
        {"output_tokens": 3},
    ],
)  # fmt: skip
def test_answers_that_tell_nothing_are_left_out(odd: dict[str, Any]) -> None:
    assert token_ratios(H100, [Record(**(_fields(alone(1)[0]) | odd))]) == []


def replicas(count: int, gpu_type: str = "h100") -> list[Replica]:
    return [Replica(id=f"r{number:02}", url="http://x", tags={"gpu_type": gpu_type}) for number in range(count)]


def test_replicas_are_compared_by_turns_and_forgotten_when_they_leave() -> None:
    records: Sequence[Record] = alone(LEAST, slower=2.0)
    drift = Drift({"h100": H100}, lambda _: records)
    fleet = replicas(AT_A_TIME + 3)
    assert len(drift.look(fleet, 0.0)) == AT_A_TIME
    assert len(drift.look(fleet, EVERY_S / 2)) == AT_A_TIME
    found = drift.look(fleet, EVERY_S)
    assert [one.replica for one in found] == [one.id for one in fleet]
    assert (found[0].replica, found[0].profile, found[0].answers) == ("r00", H100.name, LEAST)
    assert found[0].ratio == pytest.approx(2.0, rel=0.01)
    assert [one.replica for one in drift.look(fleet[:2], 3 * EVERY_S)] == ["r00", "r01"]
    assert drift.look([], 5 * EVERY_S) == ()


def test_only_replicas_with_a_profile_and_enough_answers_are_judged() -> None:
    records: Sequence[Record] = alone(LEAST)
    assert Drift({}, lambda _: records).look(replicas(1), 0.0) == ()
    assert Drift({"a100": H100}, lambda _: records).look(replicas(1), 0.0) == ()
    assert len(Drift({"any": H100}, lambda _: records).look(replicas(1), 0.0)) == 1
    assert Drift({"any": H100}, lambda _: records[1:]).look(replicas(1), 0.0) == ()


def test_drift_is_a_finding_that_says_what_to_do() -> None:
    far = View(
        drifts=(DriftView("a", "h100", 1.1, 50), DriftView("b", "h100", 1.8, 50), DriftView("c", "h100", 0.6, 50))
    )
    (found,) = [one for one in findings(far) if one.figure == "profile"]
    assert (found.severity, found.evidence["which"]) == ("warning", "b, c")
    assert "tokens of b take 1.80 times as long as its profile h100 says" in found.cause
    assert "headgate fit" in found.knob
    (found,) = [one for one in findings(View(drifts=(DriftView("c", "h100", 0.6, 50),))) if one.figure == "profile"]
    assert found.severity == "note"
    assert not [one for one in findings(View(drifts=(DriftView("a", "h100", 1.2, 50),))) if one.figure == "profile"]
