"""Defines the logging flags of `serve` and `engine`."""

from dataclasses import dataclass
from typing import Annotated

from cyclopts import Parameter

from headgate.cli.setup.groups import LOGS
from headgate.logs import FORMAT_ENV, LEVEL_ENV, QUIET_ENV, LogFormat, LogLevel, LogOptions


@Parameter(name="*")
@dataclass(frozen=True, kw_only=True)
class LogFlags:
    log_level: Annotated[LogLevel | None, Parameter(group=LOGS, env_var=LEVEL_ENV)] = None
    """Least serious line that is logged. Default: info; with --quiet, warning."""
    log_format: Annotated[LogFormat, Parameter(group=LOGS, env_var=FORMAT_ENV)] = "text"
    """text for people, or json: one object per line and no banner, for what collects logs."""
    quiet: Annotated[bool, Parameter(group=LOGS, env_var=QUIET_ENV, negative="")] = False
    """No banner, and only warnings and errors."""
    access_log: Annotated[bool, Parameter(group=LOGS, negative="")] = False
    """Log each answered request: path, status, duration, and of a completion its tenant, lane, model, replica and
    tokens. Never what was asked or answered."""

    def options(self) -> LogOptions:
        level = self.log_level or ("warning" if self.quiet else "info")
        return LogOptions(level=level, format=self.log_format, quiet=self.quiet, access=self.access_log)
