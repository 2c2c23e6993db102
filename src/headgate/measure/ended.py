"""Which answers were ended early, and how much decoding did that save? Counted from records, by task.

An answer that repeats itself does not end by itself (benchmarks/results/saved.md): it would have gone on to its cap, so
what it was still allowed to say is what was saved. Of one that ran out of time, that is the most that was. Of one that
reached its cap nobody knows what it would have said: it is counted, and nothing more is made up.
"""

from headgate.model.record import Record

CAP = "cap"


class EndedEarly:
    def __init__(self) -> None:
        self.answers: dict[tuple[str, str], int] = {}
        """By task, and by what ended them: `cap`, `repetition` or `time`. Tasks are as many as the config has."""
        self.tokens: dict[tuple[str, str], int] = {}
        """That they were allowed and did not say; nothing for `cap`."""

    def told(self) -> dict[str, dict[str, int]]:
        """Of all tasks together, by what ended them: how many answers, and the tokens that were not decoded."""
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
