import json
from collections.abc import Callable
from collections.abc import Sequence as Sequence_
from itertools import count
from pathlib import Path

import gguf
import numpy as np
import pytest

from headgate.engine.grammar.grammar import response_grammar
from headgate.engine.runner.llama import Model
from headgate.engine.runner.llama_runner import LlamaRunner, available_bytes
from headgate.engine.runner.sampler import Logits
from headgate.engine.runner.tokenizer import Tokenizer
from headgate.model.errors import EngineFailed, InvalidRequest, StartupError
from headgate.model.sampling import Sampled, Sampling
from headgate.model.sequence import Sequence
from headgate.model.step import Copy, Drop, Move, Restore, Row, Save, Step, Trim

pytestmark = [pytest.mark.model, pytest.mark.timeout(60)]

ids = count(1)
GREEDY = Sampling(temperature=0, top_logprobs=3)
DICED = Sampling(temperature=0.9, top_p=0.95, seed=11)
FRANCE = "The capital of France is Paris. The capital of Italy is"
Drafter = Callable[[list[int]], tuple[int, ...]]


def no_draft(output: list[int]) -> tuple[int, ...]:
    return ()


class Run:
    """One sequence in one slot, driven step by step as a Batcher would. `held` of its tokens are there already."""

    def __init__(
        self,
        runner: LlamaRunner,
        tokens: Sequence_[int],
        slot: int,
        sampling: Sampling = GREEDY,
        held: int = 0,
    ) -> None:
        self.runner, self.slot = runner, slot
        self.sequence = Sequence(
            id=next(ids),
            tokens=list(tokens),
            prompt_len=len(tokens),
            max_output=100,
            arrived=0.0,
            lane="fast",
            priority=0,
            first_token_by=0.0,
            gap_target_s=1.0,
            sampling=sampling,
        )
        self.computed = held
        self.drawn: list[Sampled] = []
        self.steps = 0
        runner.open(self.sequence)
        if not held:
            runner.run(Step((Trim(slot, 0),), ()))

    @property
    def output(self) -> list[int]:
        return self.sequence.tokens[self.sequence.prompt_len :]

    def row(self, size: int | None = None, draft: tuple[int, ...] = ()) -> Row:
        left = len(self.sequence.tokens) - self.computed
        size = min(size or left, left)
        return Row(self.sequence, self.slot, self.computed, size, size == left, draft)

    def took(self, row: Row, sampled: Sampled | None) -> Trim:
        """Book a step; the answer is the trim that forgets rejected drafts."""
        self.steps += 1
        self.computed += row.count
        if sampled is not None:
            self.drawn.append(sampled)
            self.sequence.tokens += sampled.tokens
            self.computed += len(sampled.tokens) - 1
        return Trim(self.slot, self.computed)

    def generate(self, tokens: int, *, chunk: int | None = None, drafter: Drafter = no_draft) -> list[int]:
        moves: tuple[Move, ...] = ()
        while len(self.output) < tokens:
            row = self.row(chunk, drafter(self.output) if self.output else ())
            sampled = self.runner.run(Step(moves, (row,)))
            moves = (self.took(row, sampled[0] if sampled else None),)
        self.runner.run(Step(moves, ()))
        return self.output[:tokens]

    def close(self) -> list[int]:
        self.runner.close(self.sequence.id)
        return self.output


def generate(
    runner: LlamaRunner, tokens: Sequence_[int], length: int, slot: int = 0, sampling: Sampling = GREEDY
) -> list[int]:
    run = Run(runner, tokens, slot, sampling)
    run.generate(length)
    return run.close()


@pytest.fixture(scope="module")
def prompt(tokenizer: Tokenizer) -> list[int]:
    return tokenizer.encode(FRANCE)


