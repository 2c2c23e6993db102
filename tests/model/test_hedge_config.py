"""The hedge section as a person writes it."""

import pytest

from headgate.config.file import parse
from headgate.config.hedge import HedgeConfig
from headgate.model.errors import StartupError


def test_all_of_it_can_be_said() -> None:
    text = """
hedge: {enabled: true, share: 0.01, percentile: 0.9, least_s: 0.2, least_samples: 50, longest_prompt_tokens: 512,
        most_use: 0.5, lanes: [fast]}
"""
    assert parse(text, "x.yaml").hedge == HedgeConfig(
        enabled=True,
        share=0.01,
        percentile=0.9,
        least_s=0.2,
        least_samples=50,
        longest_prompt_tokens=512,
        most_use=0.5,
        lanes=frozenset({"fast"}),
    )


@pytest.mark.parametrize(
    ("section", "problem"),
    [
        ("{share: 1.5}", "hedge.share: expected a number from 0 to 1, got 1.5"),
        ("{least_samples: 5000}", "hedge.least_samples: expected a whole number from 20 to 1000, got 5000"),
        ("{lanes: [quick]}", "hedge.lanes: no lane is called quick; there is fast, slow, long, batch"),
        ("{after: 1}", "hedge.after: unknown key"),
    ],
)
def test_what_makes_no_sense_is_refused(section: str, problem: str) -> None:
    with pytest.raises(StartupError) as caught:
        parse(f"hedge: {section}", "x.yaml")
    assert problem in str(caught.value)
