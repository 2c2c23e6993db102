"""Finds the commands and the blocks of code that the documents show."""

import re
import shlex
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path

ROOT = Path(__file__).resolve().parents[2]
PAGES = sorted(
    [ROOT / "README.md", ROOT / "CONTRIBUTING.md", ROOT / "benchmarks" / "README.md", *(ROOT / "docs").rglob("*.md")]
)
FENCE = re.compile(r"^( *)```(\w*)(?: title=\"([^\"]+)\")?\n(.*?)^\1```$", re.MULTILINE | re.DOTALL)
INLINE = re.compile(r"`((?:\.venv/bin/)?headgate [^`]+)`")
SPLIT = (";", "&&", "||", "|", ">", ">>", "<")


@dataclass(frozen=True)
class Command:
    """One line after a prompt, and what the page shows below it."""

    page: str
    text: str
    shown: str
    is_root: bool = False

    @property
    def bare(self) -> str:
        """The command without a comment behind it, and without the folder of an environment."""
        return re.sub(r"\s+#.*$", "", self.text).replace(".venv/bin/", "").strip()

    @property
    def words(self) -> list[list[str]]:
        """The words of each command of the line: what a shell would separate by ; && | or >."""
        lexer = shlex.shlex(self.bare, posix=True, punctuation_chars=";&|<>")
        lexer.whitespace_split = True
        found: list[list[str]] = [[]]
        for word in lexer:
            if word in SPLIT:
                found.append([])
            else:
                found[-1].append(word)
        return [words for words in found if words]


@dataclass(frozen=True)
class Block:
    """One fenced block."""

    page: str
    language: str
    title: str
    text: str

    def commands(self) -> Iterator[Command]:
        """The commands of a console block; a backslash at the end of a line continues it."""
        shown: list[str] = []
        command, is_root, more = "", False, False
        for line in [*self.text.splitlines(), "$ "]:
            if more:
                command, more = f"{command[:-1]}{line.strip()}", line.endswith("\\")
            elif line.startswith(("$ ", "# ")):
                if command:
                    yield Command(self.page, command, "\n".join(shown).strip(), is_root)
                command, shown, is_root, more = line[2:], [], line[0] == "#", line.endswith("\\")
            else:
                shown.append(line)


def blocks() -> Iterator[Block]:
    """Every fenced block of every page, without the indentation of a list."""
    for path in PAGES:
        for indent, language, title, text in FENCE.findall(path.read_text(encoding="utf-8")):
            plain = re.sub(rf"^{indent}", "", text, flags=re.MULTILINE)
            yield Block(path.relative_to(ROOT).as_posix(), language, title, plain)


def of(page: str) -> list[Block]:
    return [block for block in blocks() if block.page == page]


def commands() -> list[Command]:
    return [command for block in blocks() if block.language == "console" for command in block.commands()]


def mentioned() -> Iterator[tuple[str, str]]:
    """Page and text of every command of `headgate` within a sentence, or within a block of plain text."""
    for path in PAGES:
        page, text = path.relative_to(ROOT).as_posix(), path.read_text(encoding="utf-8")
        if path.name == "features.md":
            continue  # it quotes what was asked, done or not
        for found in INLINE.findall(FENCE.sub("", text)):
            yield page, " ".join(found.replace("\\|", "|").split())
    for block in blocks():
        if block.language == "text":
            yield from ((block.page, line) for line in block.text.splitlines() if line.startswith("headgate "))