def test_rows_in_a_batch_say_what_they_say_alone(runner: LlamaRunner, tokenizer: Tokenizer) -> None:
    texts = [FRANCE, "def add(a, b):\n    return", "Once upon a time", "1, 2, 3, 4, 5,"]
    prompts = [tokenizer.encode(text) for text in texts]
    samplings = [GREEDY, DICED, GREEDY, Sampling(temperature=0, repetition_penalty=1.3)]
    alone = [generate(runner, p, 8, 0, s) for p, s in zip(prompts, samplings, strict=True)]
    runs = [Run(runner, p, slot, s) for slot, (p, s) in enumerate(zip(prompts, samplings, strict=True))]
    while waiting := [run for run in runs if len(run.output) < 8]:
        rows = tuple(run.row(4 - run.slot) for run in waiting)  # so some prefill while others decode
        sampled = {one.sequence_id: one for one in runner.run(Step((), rows))}
        assert list(sampled) == [row.sequence.id for row in rows if row.samples]
        for run, row in zip(waiting, rows, strict=True):
            run.took(row, sampled.get(run.sequence.id))
    assert [run.close() for run in runs] == alone


def test_plain_greedy_rows_are_the_same_drawn_together_or_one_by_one(runner: LlamaRunner, tokenizer: Tokenizer) -> None:
    prompts = [tokenizer.encode(text) for text in ("Once upon a time", "The sky is")]
    plain = Sampling(temperature=0)
    together = [Run(runner, p, slot, plain) for slot, p in enumerate(prompts)]
    rows = tuple(run.row() for run in together)
    tokens = [sampled.tokens[0] for sampled in runner.run(Step((), rows))]
    biased = Sampling(temperature=0, logit_bias={0: 0.0})  # not plain, but no different
    assert tokens == [generate(runner, p, 1, 2, biased)[0] for p in prompts]
    for run in together:
        run.close()


def test_the_size_of_prefill_chunks_changes_nothing(runner: LlamaRunner, tokenizer: Tokenizer) -> None:
    prompt = tokenizer.encode(FRANCE * 6)[:67]
    said = []
    for size in (None, 1, 7, 64):
        run = Run(runner, prompt, 0)
        run.generate(3, chunk=size)
        said.append((run.close(), run.drawn[0].logprobs))
    assert all(one == said[0] for one in said)


def test_a_copied_slot_goes_on_bit_for_bit(runner: LlamaRunner, prompt: list[int]) -> None:
    first = Run(runner, prompt, 0)
    expected = first.generate(6)
    for moves in ((Copy(0, 2, len(prompt) - 1),), (Save(0, 1, 1), Copy(0, 2, len(prompt) - 1), Drop(1))):
        second = Run(runner, prompt, 2, held=len(prompt) - 1)
        row = second.row()
        second.took(row, runner.run(Step(moves, (row,)))[0])
        assert second.generate(6) == expected
        assert second.drawn[0].logprobs == first.drawn[0].logprobs
        second.close()
    first.close()


def test_a_copy_and_a_save_or_load_in_one_step_keep_their_order(runner: LlamaRunner, tokenizer: Tokenizer) -> None:
    texts = [tokenizer.encode(text) for text in (FRANCE, "Once upon a time there")]
    runs = [Run(runner, text, slot) for slot, text in enumerate(texts)]
    expected = [run.generate(4) for run in runs]
    full = [len(text) - 1 for text in texts]
    # 0 → 2, save 2, then 1 → 0: the blob must hold what slot 0 held first, slot 0 what slot 1 holds.
    runner.run(Step((Copy(0, 2, full[0]), Save(2, 7, full[0]), Copy(1, 0, full[1])), ()))
    runner.run(Step((Restore(7, 3, full[0]), Drop(7)), ()))
    for text, slot, said in ((texts[0], 3, expected[0]), (texts[1], 0, expected[1])):
        run = Run(runner, text, slot, held=len(text) - 1)
        assert run.generate(4) == said
        run.close()
    for run in runs:
        run.close()


