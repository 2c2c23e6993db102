"""Turns arguments into a config and runs it; a StartupError is printed as one line."""

import logging
import sys

from headgate.compiled import prefer_compiled, version

if __name__ == "__main__":
    prefer_compiled()  # before anything else is imported: it may start anew

from cyclopts import App

from headgate.cli import engine, export, fleet, load, look, rollout, serve, simulate, tune
from headgate.model.errors import StartupError

app = App(
    name="headgate",
    version=version,
    help="Serve language models with a predictable latency distribution: P95 and P99 stay put.",
    help_epilogue="Start with `headgate serve`, then open http://127.0.0.1:8000/.",
)

look.add_to(app)
export.add_to(app)
fleet.add_to(app)
export.export.command(fleet.usage)
load.add_to(app)
simulate.add_to(app)
tune.add_to(app)
rollout.add_to(app)
serve.add_to(app)
engine.add_to(app)


def main() -> None:
    logging.basicConfig(level=logging.WARNING, format="%(levelname)s %(name)s: %(message)s")
    try:
        app()
    except StartupError as error:
        print(f"headgate: {error}", file=sys.stderr)
        sys.exit(1)


if __name__ == "__main__":
    main()
