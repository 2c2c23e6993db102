"""Tables of timings, as other tools write them."""

from pathlib import Path

import pytest

from headgate.bench.fitting.timing_table import read_table
from headgate.model.errors import UsageError


def table(tmp_path: Path, text: str) -> Path:
    path = tmp_path / "t.csv"
    path.write_text(text)
    return path


def test_one_row_may_tell_both(tmp_path: Path) -> None:
    path = table(
        tmp_path,
        "input_len,output_len,max_concurrency,median_ttft_ms,median_itl_ms\n512,128,1,20,9.5\n512,128,8,90,11\n",
    )
    alone, single, eight = read_table(path, 256)
    assert (alone.seconds, len(alone.steps), alone.requests) == (0.02, 2, 1)
    assert (single.seconds, single.decodes, single.steps[0].context) == (0.0095, 1, 576)
    assert (eight.decodes, eight.steps[0].context) == (8, 8 * 576)  # its first token waited for others' prompts


def test_a_profilers_phases_are_told_apart(tmp_path: Path) -> None:
    text = "phase,isl_or_context,implied_batch,ttft_or_itl_ms\nprefill,100,,19.5\ndecode,350,263.0,19.1\n"
    first, second = read_table(table(tmp_path, text), 8192)
    assert (first.decodes, first.steps[0].prefill, second.decodes) == (0, 100, 263)


@pytest.mark.parametrize(
    ("text", "problem"),
    [
        ("", "expected a header line"),
        ("a,b\n1,2\n", "expected a header line"),
        ("isl,batch\n1,2\n", "expected a header line"),
        ("isl,ttft_ms\n,5\n", "line 2: no length"),
        ("isl,ttft_ms\n100,fast\n", "line 2: ttft_ms is 'fast'; expected a number above 0"),
        ("isl,ttft_ms\n100,-3\n", "ttft_ms is '-3'"),
        ("isl,ttft_ms\n100,nan\n", "ttft_ms is 'nan'"),
        ("isl,ttft_ms\n1e300,5\n", "isl is '1e300'"),
        ("isl,ttft_ms,batch\n100,5,0\n", "batch is '0'"),
    ],
)
def test_what_is_no_table_is_refused_in_words(tmp_path: Path, text: str, problem: str) -> None:
    with pytest.raises(UsageError) as caught:
        read_table(table(tmp_path, text), 512)
    assert problem in str(caught.value)


def test_a_file_that_is_not_there_or_no_text_is_said(tmp_path: Path) -> None:
    with pytest.raises(UsageError, match="can't read"):
        read_table(tmp_path / "none.csv", 512)
    path = tmp_path / "b.csv"
    path.write_bytes(b"\xff\xfe\x00")
    with pytest.raises(UsageError, match="no table of comma-separated values"):
        read_table(path, 512)


def test_short_rows_and_empty_cells_are_left_out(tmp_path: Path) -> None:
    assert read_table(table(tmp_path, "isl,ttft_ms,itl_ms\n100\n100,,\n"), 512) == []
