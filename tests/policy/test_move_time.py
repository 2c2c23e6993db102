import pytest

from headgate.config.engine import BatchConfig
from headgate.model.step import Copy, Drop, Move, Restore, Save, Trim
from headgate.policy.batching.batch import Batcher
from headgate.policy.batching.blocks import Ledger
from headgate.policy.batching.estimate import StepTime
from headgate.policy.batching.move_time import TELLING, MoveTime
from tests.scripted import ScriptedRunner, batcher, run_step, sequence


def test_each_kind_of_move_has_its_own_pace() -> None:
    moves: list[Move] = [Trim(0, 5), Save(0, 9, 1000), Restore(9, 1, 500), Copy(0, 2, 100), Drop(9)]
    assert MoveTime(0.001, 0.002, 0.003).seconds(moves) == pytest.approx(1.0 + 1.0 + 0.3)
    assert MoveTime().seconds(moves) == 0.0


@pytest.mark.parametrize(
    ("move", "kind"), [(Save(0, 9, 1000), "save"), (Restore(9, 0, 1000), "load"), (Copy(0, 1, 1000), "copy")]
)
def test_a_step_with_moves_tells_how_long_they_take(move: Move, kind: str) -> None:
    made = MoveTime()
    made.learn((Trim(0, 1), move), 0.12, 0.02)
    for other in ("save", "load", "copy"):
        assert getattr(made, other).token_s == pytest.approx(1e-4 if other == kind else 0.0)


def test_moves_that_go_on_while_a_step_computes_take_at_most_the_step() -> None:
    made = MoveTime(save_s=1e-3)
    made.learn((Save(0, 9, 1000),), 0.02, 0.02)
    assert made.save.token_s == pytest.approx(2e-5)
    for _ in range(500):
        made.learn((Save(0, 9, 1000),), 0.02, 0.02)
    assert made.save.token_s == pytest.approx(2e-5)  # what is not seen to be quicker is not believed to be


def test_few_tokens_and_mixtures_tell_nothing() -> None:
    made = MoveTime(save_s=1e-5)
    made.learn((Save(0, 9, 100),), 9.0, 0.02)
    made.learn((Save(0, 9, 500), Restore(9, 1, 500)), 9.0, 0.02)
    made.learn((Save(0, 9, TELLING - 1),), 9.0, 0.02)
    assert (made.save.token_s, made.load.token_s) == (1e-5, 0.0)
    made.learn((Save(0, 9, TELLING),), 9.0, 0.02)
    assert made.save.token_s > 1e-5


def test_one_step_that_something_else_held_up_is_forgotten() -> None:
    made = MoveTime(save_s=1e-5)
    made.learn((Save(0, 9, 300),), 3.0, 0.02)
    assert made.save.token_s > 9e-3
    for _ in range(400):
        made.learn((Save(0, 9, 300),), 0.3, 0.29)
    assert made.save.token_s == pytest.approx(1e-5, rel=3.0)


def test_moves_are_counted_in_the_step_whose_prompts_they_leave_less_time() -> None:
    """A prefix comes back from host memory beside a stream that is promised a token in 200 ms."""
    chunks = []
    for load_s in (0.0, 0.001):
        made, runner = batcher(slots=2, slot_tokens=2048), ScriptedRunner(slots=2, slot_tokens=2048)
        made.step_time = StepTime((0.004, 0.001, 0.001, 0.0), MoveTime(load_s=load_s))
        stream, now = sequence(1, [1] * 8, max_output=400), 0.0
        made.add(stream)
        for number, tokens in ((2, [2] * 160), (3, [3] * 160)):  # the second one evicts the first
            made.add(sequence(number, tokens, max_output=1, arrived=now))
            while number in made.waiting or number in made.running:
                result = run_step(made, runner, now)
                assert result is not None
                now = result[0]
        made.step_time = StepTime((0.004, 0.001, 0.001, 0.0), MoveTime(load_s=load_s))
        made.step_time._upper.value = 1.0
        made.add(sequence(4, [2] * 152 + [4] * 600, arrived=now))
        step = made.plan(now)
        assert step is not None
        assert any(isinstance(move, Restore) for move in step.moves)
        chunks.append({row.sequence.id: row.count for row in step.rows}[4])
    assert chunks[0] > chunks[1] + 100


def evicted(save_s: float, streams: bool) -> tuple[Move, ...]:
    """The moves of a step that needs the slot of a cached prefix of 200 tokens."""
    ledger = Ledger(slots=2, slot_tokens=400, blocks=100, host_blocks=100, block_tokens=8)
    made, runner, now = Batcher(BatchConfig(), ledger, StepTime()), ScriptedRunner(slots=2, slot_tokens=400), 0.0
    if streams:
        made.add(sequence(1, [1] * 8, max_output=300))
        run_step(made, runner, now)
    else:
        made.add(sequence(1, [1] * 200, max_output=1))
    made.add(sequence(2, [2] * 200, max_output=1))
    while 2 in made.running or 2 in made.waiting:
        result = run_step(made, runner, now)
        assert result is not None
        now = result[0]
    made.step_time = StepTime(moves=MoveTime(save_s=save_s))
    for number in (3, 4):
        made.add(sequence(number, [number] * 100, arrived=now))
    step = made.plan(now)
    assert step is not None
    return tuple(move for move in step.moves if isinstance(move, Save))


def test_a_prefix_whose_copy_would_hold_a_stream_up_is_not_kept() -> None:
    assert evicted(0.0, True)
    assert evicted(0.0005, True)  # 0.1 s of 0.2
    assert not evicted(0.002, True)
    assert not evicted(0.002, False)  # whoever comes meanwhile would be
    assert len(evicted(0.0004, False)) == 2
    assert len(evicted(0.0006, False)) == 1  # together they take 0.24 s
