"""Chooses how a row's token is drawn: on the device, or, for the rarer settings, on the host.

On the device, all rows of a step are drawn at once and only the tokens come back. What needs a row's logits on the host
(logprobs, penalties, a logit bias, stop tokens that are banned at first) is drawn by the sampler of the llama.cpp
engine. Both key their draws on (seed, position).
"""

from collections.abc import Sequence as Items
from typing import Final

import numpy as np
import torch
from torch import Tensor

from headgate.engine.runner.sampler import Sampler, chance, logprobs, uniform
from headgate.engine.torch.llama import Operations
from headgate.model.errors import EngineFailed, InvalidRequest
from headgate.model.sampling import Sampled
from headgate.model.sequence import Sequence

COLD: Final = 1e-5
"""Temperature below which only the most likely token is left."""


class Draw:
    """How one sequence's tokens are drawn."""

    __slots__ = ("_first", "greedy", "on_device", "sampler", "settings")

    def __init__(self, sequence: Sequence, ends: frozenset[int]) -> None:
        sampling = self.settings = sequence.sampling
        self._first = sequence.prompt_len - sequence.continued
        self.greedy = sampling.temperature < COLD
        self.sampler = Sampler(sampling, sequence.tokens, self._first, eog=ends)
        penalised = (sampling.repetition_penalty, sampling.presence_penalty, sampling.frequency_penalty) != (
            1.0,
            0.0,
            0.0,
        )
        confident = sampling.confident_end and not self.greedy
        stops = sampling.min_tokens and sampling.stop_token_ids
        self.on_device = not (
            penalised or confident or stops or sampling.logit_bias or sampling.top_logprobs is not None
        )

    def attend(self) -> None:
        self.sampler.attends = True
        self.on_device = False

    def bans(self, position: int) -> bool:
        """Whether end tokens are banned at this position."""
        return self.settings.ignore_eos or position - self._first < self.settings.min_tokens

    def settings_at(self, position: int) -> tuple[float, float, float, float, float]:
        said = self.settings
        return (said.temperature, said.top_p, said.top_k, said.min_p, uniform(said.seed, position))


class Drawing:
    """Draws the tokens of a step's rows."""

    def __init__(self, operations: Operations, ends: frozenset[int], device: torch.device) -> None:
        self._operations = operations
        self._ends = torch.tensor(sorted(ends), dtype=torch.long, device=device)
        self._device = device

    def on_device(self, logits: Tensor, draws: Items[tuple[Draw, int]]) -> Tensor:
        """Returns a token for each row, on the device. `draws`: each row's settings, and the position it draws."""
        count = len(draws)
        logits = logits[:count]
        if len(self._ends):
            banned = [row for row, (draw, position) in enumerate(draws) if draw.on_device and draw.bans(position)]
            if banned:
                logits[self._sent(banned)[:, None], self._ends[None]] = -torch.inf
        if all(draw.greedy or not draw.on_device for draw, _ in draws):
            return self._operations.best_of(logits)
        plain = (0.0, 1.0, 0.0, 0.0, 0.0)
        settings = [draw.settings_at(position) if draw.on_device else plain for draw, position in draws]
        given = torch.tensor(settings, dtype=torch.float32).t().contiguous()
        if self._device.type == "cuda":
            given = given.pin_memory().to(self._device, non_blocking=True)
        return self._operations.draw(logits, *given)

    def _sent(self, rows: list[int]) -> Tensor:
        made = torch.tensor(rows, dtype=torch.long)
        return made.pin_memory().to(self._device, non_blocking=True) if self._device.type == "cuda" else made


def on_host(sequence: Sequence, draw: Draw, logits: Tensor, position: int) -> Sampled:
    """Draws one row's token from its logits."""
    row = logits.float().cpu().numpy()
    try:
        token = draw.sampler.draw(row, position)
    except EngineFailed as error:
        if not np.isfinite(row.max()):
            return Sampled(sequence.id, (0,), error=error)
        why = InvalidRequest("no token is left to draw: logit_bias, min_tokens or ignore_eos exclude all")
        return Sampled(sequence.id, (0,), error=why)
    wanted = draw.settings.top_logprobs
    told = () if wanted is None else (logprobs(row, token, wanted),)
    return Sampled(sequence.id, (token,), told, (chance(row, token),) if draw.sampler.attends else ())
