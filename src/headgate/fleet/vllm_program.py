"""Starts vLLM as a replica: its command, its environment and its share of this machine's devices.

vLLM imports Headgate's scheduler from a copy of its sources, so that its own environment needs nothing of Headgate.
"""

import os
import re
import shutil
import sys
from asyncio import create_subprocess_exec
from asyncio.subprocess import PIPE, Process
from collections.abc import Iterable, Mapping, Sequence
from pathlib import Path

from headgate.config.fleet import VllmConfig, flag_value
from headgate.fleet import keeper
from headgate.fleet.port import FleetError
from headgate.model.errors import StartupError

PACKAGE = Path(__file__).resolve().parents[1]
SCHEDULER = "headgate.vllm.scheduler.Scheduler"
COPIED = ("config", "model", "policy", "vllm")
"""Folders of the package that the scheduler needs, beside the modules at its top."""
VISIBLE = "CUDA_VISIBLE_DEVICES"
"""Variable that gives a process its devices, of NVIDIA and, as vLLM reads it, of AMD."""
CORES = "VLLM_CPU_OMP_THREADS_BIND"
"""Variable that gives vLLM's CPU build its cores."""
METRICS = "PROMETHEUS_MULTIPROC_DIR"
PARALLEL = (("tensor-parallel-size", "tp"), ("pipeline-parallel-size", "pp"), ("data-parallel-size", "dp"))
"""Flags, each with its short form, whose product is the number of devices that a vLLM needs."""


def devices_here(environ: Mapping[str, str], dev: Path = Path("/dev")) -> tuple[str, ...]:
    """Returns this machine's GPUs, or those of them that this process may use; none where only NVIDIA's are looked
    for and there are none."""
    said = environ.get(VISIBLE)
    if said is not None:
        return tuple(one for name in said.split(",") if (one := name.strip()) and one != "-1")
    numbers = [int(found[1]) for path in dev.glob("nvidia*") if (found := re.fullmatch(r"nvidia(\d+)", path.name))]
    return tuple(map(str, sorted(numbers)))


def device_sets(config: VllmConfig, here: Sequence[str]) -> tuple[str, ...]:
    """Returns the devices of each replica that can run at once; empty: there are no devices to share out."""
    if config.devices:
        return config.devices
    each = devices_each(config)
    return tuple(",".join(here[first : first + each]) for first in range(0, len(here) - each + 1, each))


def devices_left(config: VllmConfig, pools: Iterable[tuple[VllmConfig, int]], here: Sequence[str]) -> tuple[str, ...]:
    """Returns the devices that a pool may share out: none that another pool names, or that one before it takes.
    `pools`: all pools of vLLM, each with the most replicas at once. Raises StartupError where none is left."""
    others = [(other, most) for other, most in pools if other is not config]
    named = {device for other, _ in others for names in other.devices for device in names.split(",")}
    left = [device for device in here if device not in named]
    for other, most in pools:
        if other is config:
            break
        if not other.devices:
            left = left[most * devices_each(other) :]
    if here and not left and not config.devices:
        raise StartupError(
            f"no device is left for vLLM with {config.model}: other pools have all {len(here)} ({','.join(here)});"
            " lower their scale.max"
        )
    return tuple(left)


def devices_each(config: VllmConfig) -> int:
    each = 1
    for name, short in PARALLEL:
        value = flag_value(config.flags, f"--{name}", f"-{short}") or "1"
        each *= int(value) if value.isdecimal() and int(value) else 1
    return each


def slots_of(config: VllmConfig) -> int | None:
    """Returns how many sequences it may run at once; None: its flags leave that to vLLM."""
    said = flag_value(config.flags, "--max-num-seqs") or ""
    return int(said) if said.isdecimal() and int(said) else None


