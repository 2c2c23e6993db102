"""Configures batches: where their files are kept, and how much of them a tenant may have."""

from dataclasses import dataclass
from pathlib import Path
from typing import Annotated

from headgate.config.hints import Count, Seconds, between


@dataclass(frozen=True, slots=True, kw_only=True)
class BatchesConfig:
    enabled: bool = True
    """Whether /v1/files and /v1/batches are served."""
    folder: Path | None = None
    """Folder for files, results and progress; gateways of one machine may share it. None: batches-PORT in this user's
    folder for state, $XDG_STATE_HOME/headgate or ~/.local/state/headgate. With port 0 or a Unix socket there is no such
    folder, since a restart would not find it again, and batches are off until one is named."""
    file_bytes: Annotated[int, between(1024, 1 << 34)] = 200 * 1024 * 1024
    """Maximum bytes of an uploaded file; a larger one gets 413."""
    lines: Annotated[int, between(1, 1_000_000)] = 50_000
    """Maximum lines of a batch."""
    window_s: Seconds = 86_400.0
    """Time in which a batch is completed; what has not run by then is told as expired."""
    attempts: Annotated[int, between(1, 100)] = 8
    """Times that a line is sent while replicas fail it, with growing pauses, before that is its result. Waiting for
    room is no attempt."""
    tenant_bytes: Annotated[int, between(1024, 1 << 44)] = 2 * 1024 * 1024 * 1024
    """Maximum bytes of a tenant's uploaded files together; more get 413."""
    tenant_files: Count = 1000
    """Maximum uploaded files of a tenant."""
    tenant_batches: Annotated[int, between(1, 10_000)] = 20
    """Maximum batches of a tenant that are not over yet."""
    keep_days: Annotated[int, between(1, 3650)] = 30
    """Days after which files, and batches that are over, are removed."""
