"""Builds and runs an engine around a model in a Hugging Face folder."""

import itertools
import os
import random
from pathlib import Path

from headgate.config.engine import EngineConfig
from headgate.config.listen import ListenConfig
from headgate.engine.engine import Engine
from headgate.engine.intake import Intake
from headgate.engine.server import EngineServer
from headgate.logs import LogOptions
from headgate.model.clock import monotonic
from headgate.model.errors import StartupError
from headgate.progress import Progress
from headgate.wiring.engine import chat_template_in, run_loaded


def run_folder(
    given: EngineConfig,
    named: frozenset[str],
    listen: ListenConfig,
    progress: Progress,
    step_log: Path | None,
    logs: LogOptions,
) -> None:
    """Runs the engine until SIGTERM or SIGINT. `named`: the fields of the config that the operator set. Raises
    StartupError when it can't start, or later fails."""
    assert given.model is not None
    try:
        from headgate.engine.torch.loading import look_at, torch_engine
        from headgate.engine.torch.weights import has_weights
    except ImportError as error:
        raise StartupError(
            f"{given.model} is a folder, for PyTorch ({error}): pip install 'headgate[torch]'"
        ) from error
    folder = look_at(given.model, given, named)
    template = chat_template_in(given.chat_template)

    def load(server: EngineServer) -> tuple[Engine, Intake]:
        billions = folder.shape.parameters / 1e9
        what = "" if has_weights(folder.path) else ", random weights: the folder has no *.safetensors"
        began = monotonic()
        with progress.phase("weights", f"{billions:.3g} billion on {folder.device.type}{what}"):
            rng, ids = random.Random(os.urandom(16)), itertools.count(1)
            made = torch_engine(folder, template, clock=monotonic, sink=server.sink, ids=ids, rng=rng)
        server.record_phase("weights", monotonic() - began)
        return made

    run_loaded(load, folder.config, listen, progress, step_log, None, logs)
