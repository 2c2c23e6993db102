"""Runs the command line and ends it in order: what goes wrong is one line on standard error, and a status.

0    done
1    it could not be done: nothing answers there, a port is taken, a file can't be written
2    the command line or a config has to be changed
130  interrupted
"""

import os
import re
import sys
from collections.abc import Sequence
from difflib import get_close_matches

from cyclopts import App
from cyclopts.exceptions import CycloptsError, MissingArgumentError, UnusedCliTokensError
from rich.console import Console

from headgate.model.errors import StartupError, UsageError

FAILED, MISUSED, INTERRUPTED = 1, 2, 130


def run(app: App, words: Sequence[str] | None = None) -> int:
    """Runs a command line, by default this process's own. Returns its exit status."""
    try:
        app(words, exit_on_error=False, print_error=False, error_console=Console(stderr=True))
    except CycloptsError as error:
        return _say(_told(app, error), MISUSED, _help_for(error))
    except UsageError as error:
        return _say(str(error), MISUSED)
    except StartupError as error:
        return _say(str(error), FAILED)
    except BrokenPipeError:  # its reader has seen enough, as with `| head`
        os.dup2(os.open(os.devnull, os.O_WRONLY), sys.stdout.fileno())
        return FAILED
    except OSError as error:
        if error.filename is None:
            raise
        return _say(f"{error.filename}: {error.strerror}; choose another file, or mend its permissions", FAILED)
    except KeyboardInterrupt:
        return INTERRUPTED
    except SystemExit as ended:  # every command ends so; those that judge something, with a status of their own
        return ended.code if isinstance(ended.code, int) else 0
    return 0


def _say(message: str, status: int, more: str = "") -> int:
    print(f"headgate: {message}{more}", file=sys.stderr)
    return status


def _told(app: App, error: CycloptsError) -> str:
    """The library's message on one line, as ours are written."""
    command = " ".join(error.command_chain or ())
    if isinstance(error, UnusedCliTokensError) and error.unused_tokens:
        word = error.unused_tokens[0]
        return f"{command} has no place for {word!r}; {_commands_like(app, error, word)}".rstrip("; ")
    if isinstance(error, MissingArgumentError) and error.argument is not None and error.argument.index is not None:
        return f"{command}: {error.argument.name.lstrip('-').upper()} is missing"
    told = " ".join(str(error).split())
    told = re.sub(r" Available commands: .*", "", told).rstrip(".")
    told = re.sub(r'unable to convert "(.*)" into int$', r"expected a whole number, got '\1'", told)
    told = re.sub(r'unable to convert "(.*)" into float$', r"expected a number, got '\1'", told)
    return told[:1].lower() + told[1:] if told[1:2].islower() else told


def _commands_like(app: App, error: CycloptsError, word: str) -> str:
    """A suggestion, where the word was to be a command; empty: no command is like it."""
    found = app
    for one in error.command_chain or ():
        found = found[one]
    close = get_close_matches(word, [name for name in found if not name.startswith("-")], n=1)
    return f"did you mean {close[0]}?" if close else ""


def _help_for(error: CycloptsError) -> str:
    """Where the options are listed."""
    return f"; see headgate {' '.join([*(error.command_chain or ()), '--help'])}"
