"""Counts what the duration of a step depends on. A profile turns these features into seconds."""

from headgate.model.step import Row, Step, moved_tokens


class StepFeatures:
    """Features of one step. Never changed once made."""

    __slots__ = ("context", "copied", "decodes", "loaded", "pairs", "prefill", "saved")

    def __init__(
        self,
        *,
        prefill: int = 0,
        decodes: int = 0,
        context: int = 0,
        pairs: int = 0,
        saved: int = 0,
        loaded: int = 0,
        copied: int = 0,
    ) -> None:
        self.prefill = prefill
        """Prompt tokens and drafted tokens."""
        self.decodes = decodes
        self.context = context
        """KV tokens that all decoding sequences read together."""
        self.pairs = pairs
        """Σ(2pc + c²) over chunks of c prompt tokens after p cached: twice the token pairs that prefill attends to."""
        self.saved = saved
        """Tokens whose KV is saved to host memory first."""
        self.loaded = loaded
        self.copied = copied
        """Tokens whose KV is copied within device memory."""

    @property
    def tokens(self) -> int:
        return self.prefill + self.decodes

    def later(self, steps: float) -> "StepFeatures":
        """The features of the same sequences `steps` decode steps later."""
        return StepFeatures(
            prefill=self.prefill,
            decodes=self.decodes,
            context=round(self.context + steps * self.decodes),
            pairs=self.pairs,
            saved=self.saved,
            loaded=self.loaded,
            copied=self.copied,
        )

    def __eq__(self, other: object) -> bool:
        return isinstance(other, StepFeatures) and self._all() == other._all()

    def __hash__(self) -> int:
        return hash(self._all())

    def __repr__(self) -> str:
        names = ("prefill", "decodes", "context", "pairs", "saved", "loaded", "copied")
        said = [f"{name}={value}" for name, value in zip(names, self._all(), strict=True) if value]
        return f"Shape({', '.join(said)})"

    def _all(self) -> tuple[int, int, int, int, int, int, int]:
        return (self.prefill, self.decodes, self.context, self.pairs, self.saved, self.loaded, self.copied)


def is_decode(row: Row) -> bool:
    """Whether a row decodes; otherwise it prefills. The answer depends only on facts that no longer change, so unlike
    `Sequence.decoding` it is the same before and after a step."""
    return row.samples and row.count == 1 and row.start >= row.sequence.prompt_len


def shape(step: Step) -> StepFeatures:
    prefill = decodes = context = pairs = 0
    for row in step.rows:
        start, count = row.start, row.count
        if row.samples and count == 1 and start >= row.sequence.prompt_len:  # `is_decode`, inlined for speed
            drafted = len(row.draft)
            decodes += 1
            prefill += drafted
            context += start + 1 + drafted
        else:
            prefill += count
            pairs += count * (2 * start + count)
    saved, loaded, copied = moved_tokens(step.moves) if step.moves else (0, 0, 0)
    return StepFeatures(
        prefill=prefill, decodes=decodes, context=context, pairs=pairs, saved=saved, loaded=loaded, copied=copied
    )
