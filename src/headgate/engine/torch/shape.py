"""Reads what a model is made of from the config.json of its folder."""

from contextlib import suppress
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import msgspec

from headgate.model.errors import StartupError

ARCHITECTURE = "LlamaForCausalLM"


@dataclass(frozen=True, slots=True, kw_only=True)
class RopeScaling:
    """Llama 3.1's stretching of the slow rotations, for contexts longer than the first training's."""

    factor: float
    low: float
    high: float
    trained_on: int


@dataclass(frozen=True, slots=True, kw_only=True)
class ModelShape:
    vocabulary: int
    hidden: int
    layers: int
    heads: int
    kv_heads: int
    head: int
    """Values per head."""
    inner: int
    """Width between the two halves of a feed-forward layer."""
    longest: int
    """Maximum tokens of a sequence."""
    theta: float = 10_000.0
    scaling: RopeScaling | None = None
    eps: float = 1e-5
    tied: bool = False
    """The output layer has the weights of the input's."""
    ends: frozenset[int] = frozenset()
    """Tokens that end a generation, as the folder says."""

    @property
    def parameters(self) -> int:
        layer = self.hidden * self.head * 2 * (self.heads + self.kv_heads) + 3 * self.hidden * self.inner
        tables = self.vocabulary * self.hidden * (1 if self.tied else 2)
        return self.layers * (layer + 2 * self.hidden) + tables + self.hidden

    @property
    def kv_values_per_token(self) -> int:
        return 2 * self.layers * self.kv_heads * self.head


class _Rope(msgspec.Struct):
    rope_theta: float | None = None
    rope_type: str | None = None
    type: str | None = None
    factor: float = 1.0
    low_freq_factor: float = 1.0
    high_freq_factor: float = 4.0
    original_max_position_embeddings: int = 8192


class _Config(msgspec.Struct):
    """The parts of a config.json that matter, under either major version's names."""

    vocab_size: int
    hidden_size: int
    num_hidden_layers: int
    num_attention_heads: int
    intermediate_size: int
    architectures: list[str] | None = None
    max_position_embeddings: int = 2048
    num_key_value_heads: int | None = None
    head_dim: int | None = None
    hidden_act: str = "silu"
    rms_norm_eps: float = 1e-6
    rope_theta: float = 10_000.0
    rope_scaling: _Rope | None = None
    rope_parameters: _Rope | None = None
    tie_word_embeddings: bool = False
    attention_bias: bool = False
    mlp_bias: bool = False
    eos_token_id: int | list[int] | None = None


def read_shape(folder: Path) -> ModelShape:
    """Raises StartupError where the folder holds no model that this engine computes."""
    path = folder / "config.json"
    try:
        said = msgspec.json.decode(path.read_bytes(), type=_Config)
    except OSError as error:
        raise StartupError(f"can't read {path} ({error.strerror}); give the folder of a Hugging Face model") from error
    except msgspec.DecodeError as error:
        raise StartupError(f"{path} is not the config of a Llama model ({error})") from error
    rope = said.rope_parameters or said.rope_scaling or _Rope()
    _check(path, said, rope)
    heads = said.num_attention_heads
    shape = ModelShape(
        vocabulary=said.vocab_size,
        hidden=said.hidden_size,
        layers=said.num_hidden_layers,
        heads=heads,
        kv_heads=said.num_key_value_heads or heads,
        head=said.head_dim or said.hidden_size // heads,
        inner=said.intermediate_size,
        longest=said.max_position_embeddings,
        theta=rope.rope_theta or said.rope_theta,
        scaling=_scaling(rope),
        eps=said.rms_norm_eps,
        tied=said.tie_word_embeddings,
        ends=_ends(folder, said.eos_token_id),
    )
    if min(shape.vocabulary, shape.hidden, shape.layers, shape.heads, shape.kv_heads, shape.head, shape.inner) < 1:
        raise StartupError(f"{path}: every size must be at least 1")
    if heads % shape.kv_heads or shape.head % 2:
        raise StartupError(f"{path}: the heads must be a multiple of the KV heads, and a head's size even")
    return shape


def _check(path: Path, said: _Config, rope: _Rope) -> None:
    named = said.architectures or [ARCHITECTURE]
    if ARCHITECTURE not in named:
        raise StartupError(f"{path}: this engine computes {ARCHITECTURE}, not {', '.join(named)}; serve it with vLLM")
    kind = rope.rope_type or rope.type or "default"
    strange = {
        f"hidden_act {said.hidden_act!r}": said.hidden_act != "silu",
        "attention_bias": said.attention_bias,
        "mlp_bias": said.mlp_bias,
        f"rope_type {kind!r}": kind not in ("default", "llama3"),
    }
    for what, there in strange.items():
        if there:
            raise StartupError(f"{path}: this engine can't compute {what}; serve the model with vLLM")


def _scaling(rope: _Rope) -> RopeScaling | None:
    if (rope.rope_type or rope.type) != "llama3":
        return None
    return RopeScaling(
        factor=rope.factor,
        low=rope.low_freq_factor,
        high=rope.high_freq_factor,
        trained_on=rope.original_max_position_embeddings,
    )


def _ends(folder: Path, said: int | list[int] | None) -> frozenset[int]:
    """The end tokens: the generation config's, which chat models extend, or the config's."""
    more: Any = None
    with suppress(OSError, msgspec.DecodeError, AttributeError):  # without one, or with one that can't be read
        more = msgspec.json.decode((folder / "generation_config.json").read_bytes()).get("eos_token_id")
    found = said if more is None else more
    return frozenset([found] if isinstance(found, int) else found or ())
