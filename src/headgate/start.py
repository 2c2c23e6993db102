"""The `headgate` command: it chooses which copy of the package runs before anything else of it is imported."""

from headgate.compiled import prefer_compiled


def main() -> None:
    prefer_compiled()
    from headgate.__main__ import main

    main()
