"""Which key was pressed."""

import pytest

from headgate.cli.terminal.keyboard import named


@pytest.mark.parametrize(
    ("text", "keys"),
    [
        ("q", ["q"]),
        ("?jk", ["?", "j", "k"]),
        ("\x1b[A\x1b[B", ["up", "down"]),
        ("\x1bOA\x1bOB", ["up", "down"]),
        ("\x1b[5~\x1b[6~", ["page up", "page down"]),
        ("\x1b", ["escape"]),
        ("\x1bq", ["escape", "q"]),
        ("\x1b[", []),
        ("\x1b[1;5C", []),
        ("\x1b[200~q", ["q"]),
        ("\r\n\x7f\x08", ["enter", "enter", "back", "back"]),
        ("\x03\x04", ["ctrl-c", "ctrl-d"]),
        ("é", ["é"]),
        ("", []),
    ],
)
def test_keys_by_what_a_terminal_sends(text: str, keys: list[str]) -> None:
    assert list(named(text)) == keys