def test_a_saved_slot_loads_elsewhere_and_goes_on_bit_for_bit(runner: LlamaRunner, prompt: list[int]) -> None:
    kept = Run(runner, prompt, 1)
    kept.generate(4)
    held = kept.computed
    runner.run(Step((Save(1, 42, held),), ()))
    expected = kept.generate(9)
    kept.slot, kept.computed = 3, held
    del kept.sequence.tokens[held + 1 :]
    before = [one.logprobs for one in kept.drawn[4:]]
    kept.drawn = kept.drawn[:4]
    runner.run(Step((Restore(42, 3, held),), ()))
    assert kept.generate(9) == expected
    assert [one.logprobs for one in kept.drawn[4:]] == before
    # The blob stays, and a shorter part of it can be loaded.
    kept.computed = len(prompt) - 1
    del kept.sequence.tokens[len(prompt) :]
    runner.run(Step((Restore(42, 0, len(prompt) - 1), Drop(42)), ()))
    kept.slot = 0
    assert kept.generate(9) == expected
    kept.close()
    assert 42 not in runner._blobs


@pytest.mark.parametrize("sampling", [Sampling(temperature=0), DICED], ids=["greedy", "diced"])
def test_drafts_change_the_number_of_steps_and_nothing_else(
    runner: LlamaRunner, prompt: list[int], sampling: Sampling
) -> None:
    expected = generate(runner, prompt, 16, 0, sampling)
    drafters: dict[str, Drafter] = {
        "good": lambda output: tuple(expected[len(output) : len(output) + 3]),
        "bad": lambda output: (5, 6, 7),
        "mixed": lambda output: (*expected[len(output) : len(output) + 2], 9, 9) if len(output) % 3 else (),
    }
    steps = {}
    for name, drafter in drafters.items():
        run = Run(runner, prompt, 1, sampling)
        assert run.generate(16, drafter=drafter) == expected, name
        steps[name] = run.steps
        run.close()
    assert steps["good"] == 5
    assert steps["bad"] == 16
    assert steps["good"] < steps["mixed"] < steps["bad"]


def test_drafts_under_a_grammar_change_nothing_either(runner: LlamaRunner, prompt: list[int]) -> None:
    sampling = Sampling(temperature=0, grammar='start: " " /[a-z ]{3,12}/ "!"')
    expected = generate(runner, prompt, 5, 0, sampling)
    run = Run(runner, prompt, 0, sampling)
    assert run.generate(5, drafter=lambda output: (*expected[len(output) : len(output) + 2], 9)) == expected
    assert run.steps < 5
    run.close()


def test_output_under_a_schema_is_json_of_that_schema(runner: LlamaRunner, tokenizer: Tokenizer) -> None:
    schema = {
        "type": "object",
        "properties": {
            "name": {"type": "string", "maxLength": 12},
            "age": {"type": "integer", "minimum": 1, "maximum": 99},
            "likes": {"type": "array", "items": {"enum": ["tea", "rain"]}, "minItems": 1, "maxItems": 2},
        },
        "required": ["name", "age", "likes"],
        "additionalProperties": False,
    }
    grammar = response_grammar({"type": "json_schema", "json_schema": {"schema": schema}})
    prompt = tokenizer.encode("A person:\n")
    for seed in range(3):
        run = Run(runner, prompt, 0, Sampling(temperature=1.3, seed=seed, grammar=grammar, ignore_eos=True))
        while not run.output or run.output[-1] not in tokenizer.eog:
            run.generate(len(run.output) + 1)
            assert len(run.output) < 60
        person = json.loads(b"".join(map(tokenizer.piece, run.close())))
        assert list(person) == ["name", "age", "likes"]
        assert len(person["name"]) <= 12
        assert 1 <= person["age"] <= 99
        assert set(person["likes"]) <= {"tea", "rain"}
        assert 1 <= len(person["likes"]) <= 2


def test_a_bad_grammar_is_refused_when_the_sequence_opens(runner: LlamaRunner, prompt: list[int]) -> None:
    with pytest.raises(InvalidRequest) as refused:
        Run(runner, prompt, 0, Sampling(grammar="start: (("))
    assert refused.value.param == "response_format"


def test_token_ids_that_are_none_are_refused_when_the_sequence_opens(runner: LlamaRunner, prompt: list[int]) -> None:
    with pytest.raises(InvalidRequest) as refused:
        Run(runner, [*prompt, 49_152], 0)
    assert refused.value.param == "prompt"
    with pytest.raises(InvalidRequest) as refused:
        Run(runner, prompt, 0, Sampling(logit_bias={-1: 1.0}))
    assert refused.value.param == "logit_bias"


