"""Adds to the site what docs/ does not hold: the pages made from code, and the documents beside docs/.

A link is written so that it works among the files of the repository. Here the files stand elsewhere, so each link is
followed in the repository first. Diagrams of states become tables: nothing on the site is drawn by a script that would
have to be fetched.
"""

import posixpath
import re
from collections.abc import Iterator
from pathlib import Path
from typing import Any

from docs.site.reference import commands_page, config_page, example_page
from mkdocs.structure.files import File, Files

ROOT = Path(__file__).resolve().parents[2]
BESIDE = ("ARCHITECTURE.md", "CONTRIBUTING.md", "CHANGELOG.md", "benchmarks/README.md")
"""Documents outside docs/ that are pages too."""
MOVED = {"README.md": "index.md", "headgate.example.yaml": "example.md"}
"""Files of the repository that have a page of another name."""
LINK = re.compile(r"(\]\()(?!\w+:|#)([^)\s]+)(\))")
STATES = re.compile(r"```mermaid\nstateDiagram-v2\n(.*?)```", re.DOTALL)
STEP = re.compile(r"^\s*(\S+) --> (\S+?)(?:: (.+))?$", re.MULTILINE)


def beside() -> Iterator[str]:
    """Files outside docs/ that the site has, as paths in the repository."""
    yield from BESIDE
    for pattern in ("benchmarks/results/*.md", "benchmarks/results/*.svg"):
        yield from sorted(path.relative_to(ROOT).as_posix() for path in ROOT.glob(pattern))


def on_config(config: Any) -> Any:
    decisions = [f"decisions/{path.name}" for path in sorted((ROOT / "docs/decisions").glob("0*.md"))]
    measured = [name for name in beside() if name.startswith("benchmarks/results/") and name.endswith(".md")]
    inside = config["nav"][-1]["Inside"]
    inside[-2] = {"Decisions": ["decisions/README.md", *decisions]}
    inside[-1] = {"Measured": ["benchmarks/README.md", *measured]}
    return config


def on_files(files: Files, config: Any) -> Files:
    pages = {"config.md": config_page(), "cli.md": commands_page(), "example.md": example_page(ROOT)}
    for name, text in pages.items():
        files.append(File.generated(config, name, content=text))
    for name in beside():
        files.append(File.generated(config, name, abs_src_path=str(ROOT / name)))
    return files


def on_page_markdown(markdown: str, page: Any, config: Any, files: Files) -> str:
    here = page.file.src_uri
    in_repository = here if here in set(beside()) else f"docs/{here}"
    text = LINK.sub(lambda found: found[1] + moved(found[2], in_repository, here) + found[3], markdown)
    return STATES.sub(lambda found: states_table(found[1]), text)


def moved(target: str, of: str, page: str) -> str:
    """The link on the site for one in the repository. `of`: the file that has it; `page`: that file on the site."""
    path, mark, anchor = target.partition("#")
    named = posixpath.normpath(posixpath.join(posixpath.dirname(of), path))
    if (ROOT / named).is_dir():
        named = f"{named}/README.md"
    on_site = MOVED.get(named, named.removeprefix("docs/"))
    return posixpath.relpath(on_site, posixpath.dirname(page) or ".") + mark + anchor


def states_table(diagram: str) -> str:
    """A table of what leads from which state to which, for a diagram of states."""
    rows = ["| from | to | when |", "|---|---|---|"]
    for before, after, when in STEP.findall(diagram):
        rows.append(f"| {'–' if before == '[*]' else before} | {after} | {when or 'at the start'} |")
    return "\n".join(rows)
