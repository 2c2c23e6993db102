"""Adds `headgate completion`, which prints what lets a shell complete commands and options."""

from typing import Literal

from cyclopts import App

from headgate.cli.setup.groups import FIT_IN


def add_to(app: App) -> None:
    def completion(shell: Literal["bash", "zsh", "fish"], /) -> None:
        """Print a script that lets your shell complete headgate's commands and options.

        Parameters
        ----------
        shell
            bash, zsh or fish.
        """
        print(app.generate_completion(prog_name="headgate", shell=shell))

    app.command(completion, group=FIT_IN)
