"""A tiny Llama with random weights, and an engine around it, driven step by step."""

from pathlib import Path
from typing import Any

import msgspec
import pytest

torch = pytest.importorskip("torch", reason="no PyTorch: pip install torch")

from headgate.config.engine import BatchConfig  # noqa: E402
from headgate.engine.torch.ahead import next_step  # noqa: E402
from headgate.engine.torch.cache import Cache  # noqa: E402
from headgate.engine.torch.llama import LlamaModel  # noqa: E402
from headgate.engine.torch.pages import PageLedger  # noqa: E402
from headgate.engine.torch.plain import PlainOperations  # noqa: E402
from headgate.engine.torch.shape import read_shape  # noqa: E402
from headgate.engine.torch.torch_runner import TorchRunner  # noqa: E402
from headgate.engine.torch.weights import read_weights  # noqa: E402
from headgate.model.sampling import Sampling  # noqa: E402
from headgate.model.sequence import Sequence  # noqa: E402
from headgate.policy.batching.batch import Batcher  # noqa: E402
from headgate.policy.batching.estimate import StepTime  # noqa: E402
from tests.scripted import sequence  # noqa: E402

CONFIG: dict[str, Any] = {
    "architectures": ["LlamaForCausalLM"],
    "vocab_size": 320,
    "hidden_size": 64,
    "num_hidden_layers": 2,
    "num_attention_heads": 8,
    "num_key_value_heads": 2,
    "head_dim": 16,
    "intermediate_size": 128,
    "max_position_embeddings": 512,
    "rms_norm_eps": 1e-5,
    "rope_theta": 10_000.0,
    "hidden_act": "silu",
    "eos_token_id": 3,
}
torch.set_num_threads(1)  # more would only wait for one another on matrices this small
CPU = torch.device("cpu")


def folder(at: Path, **config: Any) -> Path:
    at.mkdir(exist_ok=True)
    (at / "config.json").write_bytes(msgspec.json.encode(CONFIG | config))
    return at


class Tiny:
    """The Batcher and the runner, as `engine.Engine` drives them, without its thread."""

    def __init__(self, at: Path, *, slots: int = 4, blocks: int = 64, ahead: bool = True, **batch: Any) -> None:
        shape = read_shape(at)
        weights = read_weights(at, shape, CPU, torch.float32)
        self.ledger = PageLedger(slots=slots, slot_tokens=256, blocks=blocks)
        cache = Cache(shape, self.ledger, CPU, torch.float32)
        self.model = LlamaModel(shape, weights, cache, PlainOperations(shape, weights, cache))
        settings = {"step_tokens": 128, "chunk_limit": 96, "draft_batch": 0, "step_limit_s": 1e6} | batch
        self.runner = TorchRunner(self.model, self.ledger, ends=shape.ends, step_tokens=128, ahead=ahead)
        self.batcher = Batcher(BatchConfig(**settings), self.ledger, StepTime((1e-6, 1e-9, 1e-9, 1e-9)))
        self.said: dict[int, list[int]] = {}
        self.told: dict[int, list[Any]] = {}
        self.now = 0.0

    def add(self, *sequences: Sequence) -> None:
        for one in sequences:
            self.runner.open(one)
            assert self.batcher.add(one) is None
            self.said[one.id], self.told[one.id] = [], []

    def cancel(self, number: int) -> None:
        assert self.batcher.cancel(number, self.now) is not None
        self.runner.close(number)

    def step(self) -> list[Sequence]:
        self.now += 0.01
        step = next_step(self.runner, self.batcher, self.now)
        if step is None:
            return []
        sampled = self.runner.run(step)
        for one in sampled:
            assert one.error is None, one.error
            self.said[one.sequence_id] += one.tokens
            self.told[one.sequence_id] += one.logprobs
        ended = self.batcher.done(step, sampled, frozenset(), self.now, 0.01)
        for over in ended:
            self.runner.close(over.id)
        return ended

    def run(self, *sequences: Sequence) -> list[list[int]]:
        """Adds sequences, runs all that there are, and returns what these said."""
        self.add(*sequences)
        while self.batcher.has_work:
            self.step()
        return [self.said[one.id] for one in sequences]


def prompt(number: int, tokens: Any, output: int = 12, **sampling: Any) -> Sequence:
    one = sequence(number, tokens)
    one.max_output = output
    one.sampling = Sampling(**({"temperature": 0.0} | sampling))
    return one
