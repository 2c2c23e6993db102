"""Turns arguments into a config and runs it; what goes wrong is one line and a status (cli/setup/lines.py)."""

import logging
import sys

from headgate.compiled import prefer_compiled, version

if __name__ == "__main__":
    prefer_compiled()  # before anything else is imported: it may start anew

from cyclopts import App, Parameter

from headgate.cli import batch, engine, epp, export, fleet, load, look, rollout, serve, simulate, tune
from headgate.cli.setup import completion, init, keys
from headgate.cli.setup.examples import add_examples
from headgate.cli.setup.groups import MORE
from headgate.cli.setup.lines import run
from headgate.cli.terminal import commands


def shown_default(value: object) -> str | None:
    """The default as `--help` shows it; None: there is none that says anything to a person."""
    if value is None or isinstance(value, bool) or value in ("", ()):
        return None
    return " ".join(map(str, value)) if isinstance(value, tuple) else str(value)


app = App(
    name="headgate",
    version=version,
    help="Serve language models with a predictable latency distribution: P95 and P99 stay put.",
    group_commands=MORE,
    default_parameter=Parameter(show_default=shown_default),
)

serve.add_to(app)
epp.add_to(app)
engine.add_to(app)
init.add_to(app)
keys.add_to(app)
look.add_to(app)
commands.add_to(app)
fleet.add_to(app)
rollout.add_to(app)
batch.add_to(app)
load.add_to(app)
tune.add_to(app)
simulate.add_to(app)
export.add_to(app)
export.export.command(fleet.usage)
completion.add_to(app)
add_examples(app)


def main() -> None:
    logging.basicConfig(level=logging.WARNING, format="%(levelname)s %(name)s: %(message)s")
    sys.exit(run(app))


if __name__ == "__main__":
    main()
