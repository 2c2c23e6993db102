"""What an engine remembers of its steps, and tells a gateway that asks."""

import json
import threading

from headgate.engine.runner import recent_steps
from headgate.engine.runner.recent_steps import RecentSteps
from headgate.model.step import Row, Save, Step
from tests.scripted import sequence


def step(prompt: int = 16) -> Step:
    prefilling, decoding = sequence(1, range(100)), sequence(2, range(40))
    decoding.tokens.append(7)
    rows = (Row(prefilling, 0, 20, prompt, False), Row(decoding, 1, 40, 1, True))
    return Step((Save(3, 9, 50),), rows)


def test_a_step_is_told_with_its_age_and_what_was_in_the_batch() -> None:
    now = 100.0
    steps = RecentSteps(lambda: now)
    steps.take(step(), 30.0, 0.02, 0.015)
    steps.take(step(64), 99.5, 0.04, 0.035)
    assert json.loads(steps.told(60.0)) == {"steps": [[0.5, 0.04, 64, 1, 1, 40, 1]]}
    assert len(json.loads(steps.told(600.0))["steps"]) == 2


def test_what_is_kept_and_told_is_bounded_also_while_the_engine_runs() -> None:
    steps, one, stop = RecentSteps(lambda: 50.0), step(), threading.Event()
    for number in range(2 * recent_steps.MOST):
        steps.take(one, number / 1000, 0.001, 0.001)

    def run() -> None:
        while not stop.is_set():
            steps.take(one, 49.0, 0.001, 0.001)

    engine = threading.Thread(target=run)
    engine.start()
    try:
        for _ in range(20):
            told = json.loads(steps.told(60.0))["steps"]
            assert len(told) == recent_steps.MOST_TOLD
    finally:
        stop.set()
        engine.join()
    assert len(steps.told(60.0)) < 400_000