class VllmProgram:
    """`spawn` and `last_words` of a ProcessFleet of vLLMs."""

    def __init__(
        self, config: VllmConfig, replicas: int, folder: Path, environ: Mapping[str, str], here: Sequence[str]
    ) -> None:
        """`replicas`: the most at once. `folder`: the gateway's own, which ends with it. `here`: the devices to share
        out. Raises StartupError, with what to do."""
        found = shutil.which(config.bin)
        if found is None:
            raise StartupError(
                f"no vLLM: there is no command {config.bin!r}; install vLLM, or say where it is with --vllm-bin"
                " (fleet.vllm.bin)"
            )
        self._bin = found
        self._config = config
        self._environ = environ
        self._sets = device_sets(config, here)
        if here and len(self._sets) < replicas:
            each = devices_each(config)
            raise StartupError(
                f"{replicas} vLLM replicas with {each} {'device' if each == 1 else 'devices'} each:"
                f" this machine has {len(here)} ({','.join(here)}); lower --engines (fleet.scale.max)"
            )
        self._cores = () if here or config.devices else _cores_of(replicas)
        self._folder = folder
        self._python = folder / "python"
        _copied(self._python / PACKAGE.name)

    async def spawn(self, flags: Sequence[str], socket: Path, seat: int) -> Process:
        """Starts a vLLM, and a keeper that ends with it."""
        if self._sets and seat >= len(self._sets):
            raise FleetError(f"all {len(self._sets)} sets of devices are in use: lower fleet.scale.max")
        said, metrics = _said(socket), _emptied(socket)
        return await create_subprocess_exec(
            sys.executable, "-I", "-S", keeper.__file__, socket.stem, str(self._folder), str(said),
            self._bin, *self._words(socket), *flags,
            stdin=PIPE,  # by its end the keeper knows that this process has ended
            start_new_session=True,  # Ctrl-C is for the gateway, which then stops vLLM in order
            env=self._environment(metrics, seat),
        )  # fmt: skip

    def last_words(self, socket: Path) -> str:
        try:
            return _said(socket).read_text()
        except (OSError, UnicodeDecodeError):
            return ""

    def _words(self, socket: Path) -> list[str]:
        config = self._config
        words = ["serve", config.model, "--uds", str(socket), "--enable-prompt-tokens-details"]
        if config.scheduler and flag_value(config.flags, "--scheduler-cls") is None:
            words += ["--scheduler-cls", SCHEDULER]
        return words

    def _environment(self, metrics: Path, seat: int) -> dict[str, str]:
        paths = [str(self._python), self._environ.get("PYTHONPATH", "")]
        made = {
            **self._environ,
            "PYTHONPATH": os.pathsep.join(path for path in paths if path),
            METRICS: str(metrics),
            "PYTHONUNBUFFERED": "1",
        }
        if self._sets:
            made[VISIBLE] = self._sets[seat]
        elif self._cores:
            made.setdefault(CORES, self._cores[seat % len(self._cores)])
        return made


def _said(socket: Path) -> Path:
    return socket.with_suffix(".said")


def _emptied(socket: Path) -> Path:
    """Removes what an earlier process left there. Returns an empty folder for the figures of the next."""
    socket.unlink(missing_ok=True)
    _said(socket).unlink(missing_ok=True)
    metrics = socket.with_suffix(".metrics")
    shutil.rmtree(metrics, ignore_errors=True)
    metrics.mkdir()
    return metrics


def _copied(package: Path) -> None:
    """Copies what the scheduler needs. Sources only: what is compiled is for this Python, which vLLM's may not be."""
    for path in (*PACKAGE.glob("*.py"), *(found for one in COPIED for found in (PACKAGE / one).rglob("*.py"))):
        target = package / path.relative_to(PACKAGE)
        target.parent.mkdir(parents=True, exist_ok=True)
        shutil.copyfile(path, target)


def _cores_of(replicas: int) -> tuple[str, ...]:
    """Returns the cores of each replica, for vLLM's CPU build, which would bind the threads of all to the same; empty:
    there is one replica, or there are fewer cores than replicas."""
    cores = sorted(os.sched_getaffinity(0))
    each = len(cores) // replicas
    if replicas == 1 or not each:
        return ()
    return tuple(",".join(map(str, cores[first : first + each])) for first in range(0, each * replicas, each))
