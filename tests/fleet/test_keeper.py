"""What a keeper finds among the last lines of a program. test_vllm_fleet.py has it keep one."""

import pytest

from headgate.fleet.keeper import MOST_SAID, LastWords
from tests.fleet.fake_vllm import MISSING, OLD

PYDANTIC = """\
(APIServer pid=1) pydantic_core._pydantic_core.ValidationError: 1 validation error for ModelConfig
(APIServer pid=1)   Value error, Invalid repository ID or local directory specified: '/nope'.
(APIServer pid=1)     For further information visit https://errors.pydantic.dev/2.13/v/value_error
"""
ARGPARSE = """\
usage: vllm serve [model_tag] [options]
vllm: error: unrecognized arguments: --bogus
"""
ENGINE_DIED = """\
(EngineCore pid=2) ERROR 11-19 20:00:01 [core.py:9] torch.OutOfMemoryError: CUDA out of memory. Tried to allocate 2 GiB
(APIServer pid=1) ERROR 11-19 20:00:01 [async_llm.py:9] EngineDeadError: EngineCore encountered an issue. See above
"""


@pytest.mark.parametrize(
    ("lines", "said"),
    [
        (MISSING, "OSError: /nope is not a local folder and is not a valid model"),
        (OLD, "UnsupportedVllm: Headgate's scheduler needs vLLM 0.12 or newer, this is 0.9.1: upgrade it"),
        (
            PYDANTIC,
            "ValidationError: 1 validation error for ModelConfig: Value error, Invalid repository ID or local"
            " directory specified: '/nope'.",
        ),
        (ARGPARSE, "unrecognized arguments: --bogus"),
        (ENGINE_DIED, "OutOfMemoryError: CUDA out of memory. Tried to allocate 2 GiB"),
        ("RuntimeError: Engine core initialization failed.", "RuntimeError: Engine core initialization failed."),
        ("one\n\n  two\n", "two"),
        ("KeyboardInterrupt", "KeyboardInterrupt"),
        ("a\x1b[31mb\u202e", "a [31mb "),
        ("", ""),
    ],
)
def test_the_line_that_says_why(lines: str, said: str) -> None:
    words = LastWords()
    for line in lines.splitlines():
        words.take(line)
    assert words.said == said


def test_a_long_line_is_cut() -> None:
    words = LastWords()
    words.take("ValueError: " + "x" * 9000)
    assert len(words.said) == MOST_SAID
    assert words.said.endswith("x…")