def test_a_continuation_with_the_same_seed_draws_what_the_original_would_have(
    runner: LlamaRunner, prompt: list[int]
) -> None:
    whole = generate(runner, prompt, 10, 0, DICED)
    assert generate(runner, prompt, 10, 3, DICED) == whole
    assert generate(runner, [*prompt, *whole[:4]], 6, 1, DICED) == whole[4:]
    assert generate(runner, prompt, 10, 0, Sampling(temperature=0.9, top_p=0.95, seed=12)) != whole


def test_logprobs_come_only_where_asked(runner: LlamaRunner, prompt: list[int]) -> None:
    run = Run(runner, prompt, 0, Sampling(temperature=0, top_logprobs=2))
    run.generate(1)
    [chance] = run.drawn[0].logprobs
    assert chance.token == run.output[0] == chance.top[0][0]
    assert len(chance.top) == 2
    run.close()
    silent = Run(runner, prompt, 0, Sampling(temperature=0))
    silent.generate(1)
    assert silent.drawn[0].logprobs == ()
    silent.close()


PLAIN = Sampling(temperature=0)


@pytest.mark.parametrize("settings", [(PLAIN, PLAIN), (PLAIN, DICED), (DICED, DICED)])
@pytest.mark.parametrize("broken", [np.nan, -np.inf, np.inf])
def test_broken_logits_of_one_row_fail_that_sequence_and_of_all_rows_the_engine(
    runner: LlamaRunner,
    prompt: list[int],
    monkeypatch: pytest.MonkeyPatch,
    settings: tuple[Sampling, Sampling],
    broken: float,
) -> None:
    runs = [Run(runner, prompt, slot, sampling) for slot, sampling in enumerate(settings)]
    drafted = [runs[0].row(draft=(5, 6)), runs[1].row()]
    real = runner._context.logits
    spoilt = slice(0, 3)

    def logits(wanted: int) -> Logits:
        rows = real(wanted).copy()
        rows[spoilt] = broken
        return rows

    monkeypatch.setattr(runner._context, "logits", logits)
    failed, well = runner.run(Step((), tuple(drafted)))
    assert isinstance(failed.error, EngineFailed)
    assert len(failed.tokens) == 1
    assert well.error is None
    assert len(well.tokens) == 1
    spoilt = slice(0, 4)
    trims = (Trim(0, 0), Trim(1, 0))
    with pytest.raises(EngineFailed, match="no finite logits"):
        runner.run(Step(trims, tuple(drafted)))
    for run in runs:
        run.close()


def test_settings_that_leave_no_token_are_the_requests_own_fault(runner: LlamaRunner, prompt: list[int]) -> None:
    every = frozenset(range(runner.tokenizer.n_vocab))
    run = Run(runner, prompt, 0, Sampling(min_tokens=5, stop_token_ids=every))
    (failed,) = runner.run(Step((), (run.row(),)))
    assert isinstance(failed.error, InvalidRequest)
    run.close()


def test_a_step_that_is_too_wide_fails_and_says_so(runner: LlamaRunner) -> None:
    run = Run(runner, [1] * 300, 0)
    with pytest.raises(EngineFailed, match="more than 256"):
        runner.run(Step((), (run.row(),)))
    run.close()


def test_a_row_that_does_not_continue_its_slot_fails_and_says_so(runner: LlamaRunner, prompt: list[int]) -> None:
    run = Run(runner, prompt, 0)
    assert runner.run(Step((), (run.row(2),))) == []
    run.computed = 6
    with pytest.raises(EngineFailed, match="llama_decode gave -1"):
        runner.run(Step((), (run.row(),)))
    run.close()


