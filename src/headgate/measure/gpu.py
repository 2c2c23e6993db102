"""Reads how busy this machine's GPUs are, from NVML. Without NVML or a GPU the figures are absent, not zero."""

import contextlib
import importlib
import logging
from dataclasses import dataclass
from typing import Any

log = logging.getLogger(__name__)


@dataclass(frozen=True, slots=True)
class Gpu:
    name: str
    """The GPU's number on this machine."""
    utilisation: float | None
    """Share of NVML's last sample period in which the GPU was computing; None: not reported, as for a MIG slice."""
    memory_used: int
    """Bytes."""
    memory_total: int


class Gpus:
    def __init__(self, nvml: Any) -> None:
        """`nvml`: the module pynvml, initialised. Raises its NVMLError."""
        self._nvml = nvml
        self._handles = [nvml.nvmlDeviceGetHandleByIndex(place) for place in range(nvml.nvmlDeviceGetCount())]

    def __len__(self) -> int:
        return len(self._handles)

    def read(self) -> list[Gpu]:
        """Reads every GPU; one that can't be read right now is left out."""
        found = []
        for place, handle in enumerate(self._handles):
            with contextlib.suppress(self._nvml.NVMLError):
                memory = self._memory(handle)
                found.append(Gpu(str(place), self._utilisation(handle), int(memory.used), int(memory.total)))
        return found

    def _memory(self, handle: Any) -> Any:
        """Memory in use as nvidia-smi shows it, without the driver's own; older drivers include that."""
        try:
            return self._nvml.nvmlDeviceGetMemoryInfo(handle, version=self._nvml.nvmlMemory_v2)
        except (AttributeError, self._nvml.NVMLError):
            return self._nvml.nvmlDeviceGetMemoryInfo(handle)

    def _utilisation(self, handle: Any) -> float | None:
        try:
            return float(self._nvml.nvmlDeviceGetUtilizationRates(handle).gpu) / 100
        except self._nvml.NVMLError:
            return None


def find_gpus() -> Gpus | None:
    """Finds this machine's GPUs; None: there is no NVML (pip install nvidia-ml-py), or no GPU. Slow: call it before
    serving."""
    try:
        nvml = importlib.import_module("pynvml")
    except ImportError:
        return None
    try:
        nvml.nvmlInit()
        gpus = Gpus(nvml)
    except nvml.NVMLError as error:
        log.debug("no GPU figures: %s", error)
        return None
    return gpus if len(gpus) else None
