"""The runner on PyTorch computes what transformers does, however the Batcher cuts it."""

import random
from pathlib import Path
from typing import Any, cast

import numpy as np
import pytest

torch = pytest.importorskip("torch", reason="no PyTorch: pip install torch")

from headgate.config.engine import BatchConfig  # noqa: E402
from headgate.engine.torch.ahead import AheadEngine  # noqa: E402
from headgate.engine.torch.pages import PageLedger  # noqa: E402
from headgate.engine.torch.shape import read_shape  # noqa: E402
from headgate.engine.torch.weights import read_weights  # noqa: E402
from headgate.model.errors import EngineFailed, InvalidRequest, StartupError  # noqa: E402
from headgate.model.sequence import Sequence  # noqa: E402
from headgate.model.step import Save, Step  # noqa: E402
from headgate.policy.batching.batch import Batcher  # noqa: E402
from headgate.policy.batching.estimate import StepTime  # noqa: E402
from tests.engine.torch.tiny import CONFIG, CPU, Tiny, folder, prompt  # noqa: E402
from tests.scripted import ScriptedRunner  # noqa: E402

DICED = {"temperature": 1.2, "top_p": 0.9, "top_k": 40, "seed": 7}


@pytest.fixture(scope="module")
def at(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return folder(tmp_path_factory.mktemp("tiny"))


def text(seed: int, length: int) -> list[int]:
    rng = random.Random(seed)
    return [rng.randrange(4, 320) for _ in range(length)]


def alone(at: Path, *sequences: Sequence) -> list[list[int]]:
    """What each says by itself, its prompt in one piece."""
    return [Tiny(at, ahead=False, chunk_limit=256, step_tokens=260).run(one)[0] for one in sequences]


def several(**sampling: Any) -> list[Sequence]:
    lengths = (1, 5, 16, 33, 90, 150)
    return [prompt(number, text(number, length), 20, **sampling) for number, length in enumerate(lengths, 1)]


# -- against transformers ----------------------------------------------------------------------------------------


@pytest.mark.timeout(60)
@pytest.mark.parametrize("rope", ["default", "llama3"])
def test_its_logits_are_those_of_transformers(tmp_path: Path, rope: str) -> None:
    transformers = pytest.importorskip("transformers", reason="no transformers: pip install transformers")
    scaling = {
        "rope_type": "llama3",
        "factor": 8.0,
        "low_freq_factor": 1.0,
        "high_freq_factor": 4.0,
        "original_max_position_embeddings": 64,
    }
    more: dict[str, Any] = {"rope_scaling": scaling} if rope == "llama3" else {"tie_word_embeddings": True}
    torch.manual_seed(1)
    theirs = transformers.LlamaForCausalLM(transformers.LlamaConfig(**CONFIG | more)).eval()
    theirs.save_pretrained(tmp_path)
    tokens = text(3, 130)
    with torch.inference_mode():
        expected = theirs(torch.tensor([tokens])).logits[0].log_softmax(-1)
    tiny = Tiny(tmp_path, chunk_limit=37)
    one = prompt(1, tokens[:100], 30, top_logprobs=5)
    tiny.add(one)
    while tiny.batcher.has_work:
        tiny.step()
        if one.output_len and one.output_len < 30:
            one.tokens[-1] = tokens[len(one.tokens) - 1]  # it goes on with the text, whatever it would have said
    for position, told in zip(range(99, 129), tiny.told[1], strict=True):
        best = expected[position].topk(5)
        assert [token for token, _ in told.top] == best.indices.tolist()
        assert np.allclose([value for _, value in told.top], best.values.tolist(), atol=1e-4)


# -- the Batcher's freedom changes nothing -----------------------------------------------------------------------


@pytest.mark.parametrize("sampling", [{}, DICED], ids=["greedy", "diced"])
@pytest.mark.parametrize("ahead", [True, False])
def test_a_batch_says_what_each_says_alone(at: Path, sampling: dict[str, Any], ahead: bool) -> None:
    tiny = Tiny(at, ahead=ahead)
    assert tiny.run(*several(**sampling)) == alone(at, *several(**sampling))
    assert (tiny.runner.used_ahead > 10) == ahead


@pytest.mark.parametrize("limit", [1, 7, 64])
def test_a_prompt_in_chunks_says_what_it_says_whole(at: Path, limit: int) -> None:
    tiny = Tiny(at, chunk_limit=limit)
    assert tiny.run(*several()) == alone(at, *several())


def test_preempted_sequences_say_what_they_would_have_said(at: Path) -> None:
    tiny = Tiny(at, blocks=16, headroom=0.0, first_output_guess=1)
    said = tiny.run(*(prompt(number, text(number, 40), 60) for number in range(1, 7)))
    assert tiny.batcher.counts.recomputes > 2, "it was never short of memory"
    assert said == alone(at, *(prompt(number, text(number, 40), 60) for number in range(1, 7)))


def test_a_prefix_in_the_cache_is_not_computed_and_says_the_same(at: Path) -> None:
    tiny, begin = Tiny(at), text(9, 70)
    first = tiny.run(prompt(1, begin + text(1, 20)))
    second = prompt(2, begin + text(2, 20))
    said = tiny.run(second)
    assert second.cached == 64
    assert first + said == alone(at, prompt(1, begin + text(1, 20)), prompt(2, begin + text(2, 20)))


def test_a_cancelled_sequence_leaves_the_others_alone(at: Path) -> None:
    tiny = Tiny(at, slots=3)
    kept = [prompt(number, text(number, 30), 40) for number in (1, 2)]
    tiny.add(*kept, prompt(3, text(3, 30), 40))
    for _ in range(9):
        tiny.step()
    assert tiny.runner._flying is not None
    tiny.cancel(3)
    late = prompt(4, text(4, 30), 40)  # takes the slot, while the step launched ahead still writes for its last owner
    tiny.run(late)
    wanted = alone(at, *(prompt(number, text(number, 30), 40) for number in (1, 2, 4)))
    assert [tiny.said[number] for number in (1, 2, 4)] == wanted


def test_arrivals_beside_a_step_launched_ahead_lose_no_token(at: Path) -> None:
    tiny = Tiny(at, slots=6, chunk_limit=20)
    everyone = several(**DICED)
    for one in everyone:
        tiny.add(one)
        for _ in range(5):
            tiny.step()
    assert tiny.run() == []
    assert [tiny.said[one.id] for one in everyone] == alone(at, *several(**DICED))
    assert tiny.runner.launched_ahead > tiny.runner.used_ahead > 0


def test_streams_do_not_wait_for_the_prompt_of_an_arrival_beside_a_step_launched_ahead(at: Path) -> None:
    tiny = Tiny(at)
    streams = [prompt(number, text(number, 30), 40) for number in (1, 2)]
    tiny.add(*streams)
    for _ in range(5):
        tiny.step()
    said = len(tiny.said[1])
    tiny.add(prompt(3, text(3, 90), 40))
    under_way = tiny.runner.under_way()
    assert under_way is not None
    assert [row.sequence.id for row in under_way.rows] == [1, 2]
    tiny.step()
    assert len(tiny.said[1]) == said + 1
    assert tiny.batcher.waiting, "the prompt was planned into the step that had been launched"
    tiny.step()
    assert not tiny.batcher.waiting


def test_rows_drawn_on_the_host_and_on_the_device_share_a_batch(at: Path) -> None:
    def mixed() -> list[Sequence]:
        return [
            prompt(1, text(1, 20), 30, repetition_penalty=1.3),
            prompt(2, text(2, 20), 30, **DICED),
            prompt(3, text(3, 20), 30, top_logprobs=2),
            prompt(4, text(4, 20), 30, logit_bias={9: 100.0}),
        ]

    said = Tiny(at).run(*mixed())
    assert said == alone(at, *mixed())
    assert said[3] == [9] * 30


def test_a_sequence_that_is_attended_to_reports_its_chances(at: Path) -> None:
    tiny = Tiny(at)
    one = prompt(1, text(1, 20), 10)
    tiny.add(one)
    for _ in range(3):
        tiny.step()
    tiny.runner.attend(1)
    seen = []
    while tiny.batcher.has_work:
        step = tiny.batcher.plan(tiny.now)
        assert step is not None
        sampled = tiny.runner.run(step)
        seen.append(sampled[0].chances)
        tiny.batcher.done(step, sampled, frozenset(), tiny.now, 0.01)
    assert seen[0] == ()  # this one was under way
    assert all(0 < chance <= 1 for (chance,) in seen[1:])
    assert len(seen) == 7


def test_banned_ends_are_not_drawn(at: Path) -> None:
    loud = Tiny(at)
    weights = loud.model.weights.head
    weights[3] = 50 * weights[3].sign()  # the end is nearly always the most or the least likely token
    plain, banned = loud.run(prompt(1, text(1, 9), 30), prompt(2, text(1, 9), 30, ignore_eos=True))
    assert 3 in plain
    assert 3 not in banned
    late = loud.run(prompt(3, text(1, 9), 30, min_tokens=12))[0]
    assert 3 not in late[:12]
    assert 3 in late


def test_a_step_that_is_found_done_took_as_long_as_the_device_computed(at: Path) -> None:
    class Late(ScriptedRunner):
        device_s = 0.25

        def under_way(self) -> Step | None:
            return None

    ledger = PageLedger(slots=2, slot_tokens=64, blocks=8)
    batcher = Batcher(BatchConfig(), ledger, StepTime())
    engine = AheadEngine(cast(Any, Late()), cast(Any, None), batcher, lambda: 7.0, lambda said: None)
    assert engine.step_s(0.001) == 0.25
    assert engine.step_s(0.5) == 0.5
    batcher.add(prompt(1, [5, 6, 7]))
    step = engine.plan(7.0)
    assert step is not None
    assert [row.count for row in step.rows] == [3]


# -- draws ---------------------------------------------------------------------------------------------------------


def test_draws_follow_the_distribution_that_the_settings_leave(at: Path) -> None:
    draw = Tiny(at).model.operations.draw
    logits = torch.tensor([0.0, 1.0, 2.0, 3.0, -1.0]).repeat(4000, 1)
    chances = torch.arange(4000) / 4000

    def shares(temperature: float = 1.0, top_p: float = 1.0, top_k: int = 0, min_p: float = 0.0) -> list[float]:
        t, p, k, m = (torch.full((4000,), float(value)) for value in (temperature, top_p, top_k, min_p))
        counts: list[int] = torch.bincount(draw(logits, t, p, k, m, chances), minlength=5).tolist()
        return [count / 4000 for count in counts]

    whole = logits[0].softmax(-1)
    assert shares() == pytest.approx(whole.tolist(), abs=1e-3)
    assert shares(temperature=2.0) == pytest.approx((logits[0] / 2).softmax(-1).tolist(), abs=1e-3)
    assert shares(top_k=2) == pytest.approx([0, 0, *logits[0, 2:4].softmax(-1).tolist(), 0], abs=1e-3)
    assert shares(top_p=0.7) == pytest.approx([0, 0, *logits[0, 2:4].softmax(-1).tolist(), 0], abs=1e-3)
    assert shares(top_p=0.5) == [0, 0, 0, 1, 0]
    assert shares(min_p=0.2) == pytest.approx([0, 0, *logits[0, 2:4].softmax(-1).tolist(), 0], abs=1e-3)
    assert shares(temperature=0.0) == [0, 0, 0, 1, 0]


def test_logits_that_are_not_finite_end_their_sequence_only(at: Path) -> None:
    tiny = Tiny(at)
    tiny.model.weights.tokens[7] = torch.nan
    well, ill = prompt(1, text(1, 20), 3), prompt(2, [8, 7, 9], 3)
    tiny.add(well, ill)
    step = tiny.batcher.plan(0.0)
    assert step is not None
    sampled = {one.sequence_id: one.error for one in tiny.runner.run(step)}
    assert sampled[1] is None
    assert isinstance(sampled[2], EngineFailed)


# -- refusals --------------------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("changes", "said"),
    [
        ({"architectures": ["MixtralForCausalLM"]}, "not MixtralForCausalLM; serve it with vLLM"),
        ({"hidden_act": "gelu"}, "can't compute hidden_act 'gelu'"),
        ({"rope_scaling": {"rope_type": "yarn", "factor": 4.0}}, "can't compute rope_type 'yarn'"),
        ({"attention_bias": True}, "can't compute attention_bias"),
        ({"num_key_value_heads": 3}, "multiple of the KV heads"),
        ({"vocab_size": -1}, "at least 1"),
        ({"hidden_size": "big"}, "not the config of a Llama model"),
    ],
)
def test_a_model_that_it_does_not_compute_is_refused(tmp_path: Path, changes: dict[str, Any], said: str) -> None:
    with pytest.raises(StartupError, match=said):
        read_shape(folder(tmp_path, **changes))


