"""Chooses the sampling settings for clients that give none.

OpenAI's defaults, temperature 1 and the whole distribution, suit large models; a small model talks nonsense with them.
A GGUF may hold its makers' recommendation (`general.sampling.*`); for some models without one, the model card has it.
"""

from collections.abc import Callable
from dataclasses import dataclass
from math import isfinite
from typing import Final


@dataclass(frozen=True, slots=True, kw_only=True)
class Recommended:
    """The settings used if a client gives none of temperature, top_p, top_k and min_p."""

    temperature: float = 1.0
    top_p: float = 1.0
    top_k: int = 0
    """0: off."""
    min_p: float = 0.0
    repetition_penalty: float = 1.0
    source: str = "OpenAI's defaults"
    """Where the recommendation comes from, for people to read."""

    @property
    def shown(self) -> dict[str, float]:
        """The settings that differ from OpenAI's defaults."""
        return {name: getattr(self, name) for name in _KEYS.values() if getattr(self, name) != getattr(OPENAI, name)}


OPENAI: Final = Recommended()

_KEYS: Final = {
    "temp": "temperature",
    "top_p": "top_p",
    "top_k": "top_k",
    "min_p": "min_p",
    "penalty_repeat": "repetition_penalty",
}
"""llama.cpp's names after `general.sampling.`, and ours."""
_BOUNDS: Final = {
    "temperature": (0.0, 100.0),
    "top_p": (0.0, 1.0),
    "top_k": (0.0, 1e6),
    "min_p": (0.0, 1.0),
    "repetition_penalty": (0.01, 10.0),
}

CARDS: Final = {
    "smollm2": Recommended(temperature=0.2, top_p=0.9, source="SmolLM2's model card"),
    "llama-3": Recommended(temperature=0.6, top_p=0.9, source="Llama 3's generation config"),
    "qwen2.5": Recommended(
        temperature=0.7, top_p=0.8, top_k=20, repetition_penalty=1.05, source="Qwen2.5's generation config"
    ),
}
"""Settings by the beginning of `general.basename` or `general.name`, in lower case with hyphens for spaces. Only for
models with a chat template: a base model is there to show its distribution."""


def recommended(meta: Callable[[str], str | None], *, chats: bool) -> Recommended:
    """Returns the settings for a model. `meta` reads a GGUF's metadata. `chats`: the model has a chat template."""
    said = {ours: value for theirs, ours in _KEYS.items() if (value := _number(meta, theirs, ours)) is not None}
    if said:
        return Recommended(
            temperature=said.get("temperature", 1.0),
            top_p=said.get("top_p", 1.0),
            top_k=int(said.get("top_k", 0)),
            min_p=said.get("min_p", 0.0),
            repetition_penalty=said.get("repetition_penalty", 1.0),
            source="the GGUF's metadata",
        )
    names = [(meta(f"general.{key}") or "").lower().replace(" ", "-") for key in ("basename", "name")]
    for begins, card in CARDS.items():
        if chats and any(name.startswith((begins, f"meta-{begins}")) for name in names):
            return card
    return OPENAI


def _number(meta: Callable[[str], str | None], theirs: str, ours: str) -> float | None:
    """Returns a setting from the GGUF; None: the file has none, or none that makes sense."""
    text = meta(f"general.sampling.{theirs}")
    try:
        value = float(text) if text is not None else float("nan")
    except ValueError:
        return None
    low, high = _BOUNDS[ours]
    return value if isfinite(value) and low <= value <= high else None
