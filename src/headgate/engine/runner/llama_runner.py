"""Runs steps on llama.cpp: KV moves first, then one llama_decode, then a draw for every row that samples."""

import os
from collections.abc import Collection
from collections.abc import Sequence as Sequence_
from pathlib import Path

import numpy as np
from numpy.typing import NDArray

from headgate.engine.grammar.grammar import Grammars
from headgate.engine.runner.llama import KV_TYPES, Context, Model, library
from headgate.engine.runner.sampler import Logits, Sampler, chance, logprobs
from headgate.engine.runner.tokenizer import Tokenizer
from headgate.model.clock import Clock, monotonic
from headgate.model.errors import EngineFailed, InvalidRequest, ServeError, StartupError
from headgate.model.sampling import Sampled, TokenLogprob
from headgate.model.sequence import Sequence
from headgate.model.step import Copy, Drop, Move, Restore, Row, Save, Step, Trim

MAX_SLOTS = 256
_SLOT_ROUNDING = 256
_COMPUTE_BYTES = 256 * 2**20
"""Memory left for computing, the tokenizer and Python itself."""


class LlamaRunner:
    """Implements `engine.Runner`. Used by one thread; only `tokenizer` may be shared."""

    def __init__(
        self,
        model: Model,
        *,
        slots: int,
        slot_tokens: int,
        threads: int,
        host_tokens: int = 0,
        max_batch_tokens: int | None = None,
        loras: Sequence_[Path] = (),
        chat_template: str | None = None,
        clock: Clock = monotonic,
    ) -> None:
        """`host_tokens`: KV tokens that may be swapped out or kept as prefixes outside the slots. Their memory is
        allocated as needed, so that only the check here can report at the start that there is no room for it."""
        self.slots = slots
        self.slot_tokens = slot_tokens
        self.bytes_per_token = round(model.kv_values_per_token * KV_TYPES[model.kv_type][1])
        self.max_batch_tokens = max_batch_tokens or -(-(512 + slots) // 64) * 64
        self.model_s = 0.0
        """Seconds spent inside llama.cpp so far."""
        # llama.cpp rounds each slot up; asked for less, it would give every slot less.
        n_ctx = slots * (-(-slot_tokens // _SLOT_ROUNDING) * _SLOT_ROUNDING)
        self._check(model, n_ctx, host_tokens)
        self.tokenizer = Tokenizer(model, template=chat_template)
        adapters = [model.adapter(path) for path in loras]
        self._context = Context(model, slots=slots, n_ctx=n_ctx, batch_tokens=self.max_batch_tokens, threads=threads)
        if adapters:
            self._context.apply(adapters)
        # Built now, not with the first grammar: building takes a quarter of a second, in which no stream moves.
        self.grammars = Grammars(self.tokenizer, model.c)
        self._clock = clock
        self._samplers: dict[int, Sampler] = {}
        self._blobs: dict[int, NDArray[np.uint8]] = {}

    def open(self, sequence: Sequence) -> None:
        """Raises InvalidRequest for a bad grammar, and for token ids that would make llama.cpp fail every sequence."""
        self._check_ids(sequence.tokens, "prompt")
        self._check_ids(sequence.sampling.logit_bias, "logit_bias")
        self._check_ids(sequence.sampling.stop_token_ids, "stop_token_ids")
        grammar = sequence.sampling.grammar
        self._samplers[sequence.id] = Sampler(
            sequence.sampling,
            sequence.tokens,
            sequence.prompt_len - sequence.continued,
            eog=self.tokenizer.eog,
            constraint=None if grammar is None else self.grammars.compile(grammar),
        )

    def attend(self, sequence_id: int) -> None:
        self._samplers[sequence_id].attends = True

    def close(self, sequence_id: int) -> None:
        self._samplers.pop(sequence_id).close()

    def run(self, step: Step) -> list[Sampled]:
        began = self._clock()
        self._carry_out(step)
        moved = self._clock()
        count, wanted = self._fill(step.rows)
        filled = self._clock()
        code = self._context.decode(count) if count else 0
        self.model_s += (moved - began) + (self._clock() - filled)
        if code:
            why = " ".join(library().why().split())
            raise EngineFailed(f"llama_decode gave {code} for {count} tokens: {why}")
        return self._sample(step.rows, self._context.logits(wanted)) if wanted else []

    def shutdown(self) -> None:
        """Frees the KV memory. The weights stay while a tokenizing thread still holds the model."""
        for sampler in self._samplers.values():
            sampler.close()
        self._samplers.clear()
        self._blobs.clear()
        self.grammars.close()
        self._context.close()

    # -- moves ----------------------------------------------------------------------------------------

    def _carry_out(self, step: Step) -> None:
        # llama.cpp defers the data of a copy to the next decode. A Save or Restore in between would read or overwrite a
        # slot too early, so such a step, and one without a decode, copies by way of the host.
        deferred = bool(step.rows) and not any(isinstance(move, Save | Restore) for move in step.moves)
        for move in step.moves:
            if not self._moved(move, deferred):
                raise EngineFailed(f"llama.cpp refused {move}: {library().why()}")

    def _moved(self, move: Move, deferred: bool) -> bool:
        match move:
            case Trim(slot, length):
                return self._context.trim(slot, length)
            case Copy(source, slot, length):
                if not deferred:
                    return self._restored(self._context.save(source), slot, length)
                self._context.copy(source, slot)
                return self._context.trim(slot, length)
            case Save(slot, blob, _):
                # The whole slot: llama.cpp can't save a part. Restore cuts it to its length.
                self._blobs[blob] = self._context.save(slot)
                return bool(self._blobs[blob].size)
            case Restore(blob, slot, length):
                return self._restored(self._blobs[blob], slot, length)
            case Drop(blob):
                del self._blobs[blob]
                return True

    def _restored(self, state: NDArray[np.uint8], slot: int, length: int) -> bool:
        return self._context.load(slot, state) and self._context.trim(slot, length)

    # -- the batch ------------------------------------------------------------------------------------

    def _fill(self, rows: Sequence_[Row]) -> tuple[int, int]:
        """Writes the rows into the batch; returns its tokens, and the number of tokens whose logits are wanted."""
        context, at, wanted = self._context, 0, 0
        if sum(row.width for row in rows) > self.max_batch_tokens:
            raise EngineFailed(f"a step has more than {self.max_batch_tokens} tokens")
        for row in rows:
            end = at + row.width
            context.tokens[at : at + row.count] = row.sequence.tokens[row.start : row.start + row.count]
            context.tokens[at + row.count : end] = row.draft
            context.positions[at:end] = np.arange(row.start, row.start + row.width)
            context.slots[at:end] = row.slot
            context.wanted[at:end] = 0
            if row.samples:
                context.wanted[end - 1 - len(row.draft) : end] = 1
                wanted += 1 + len(row.draft)
            at = end
        return at, wanted

    def _sample(self, rows: Sequence_[Row], logits: Logits) -> list[Sampled]:
        drawing = [(row, self._samplers[row.sequence.id]) for row in rows if row.samples]
        best: list[int] = []
        if all(sampler.plain for _, sampler in drawing):
            top = logits.argmax(axis=1)
            if np.isfinite(logits[np.arange(top.size), top]).all():
                best = top.tolist()
        sampled, at = [], 0
        for row, sampler in drawing:
            end = at + 1 + len(row.draft)
            sampled.append(self._verify(row, sampler, logits[at:end], best[at:end]))
            at = end
        if all(one.error for one in sampled) and not np.isfinite(logits.max(axis=1)).any():
            raise EngineFailed("the model gave no finite logits")
        return sampled

    def _verify(self, row: Row, sampler: Sampler, logits: Logits, best: list[int]) -> Sampled:
        """Draws at every position, as long as the draft guessed the token drawn at the position before."""
        tokens: list[int] = []
        told: list[TokenLogprob] = []
        chances: list[float] = []
        for index, guess in enumerate((*row.draft, None)):
            try:
                token = best[index] if best else sampler.draw(logits[index], row.start + row.count + index)
            except EngineFailed as error:
                return Sampled(row.sequence.id, (*tokens, 0), error=_cause(logits[index], error))
            tokens.append(token)
            if sampler.sampling.top_logprobs is not None:
                told.append(logprobs(logits[index], token, sampler.sampling.top_logprobs))
            if sampler.attends:
                chances.append(chance(logits[index], token))
            if token != guess or token in self.tokenizer.eog:
                break
        return Sampled(row.sequence.id, tuple(tokens), tuple(told), tuple(chances), sampler.stuck)

    def _check_ids(self, ids: Collection[int], param: str) -> None:
        if ids and not 0 <= min(ids) <= max(ids) < self.tokenizer.n_vocab:
            raise InvalidRequest(f"{param}: token ids go from 0 to {self.tokenizer.n_vocab - 1}", param=param)

    def _check(self, model: Model, n_ctx: int, host_tokens: int) -> None:
        if not 0 < self.slots <= MAX_SLOTS or self.slot_tokens < 1:
            raise StartupError(f"slots must be 1 to {MAX_SLOTS} and hold a token, not {self.slots}")
        if self.slot_tokens > model.n_ctx_train:
            raise StartupError(
                f"a context of {self.slot_tokens} tokens is more than the {model.n_ctx_train} this model was "
                f"trained on; lower --context"
            )
        if not model.trimmable:
            raise StartupError(f"{model.path} is not a decoder-only transformer, which this engine needs")
        kv, host, free = n_ctx * self.bytes_per_token, host_tokens * self.bytes_per_token, available_bytes()
        # Weights that llama.cpp repacked are in this process's own memory already; mapped ones still have to come.
        need = kv + host + _COMPUTE_BYTES + max(0, model.size - _own_bytes())
        if model.gpu_layers:  # how much of the KV and the weights is on the GPU is for llama.cpp to say
            need = host + _COMPUTE_BYTES
        if need > free:
            raise StartupError(
                f"{self.slots} slots of {self.slot_tokens} tokens need {need / 2**30:.1f} GiB with the weights and "
                f"{host / 2**30:.1f} GiB for {host_tokens} tokens of swapped and cached KV, "
                f"but {free / 2**30:.1f} GiB are available; lower --slots, --context or --host-tokens"
            )


def _cause(logits: Logits, error: EngineFailed) -> ServeError:
    """Returns why no token could be drawn from this row: the model gave no finite logits, or the request's settings
    exclude all tokens."""
    if not np.isfinite(logits.max()):
        return error
    return InvalidRequest("no token is left to draw: logit_bias, min_tokens, stop_token_ids or ignore_eos exclude all")


def available_bytes(root: Path = Path("/")) -> int:
    """Returns the memory that this process can still take, in bytes: the machine's, or less if a control group says
    so."""
    try:
        free = _field(root / "proc/meminfo", "MemAvailable:") * 1024
    except OSError:  # macOS: what is free there is not known, so all that there is counts
        free = os.sysconf("SC_PAGE_SIZE") * os.sysconf("SC_PHYS_PAGES")
    group = root / "sys/fs/cgroup"
    for limit, usage, cached in (
        ("memory.max", "memory.current", "memory.stat"),
        ("memory/memory.limit_in_bytes", "memory/memory.usage_in_bytes", "memory/memory.stat"),
    ):
        try:
            left = int((group / limit).read_text()) - int((group / usage).read_text())
        except (OSError, ValueError):  # no such group, or "max"
            continue
        free = min(free, left + _field(group / cached, "inactive_file"))
    return free


def _own_bytes(root: Path = Path("/")) -> int:
    """The memory that this process has to itself; 0: not known."""
    try:
        return _field(root / "proc/self/status", "RssAnon:") * 1024
    except OSError:
        return 0


def _field(path: Path, name: str) -> int:
    for line in path.read_text().splitlines():
        if line.startswith(name + " ") or line.startswith(name + "\t"):
            return int(line.split()[1])
    return 0
