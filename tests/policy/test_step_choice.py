"""A step for an engine that hands one budget out in order: its size, the order, and who is left out."""

from dataclasses import replace

from headgate.config.engine import BatchConfig
from headgate.model.lane import LANES
from headgate.model.sequence import Sequence
from headgate.policy.batching.chunks import Chunks, Streams
from headgate.policy.batching.estimate import StepTime
from headgate.policy.batching.step_choice import MOST_ENTERING, StepChooser, kept_gap_s

CONFIG = BatchConfig(step_tokens=512, chunk_limit=512, chunk_floor=8)
NONE = Streams(0, 0, float("inf"))
MILLI = StepTime((0.001, 0.001, 0.001, 0.0))
"""One millisecond a token."""


def prompt(number: int, tokens: int, lane: str = "slow", at: float = 0.0, computed: int = 0) -> Sequence:
    known = LANES[lane]
    made = Sequence(
        id=number, tokens=[number] * tokens, prompt_len=tokens, max_output=8, arrived=at, lane=lane,
        priority=known.priority, first_token_by=at + known.ttft_target_s, gap_target_s=known.gap_target_s,
    )  # fmt: skip
    made.computed = computed
    return made


def chooser(sizes: tuple[int, ...] = (), config: BatchConfig = CONFIG) -> StepChooser:
    return StepChooser(config, MILLI, sizes)


def test_the_budget_is_what_the_streams_leave() -> None:
    long = prompt(1, 1500)
    choice = chooser().choose(Streams(1, 100, 0.122), [long], [], 8, 1.0)
    alone = Chunks(CONFIG, MILLI, Streams(1, 100, 0.122), 0.0, 1.0).counts([long])
    assert choice.chunk == alone[1] == 99  # 0.122 s over a caution of 1.2, and a stream
    assert (choice.prefills, choice.left_out, choice.entering) == ([long], [], [])


def test_with_no_stream_the_step_limit_holds() -> None:
    assert chooser().choose(NONE, [prompt(1, 1500)], [], 8, 1.0).chunk == 415
    assert chooser().choose(NONE, [], [], 8, 1.0).chunk == 0


def test_a_prompt_that_waits_counts_only_if_it_may_enter() -> None:
    waiting = prompt(1, 60, "fast")
    assert chooser().choose(NONE, [], [waiting], 1, 0.1).entering == [waiting]
    choice = chooser().choose(NONE, [], [waiting], 0, 0.1)
    assert (choice.chunk, choice.entering, choice.waiting) == (0, [], [waiting])


def test_prompts_run_by_urgency_and_the_last_is_the_victim() -> None:
    batch, slow, fast = prompt(1, 100, "batch"), prompt(2, 100, "slow"), prompt(3, 100, "fast", at=0.05)
    choice = chooser().choose(NONE, [batch, slow, fast], [], 8, 0.1)
    assert choice.prefills == [fast, slow, batch]
    assert choice.chunk == 300


def test_a_long_prompt_sits_out_one_step_for_a_more_urgent_arrival() -> None:
    long, short, other = prompt(1, 1500, computed=300), prompt(2, 60, "fast", at=0.9), prompt(3, 60, "fast", at=1.0)
    mine = chooser()
    first = mine.choose(NONE, [long], [short], 8, 1.0)
    assert (first.left_out, first.prefills, first.entering, first.chunk) == ([long], [], [short], 60)
    second = mine.choose(NONE, [short, long], [other], 8, 1.1)
    assert (second.left_out, second.prefills) == ([], [short, long])  # never twice in a row
    assert mine.choose(NONE, [long], [other], 8, 1.2).left_out == [long]


def test_none_sits_out_for_one_that_is_less_urgent_or_was_not_let_in() -> None:
    fast, batch = prompt(1, 300, "fast"), prompt(2, 60, "batch")
    choice = chooser().choose(NONE, [fast], [batch], 8, 0.1)
    assert (choice.left_out, choice.entering, choice.chunk) == ([], [batch], 360)
    long, short = prompt(3, 1500), prompt(4, 60, "fast")
    choice = chooser().choose(NONE, [long], [short], 8, 0.1, frozenset({4}))
    assert (choice.left_out, choice.prefills, choice.entering) == ([], [long], [short])
    assert choice.chunk == 415


def test_a_prompt_of_the_same_lane_waits_its_turn() -> None:
    first, second = prompt(1, 1500, "slow"), prompt(2, 1500, "slow", at=0.5)
    choice = chooser().choose(NONE, [first], [second], 8, 0.6)
    assert (choice.left_out, choice.entering) == ([], [])


def test_as_many_may_enter_as_one_step_can_hold() -> None:
    many = [prompt(number, 10, "fast", at=number / 1e3) for number in range(40)]
    choice = chooser().choose(NONE, [], many[::-1], 64, 0.5)
    assert choice.entering == many[:MOST_ENTERING]
    assert choice.waiting == many
    large = [prompt(number, 300, "fast", at=number / 1e3) for number in range(40)]
    assert len(chooser().choose(NONE, [], large, 64, 0.5).entering) == 2


def test_an_aged_prompt_has_a_whole_step_now_and_then() -> None:
    config = replace(CONFIG, starve_after_s=5.0)
    aged = prompt(1, 1500, "long", computed=100)
    fast = prompt(2, 100_000, "fast", at=11.0)
    mine, firsts, chunks = chooser(config=config), [], []
    for _ in range(8):
        choice = mine.choose(NONE, [aged, fast], [], 8, 11.1)
        firsts.append(choice.prefills[0].id)
        chunks.append(choice.chunk)
    assert firsts == [2, 2, 2, 1] * 2
    assert set(chunks) == {415}
    waiting = [chooser(config=config).choose(NONE, [fast], [aged], 8, 11.1) for _ in range(1)]
    assert waiting[0].left_out == []
    mine = chooser(config=config)
    choices = [mine.choose(NONE, [fast], [aged], 8, 11.1) for _ in range(4)]
    assert [len(choice.left_out) for choice in choices] == [0, 0, 0, 1]
    assert choices[3].entering == [aged]


def test_a_step_is_cut_to_the_size_of_a_graph_unless_it_ends_the_prompts() -> None:
    sizes = (8, 16, 64, 128, 256)
    long = prompt(1, 1500)
    assert chooser(sizes).choose(Streams(1, 100, 0.122), [long], [], 8, 1.0).chunk == 63  # 99 and a stream: 64
    assert chooser(sizes).choose(Streams(1, 100, 0.122), [prompt(1, 90)], [], 8, 1.0).chunk == 90
    assert chooser(sizes).choose(NONE, [long], [], 8, 1.0).chunk == 415  # larger than any graph
    assert chooser((1, 2, 4)).choose(Streams(1, 100, 0.014), [long], [], 8, 1.0).chunk == 9
    assert chooser(sizes).choose(Streams(6, 600, 0.001), [long], [], 8, 1.0).chunk == 8  # never below the floor
    assert chooser((16, 64)).choose(Streams(1, 100, 0.001), [long], [], 8, 1.0).chunk == 8  # smaller than any


def test_drafts_are_part_of_the_step() -> None:
    long = prompt(1, 1500)
    without = chooser().choose(Streams(2, 200, 0.3), [long], [], 8, 1.0).chunk
    assert chooser().choose(Streams(2, 200, 0.3, drafted=8), [long], [], 8, 1.0).chunk == without - 8


def test_a_target_that_no_prompt_could_keep_is_raised() -> None:
    assert kept_gap_s(0.2, 0.06) == 0.2
    assert kept_gap_s(0.1, 0.06) == 0.12
