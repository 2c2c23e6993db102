"""Runs steps on PyTorch: the pages that changed, one pass through the model, and a draw for every row that samples.

While a step is computed, the next is launched behind it, if it can only be the same rows' next tokens: a GPU reads the
tokens that it has just drawn itself. So it goes on while the Batcher plans and the tokens become text. If the plan is
another after all, the tokens of the rows it shares with the plan count, and the rest of the plan is computed apart.
"""

from collections.abc import Collection
from collections.abc import Sequence as Items
from dataclasses import dataclass
from operator import attrgetter
from typing import Any

import torch
from torch import Tensor

from headgate.engine.torch.drawing import Draw, Drawing, on_host
from headgate.engine.torch.llama import LlamaModel
from headgate.engine.torch.pages import PageLedger
from headgate.engine.torch.replay import Replay, Replays
from headgate.model.clock import Clock, monotonic
from headgate.model.errors import EngineFailed, InvalidRequest
from headgate.model.sampling import Sampled
from headgate.model.sequence import Sequence
from headgate.model.step import Drop, Restore, Row, Save, Step


@dataclass(frozen=True, slots=True)
class _Launched:
    """Rows under way, in the order of their logits."""

    rows: tuple[Row, ...]
    draws: tuple[Draw, ...]
    starts: tuple[int, ...]
    """The position of each row's last token."""
    places: dict[int, tuple[int, int, int]]
    """By sequence: the position that is written, its slot, and its page there. Empty where nothing may run behind."""
    replay: Replay
    logits: Tensor
    tokens: Tensor
    """On the host, once `done` has come."""
    drawn: Tensor
    """The same on the device."""
    began: Any
    done: Any
    """The events on the device before the step, and after which `tokens` is valid; None: it is."""
    steady: bool
    """All rows are single tokens, drawn on the device."""


