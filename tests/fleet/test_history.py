import json
from pathlib import Path

import pytest

from headgate.fleet.history import History
from headgate.model.errors import StartupError

HOUR_S = 3600.0


def test_what_was_learned_is_there_after_a_restart(tmp_path: Path) -> None:
    path = tmp_path / "history.json"
    first = History(path, 0.8)
    for minute in range(14 * 24 * 60):
        first.forecast.observe(minute * 60.0, 100.0 if minute // 60 % 24 == 9 else 10.0)
    first.baseline = {"cold_ttft_s": 4.2}
    first.save()
    again = History(path, 0.8)
    monday = 14 * 24 * HOUR_S
    nine = monday + 9 * HOUR_S
    assert again.forecast.floor(nine, nine + 600) == pytest.approx(first.forecast.floor(nine, nine + 600), rel=1e-3)
    assert again.forecast.floor(nine, nine + 600) > again.forecast.floor(monday, monday + 600)
    assert again.baseline == {"cold_ttft_s": 4.2}
    assert list(tmp_path.iterdir()) == [path]


def test_without_a_path_nothing_is_kept(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.chdir(tmp_path)
    History(None, 0.8).save()
    assert list(tmp_path.iterdir()) == []


@pytest.mark.parametrize(
    "text", ["", "{}", "[]", "not json", json.dumps({"format": "headgate-fleet-1", "forecast": 3})]
)
def test_a_file_that_is_something_else_is_refused_and_not_written_over(tmp_path: Path, text: str) -> None:
    path = tmp_path / "precious.json"
    path.write_text(text)
    with pytest.raises(StartupError, match="remove this one"):
        History(path, 0.8)
    assert path.read_text() == text


def test_a_full_disk_is_no_reason_to_stop(tmp_path: Path, caplog: pytest.LogCaptureFixture) -> None:
    history = History(tmp_path / "gone" / "history.json", 0.8)
    history.save()
    assert "could not be written" in caplog.text