def write_lora(path: Path, scale: float) -> None:
    writer = gguf.GGUFWriter(path, "llama")
    writer.add_type("adapter")
    writer.add_string("adapter.type", "lora")
    writer.add_float32("adapter.lora.alpha", 4.0)
    rng = np.random.default_rng(0)
    for name, shape in (("lora_a", (4, 576)), ("lora_b", (576, 4))):
        writer.add_tensor(f"blk.0.attn_q.weight.{name}", (rng.normal(size=shape) * scale).astype(np.float32))
    writer.write_header_to_file()
    writer.write_kv_data_to_file()
    writer.write_tensors_to_file()
    writer.close()


def test_an_adapter_changes_what_the_model_thinks(
    model: Model, runner: LlamaRunner, prompt: list[int], tmp_path: Path
) -> None:
    write_lora(tmp_path / "lora.gguf", 0.5)
    base = Run(runner, prompt, 0)
    base.generate(1)
    base.close()
    adapted = LlamaRunner(
        model, slots=1, slot_tokens=256, threads=2, max_batch_tokens=64, loras=[tmp_path / "lora.gguf"]
    )
    other = Run(adapted, prompt, 0)
    other.generate(1)
    adapted.shutdown()
    assert other.drawn[0].logprobs != base.drawn[0].logprobs


def test_a_file_that_is_no_adapter_is_refused(model: Model, model_path: Path, tmp_path: Path) -> None:
    (tmp_path / "lora.gguf").write_bytes(model_path.read_bytes()[:4000])
    for path in (tmp_path / "lora.gguf", tmp_path / "missing.gguf"):
        with pytest.raises(StartupError, match=r"\.gguf"):
            LlamaRunner(model, slots=1, slot_tokens=256, threads=1, loras=[path])


def test_a_context_that_can_not_be_is_refused_before_it_is_allocated(model: Model) -> None:
    with pytest.raises(StartupError, match="8192"):
        LlamaRunner(model, slots=1, slot_tokens=8193, threads=1)
    with pytest.raises(StartupError, match="1 to 256"):
        LlamaRunner(model, slots=257, slot_tokens=256, threads=1)


def test_more_memory_than_there_is_is_refused_with_the_numbers(model: Model, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("headgate.engine.runner.llama_runner.available_bytes", lambda: 2**29)
    with pytest.raises(StartupError, match=r"0\.5 GiB.*lower --slots"):
        LlamaRunner(model, slots=8, slot_tokens=4096, threads=1)
    monkeypatch.setattr("headgate.engine.runner.llama_runner.available_bytes", lambda: 2**30)
    LlamaRunner(model, slots=2, slot_tokens=512, threads=1).shutdown()
    # Swapped KV is allocated when it is needed: without this check a burst would end the engine, not its start.
    with pytest.raises(StartupError, match=r"100000 tokens of swapped and cached KV.*1\.0 GiB.*or --host-tokens"):
        LlamaRunner(model, slots=2, slot_tokens=512, threads=1, host_tokens=100_000)


def test_available_memory_is_the_smaller_of_the_machines_and_the_groups(tmp_path: Path) -> None:
    (tmp_path / "proc").mkdir()
    group = tmp_path / "sys/fs/cgroup"
    group.mkdir(parents=True)
    (tmp_path / "proc/meminfo").write_text("MemTotal: 9 kB\nMemAvailable:  8 kB\n")
    assert available_bytes(tmp_path) == 8192
    (group / "memory.max").write_text("max\n")
    (group / "memory.current").write_text("3000\n")
    (group / "memory.stat").write_text("anon 5\ninactive_file 1000\n")
    assert available_bytes(tmp_path) == 8192
    (group / "memory.max").write_text("5000\n")
    assert available_bytes(tmp_path) == 3000


def test_time_in_the_library_is_counted(model_path: Path, prompt: list[int]) -> None:
    model = Model(model_path)
    ticks = count()
    runner = LlamaRunner(model, slots=1, slot_tokens=100, threads=2, clock=lambda: float(next(ticks)))
    assert runner.max_batch_tokens == 576
    assert runner.bytes_per_token == 12_240
    generate(runner, prompt, 2)
    assert runner.model_s == 8.0  # moves and decode of: the trim before, two steps, the trim after
    runner.shutdown()
