"""Which lane a request is given, and who goes first by it."""

import itertools
import random
from pathlib import Path

from headgate.config.engine import BatchConfig, EngineConfig
from headgate.engine.intake import Intake
from headgate.engine.openai import TextBody
from headgate.engine.runner.emulated_tokenizer import EmulatedTokenizer
from headgate.model.sequence import Sequence
from headgate.policy.batching.urgency import urgency


def intake(*, in_order: bool) -> Intake:
    config = EngineConfig(model=Path("none"), model_name="m", in_order=in_order)
    return Intake(config, EmulatedTokenizer(), 4096, itertools.count(1), random.Random(1))


def sequence(made: Intake, tokens: int, arrived: float, **more: object) -> Sequence:
    body = TextBody(model="m", prompt=[7] * tokens, stream=True, **more)  # type: ignore[arg-type]
    [found], _ = made.sequences(body, arrived)
    return found


def order(made: Intake, sequences: list[Sequence], now: float) -> list[int]:
    ranked = sorted(sequences, key=lambda each: urgency(each, now, BatchConfig()))
    return [each.prompt_len for each in ranked]


def test_short_prompts_go_before_long_ones_that_came_first() -> None:
    made = intake(in_order=False)
    assert order(made, [sequence(made, 3000, 0.0), sequence(made, 20, 0.1)], 0.2) == [20, 3000]


def test_in_order_the_first_to_come_goes_first_however_long_it_waited() -> None:
    made = intake(in_order=True)
    asked = [sequence(made, 3000, 0.0), sequence(made, 20, 0.1), sequence(made, 900, 0.2, service_tier="flex")]
    for now in (0.3, 30.0, 3_000.0):
        assert order(made, asked, now) == [3000, 20, 900]


def test_a_lane_that_is_named_counts_in_order_too() -> None:
    made = intake(in_order=True)
    asked = [sequence(made, 3000, 0.0), sequence(made, 900, 0.1, lane="batch"), sequence(made, 20, 0.2, lane="fast")]
    assert order(made, asked, 0.3) == [20, 3000, 900]
