"""Keeps a fleet's forecast and its last measured start from zero over restarts."""

import asyncio
import json
import logging
import os
from pathlib import Path
from typing import Any

from headgate.model.errors import StartupError
from headgate.policy.scaling.forecast import Forecast

log = logging.getLogger(__name__)

SAVE_EVERY_S = 60.0
MOST_BYTES = 16 << 20
_MARK = "headgate-fleet-1"


class History:
    """The history in a file. `path` None: nothing is kept. Raises StartupError for a file that is no history, and does
    not overwrite it."""

    def __init__(self, path: Path | None, quantile: float) -> None:
        self.forecast = Forecast(quantile)
        self.baseline: dict[str, Any] | None = None
        """TTFT when everything had to be started for the request; see `headgate fleet zero`. None: never measured."""
        self._path = path
        if path is not None and path.exists():
            self._read(path, quantile)

    @property
    def kept(self) -> bool:
        return self._path is not None

    def keep_baseline(self, figures: dict[str, Any]) -> None:
        """Takes other figures to compare with, and saves them."""
        self.baseline = figures
        self.save()

    async def keep(self) -> None:
        """Saves every SAVE_EVERY_S seconds, until cancelled."""
        while self._path is not None:
            await asyncio.sleep(SAVE_EVERY_S)
            text = self._text()
            try:
                await asyncio.get_running_loop().run_in_executor(None, _write, self._path, text)
            except OSError as error:
                log.warning("%s could not be written: %s; what was learned since is kept in memory", self._path, error)

    def save(self) -> None:
        if self._path is None:
            return
        try:
            _write(self._path, self._text())
        except OSError as error:
            log.warning("%s could not be written: %s; what was learned since its last time is lost", self._path, error)

    def _text(self) -> str:
        return json.dumps({"format": _MARK, "forecast": self.forecast.to_dict(), "baseline": self.baseline})

    def _read(self, path: Path, quantile: float) -> None:
        hint = "name another file, or remove this one"
        try:
            with path.open("rb") as file:
                data = json.loads(file.read(MOST_BYTES))
            if not isinstance(data, dict) or data.get("format") != _MARK:
                raise ValueError("it was not written by this version of headgate")
            self.forecast = Forecast.from_dict(data["forecast"], quantile)
            self.baseline = data.get("baseline")
        except OSError as error:
            raise StartupError(f"fleet.history: can't read {path} ({error.strerror}); {hint}") from error
        except (ValueError, KeyError) as error:
            raise StartupError(f"fleet.history: {path} is no fleet's history ({error}); {hint}") from error


def _write(path: Path, text: str) -> None:
    """Writes all or nothing: a crash in between leaves the previous file."""
    aside = path.with_name(f"{path.name}.new")
    aside.write_text(text)
    os.replace(aside, path)