def test_a_folder_with_other_weights_is_refused(tmp_path: Path) -> None:
    safetensors = pytest.importorskip("safetensors.torch", reason="no safetensors: pip install safetensors")
    at = folder(tmp_path)
    safetensors.save_file({"model.embed_tokens.weight": torch.zeros(5, 64)}, at / "model.safetensors")
    with pytest.raises(StartupError, match=r"is \(5, 64\), and config.json makes it \(320, 64\)"):
        read_weights(at, read_shape(at), CPU, torch.float32)
    safetensors.save_file({"x": torch.zeros(1)}, at / "model.safetensors")
    with pytest.raises(StartupError, match=r"can't read model\.embed_tokens\.weight"):
        read_weights(at, read_shape(at), CPU, torch.float32)


def test_what_it_cannot_do_is_refused(at: Path) -> None:
    tiny = Tiny(at)
    for one, param in (
        (prompt(1, [5, 320]), "prompt"),
        (prompt(1, [5], logit_bias={400: 1.0}), "logit_bias"),
        (prompt(1, [5], stop_token_ids=frozenset((-1,))), "stop_token_ids"),
        (prompt(1, [5], grammar="start: /a/"), "response_format"),
    ):
        with pytest.raises(InvalidRequest) as refused:
            tiny.runner.open(one)
        assert refused.value.param == param
    with pytest.raises(EngineFailed, match="without host memory"):
        tiny.runner.run(Step((Save(0, 9, 16),), ()))