class TorchRunner:
    """Implements `engine.Runner`. Used by one thread."""

    def __init__(
        self,
        model: LlamaModel,
        ledger: PageLedger,
        *,
        ends: frozenset[int],
        step_tokens: int,
        ahead: bool = True,
        clock: Clock = monotonic,
    ) -> None:
        """`step_tokens`: maximum tokens of a step. `ahead`: launch a step behind the one that runs."""
        self.slots = ledger.slots
        self.bytes_per_token = model.shape.kv_values_per_token * model.cache.keys.element_size()
        self.model_s = 0.0
        """Seconds spent launching steps and waiting for them so far."""
        self.device_s = 0.0
        """Seconds that the device computed the latest step; 0: not known."""
        self.launched_ahead = 0
        self.used_ahead = 0
        """Steps launched ahead, and those of them that were the next plan exactly."""
        self._model = model
        self._ledger = ledger
        self._replays = Replays(model, ledger.slots, step_tokens)
        self._drawing = Drawing(model.operations, ends, model.device)
        self._ends = ends
        self._ahead = ahead
        self._clock = clock
        self._draws: dict[int, Draw] = {}
        self._flying: _Launched | None = None
        """The step that was launched behind the one that ran last."""
        self._cuda = model.device.type == "cuda"

    def record(self) -> int:
        """Records the steps that are replayed; returns their number. Call it once, before the first step."""
        with torch.inference_mode():
            return self._replays.record_all()

    # -- engine.Runner ------------------------------------------------------------------------------------

    def open(self, sequence: Sequence) -> None:
        sampling = sequence.sampling
        if sampling.grammar is not None:
            raise InvalidRequest(
                "this engine can't follow a response_format; leave it out, or serve the model with vLLM",
                param="response_format",
            )
        self._check_ids(sequence.tokens, "prompt")
        self._check_ids(sampling.logit_bias, "logit_bias")
        self._check_ids(sampling.stop_token_ids, "stop_token_ids")
        self._draws[sequence.id] = Draw(sequence, self._ends)

    def attend(self, sequence_id: int) -> None:
        self._draws[sequence_id].attend()

    def close(self, sequence_id: int) -> None:
        self._draws.pop(sequence_id).sampler.close()

    def run(self, step: Step) -> list[Sampled]:
        began = self._clock()
        for move in step.moves:
            if isinstance(move, Drop) or (isinstance(move, Save | Restore) and not move.length):
                continue
            raise EngineFailed(f"a paged cache without host memory has no {move}")
        with torch.inference_mode():
            sampled = self._run(step) if step.rows else []
        self.model_s += self._clock() - began
        return sampled

    def under_way(self) -> Step | None:
        """Returns the step that was launched before it was planned, with the rows that still run. None: there is none,
        or none of its rows runs any more."""
        flown = self._flying
        if flown is None:
            return None
        rows = [
            Row(row.sequence, row.slot, start, 1, True)
            for row, start in zip(flown.rows, flown.starts, strict=True)
            if row.sequence.slot == row.slot and len(row.sequence.tokens) == start + 1
        ]
        rows.sort(key=attrgetter("slot"))
        return Step((), tuple(rows)) if rows else None

    def shutdown(self) -> None:
        self._flying = None
        self._draws.clear()
        if self._cuda:
            torch.cuda.synchronize()

    # -- a step -------------------------------------------------------------------------------------------

    def _run(self, step: Step) -> list[Sampled]:
        self.device_s = 0.0
        self._model.cache.update()
        flown, self._flying = self._flying, None
        came, rest = self._shared(flown, step.rows)
        launched = self._launch(rest) if rest else None
        if step.repeat > 1 and self._ahead:
            if launched is not None and not came:
                self._flying = self._launched_behind(launched)
            elif launched is None and flown is not None and len(came) == len(flown.rows):
                self.used_ahead += 1
                self._flying = self._launched_behind(flown)
        sampled = [] if flown is None else self._collect(flown, came)
        if launched is not None:
            sampled += self._collect(launched, set(range(len(launched.rows))))
        return sampled

    def _shared(self, flown: _Launched | None, rows: Items[Row]) -> tuple[set[int], list[Row]]:
        """Returns which rows of the step launched ahead are in this plan, and the rows of the plan that are not."""
        if flown is None:
            return set(), list(rows)
        here = {row.sequence.id: index for index, row in enumerate(flown.rows)}
        came: set[int] = set()
        rest: list[Row] = []
        page = self._ledger.block_tokens
        for row in rows:
            index = here.get(row.sequence.id)
            if index is not None and row.count == 1 and not row.draft:
                # The same place too: a sequence that was preempted and came back may have another page.
                table = self._ledger.table(row.slot)
                if flown.places[row.sequence.id] == (row.start, row.slot, table[row.start // page]):
                    came.add(index)
                    continue
            rest.append(row)
        return came, rest

    def _launch(self, rows: Items[Row]) -> _Launched:
        singles = [row for row in rows if row.count == 1 and row.samples]
        chunks = [row for row in rows if row.count > 1 or not row.samples]
        if any(row.draft for row in rows):
            raise EngineFailed("this engine verifies no drafts")
        began = self._event()
        replay = self._replays.of(singles, chunks)
        logits = replay.run()
        drawing = [row for row in chunks if row.samples]
        if drawing:
            first, count = replay.size.singles, len(singles)
            logits = torch.cat((logits[:count], logits[first : first + len(drawing)])) if count < first else logits
        rows = (*singles, *drawing)
        draws = tuple([self._draws[row.sequence.id] for row in rows])
        starts = tuple([row.start + row.count - 1 for row in rows])
        steady = not chunks and all(draw.on_device for draw in draws)
        return self._drawn(replay, logits, rows, draws, starts, steady, began)

    def _launched_behind(self, before: _Launched) -> _Launched | None:
        """Launches the next tokens of the same rows, behind the step that is under way. None: they can't be known yet
        to be what comes next."""
        if not before.steady or not all(draw.on_device for draw in before.draws):
            return None
        self.launched_ahead += 1
        starts = tuple([start + 1 for start in before.starts])
        began = self._event()
        before.replay.advance(len(before.rows), before.drawn)
        return self._drawn(before.replay, before.replay.run(), before.rows, before.draws, starts, True, began)

    def _drawn(
        self,
        replay: Replay,
        logits: Tensor,
        rows: tuple[Row, ...],
        draws: tuple[Draw, ...],
        starts: tuple[int, ...],
        steady: bool,
        began: Any,
    ) -> _Launched:
        """Draws on the device what is drawn there, and sends it back."""
        asked = [(draw, start + 1) for draw, start in zip(draws, starts, strict=True)]
        drawn = self._drawing.on_device(logits, asked) if rows else logits.new_zeros(0, dtype=torch.int32)
        tokens, done = drawn, None
        if self._cuda:
            tokens = torch.empty(len(rows), dtype=torch.int32, pin_memory=True)
            tokens.copy_(drawn, non_blocking=True)
            done = self._event()
        page, table = self._ledger.block_tokens, self._ledger.table
        places = {
            row.sequence.id: (start, row.slot, table(row.slot)[start // page])
            for row, start in zip(rows, starts, strict=True)
            if steady
        }
        return _Launched(rows, draws, starts, places, replay, logits, tokens, drawn, began, done, steady)

    def _event(self) -> Any:
        if not self._cuda:
            return None
        event = torch.cuda.Event(enable_timing=True)
        event.record()
        return event

    def _collect(self, launched: _Launched, wanted: set[int]) -> list[Sampled]:
        if launched.done is not None:
            launched.done.synchronize()
            self.device_s += launched.began.elapsed_time(launched.done) / 1e3
        tokens = launched.tokens.tolist()
        sampled = []
        for index, (row, draw) in enumerate(zip(launched.rows, launched.draws, strict=True)):
            if index not in wanted:
                continue
            if not draw.on_device and not launched.places:
                position = launched.starts[index] + 1
                sampled.append(on_host(row.sequence, draw, launched.logits[index], position))
            elif tokens[index] < 0:
                sampled.append(Sampled(row.sequence.id, (0,), error=EngineFailed("the model gave no finite logits")))
            else:
                sampled.append(Sampled(row.sequence.id, (tokens[index],)))
        return sampled

    def _check_ids(self, ids: Collection[int], param: str) -> None:
        most = self._model.shape.vocabulary
        if ids and not 0 <= min(ids) <= max(ids) < most:
            raise InvalidRequest(f"{param}: token ids go from 0 to {most - 1}", param=param)
