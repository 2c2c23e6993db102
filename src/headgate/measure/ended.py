"""Counts from records, by task, the answers that were ended early and the output tokens that this saved.

An answer that repeats itself does not end by itself (benchmarks/results/saved.md): it would have continued to its cap,
so the tokens it was still allowed are the tokens saved. For an answer that ran out of time they are an upper bound. How
long an answer at its cap would have become is unknown: it is counted, and no saving is made up.
"""

from headgate.model.record import Record

CAP = "cap"


class EndedEarly:
    def __init__(self) -> None:
        self.answers: dict[tuple[str, str], int] = {}
        """Answers by task and by what ended them: `cap`, `repetition` or `time`. The config bounds the tasks."""
        self.tokens: dict[tuple[str, str], int] = {}
        """Output tokens that those answers were still allowed, by the same keys; none for `cap`."""

    def told(self) -> dict[str, dict[str, int]]:
        """Over all tasks, by what ended the answers: the number of answers, and of tokens that were not decoded."""
        told: dict[str, dict[str, int]] = {}
        for (task, by), answers in self.answers.items():
            one = told.setdefault(by, {"answers": 0, "saved_tokens": 0})
            one["answers"] += answers
            one["saved_tokens"] += self.tokens.get((task, by), 0)
        return told

    def take(self, record: Record) -> None:
        by = record.stop
        if not by:
            if not record.cap or record.output_tokens < record.cap * record.choices:
                return
            by = CAP
        key = (record.task, by)
        self.answers[key] = self.answers.get(key, 0) + 1
        if record.stop:
            self.tokens[key] = self.tokens.get(key, 0) + record.unsaid
