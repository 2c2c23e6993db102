"""Starts the `headgate` command: chooses which copy of the package runs before importing the rest of it."""

from headgate.compiled import prefer_compiled


def main() -> None:
    prefer_compiled()
    from headgate.__main__ import main

    main()
