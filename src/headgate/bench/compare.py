"""Runs `headgate bench compare A.json B.json`: says which differences between results are real."""

from collections.abc import Sequence
from pathlib import Path

from rich.console import Console
from rich.text import Text

from headgate.model.errors import UsageError
from headgate.report import html_page, json_file
from headgate.report.compare import FigureDifference, compare


def run(paths: Sequence[Path], *, page: Path | None = None, seed: int = 0, out: Console | None = None) -> int:
    """Compares the first file with each of the others. `page`: where to write an HTML page with all files side by
    side."""
    if len(paths) < 2:
        raise UsageError("compare what with what? Give two files or more")
    out = out or Console(highlight=False)
    results = [json_file.read(path) for path in paths]
    for path, other in zip(paths[1:], results[1:], strict=True):
        found = compare(results[0], other, seed=seed)
        if not found:
            raise UsageError(f"{paths[0]} and {path} have no lane in common")
        out.print(Text.assemble((f"{paths[0]} → {path}", "bold")), soft_wrap=True)
        for difference in found:
            out.print(Text(f"  {difference}", style=_style(difference)), soft_wrap=True)
        real = sum(difference.verdict == "real" for difference in found)
        judged = sum(difference.verdict != "too few" for difference in found)
        out.print(f"  {real} of {judged} differences are real (at most one comparison in twenty errs on any of them)")
    if page is not None:
        html_page.write(page, results, seed=seed, names=[path.stem for path in paths])
    return 0


def _style(difference: FigureDifference) -> str:
    if difference.verdict != "real":
        return "dim"
    worse = difference.change > 0 if difference.what != "good" else difference.change < 0
    return "bold red" if worse else "bold green"
