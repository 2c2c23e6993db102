import sys
from types import SimpleNamespace
from typing import Any

import pytest

from headgate.measure.gpu import Gpu, Gpus, find_gpus


class NVMLError(Exception):
    pass


class Nvml:
    """The few calls of pynvml that are made, with two GPUs, the second of which is a slice of one."""

    NVMLError = NVMLError
    nvmlMemory_v2 = 2
    old = False

    def __init__(self, count: int = 2) -> None:
        self.count = count
        self.lost: set[int] = set()

    def nvmlInit(self) -> None:
        if self.count < 0:
            raise NVMLError("Driver Not Loaded")

    def nvmlDeviceGetCount(self) -> int:
        return self.count

    def nvmlDeviceGetHandleByIndex(self, place: int) -> int:
        return place

    def nvmlDeviceGetMemoryInfo(self, handle: int, version: int = 1) -> Any:
        if handle in self.lost:
            raise NVMLError("GPU is lost")
        if version > self.nvmlMemory_v2 - self.old:
            raise NVMLError("Function Not Found")
        return SimpleNamespace(used=1000 * (handle + 1) + (500 if version == 1 else 0), total=9000)

    def nvmlDeviceGetUtilizationRates(self, handle: int) -> Any:
        if handle == 1:
            raise NVMLError("Not Supported")
        return SimpleNamespace(gpu=40)


def test_gpus_are_read() -> None:
    assert Gpus(Nvml()).read() == [Gpu("0", 0.4, 1000, 9000), Gpu("1", None, 2000, 9000)]


def test_an_old_driver_counts_its_own_memory_too() -> None:
    nvml = Nvml(1)
    nvml.old = True
    assert Gpus(nvml).read() == [Gpu("0", 0.4, 1500, 9000)]


def test_a_gpu_that_is_lost_is_left_out_and_the_others_are_read() -> None:
    nvml = Nvml()
    gpus = Gpus(nvml)
    nvml.lost = {0}
    assert [one.name for one in gpus.read()] == ["1"]


@pytest.mark.parametrize("count", [-1, 0])
def test_without_a_driver_or_a_gpu_there_are_none(count: int, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setitem(sys.modules, "pynvml", Nvml(count))
    assert find_gpus() is None


def test_without_the_library_there_are_none(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setitem(sys.modules, "pynvml", None)
    assert find_gpus() is None


def test_a_real_gpu_says_what_it_has() -> None:
    gpus = find_gpus()
    if gpus is None:
        pytest.skip("no NVIDIA GPU here, or no NVML: pip install nvidia-ml-py")
    for one in gpus.read():
        assert 0 <= one.memory_used <= one.memory_total > 0
        assert one.utilisation is None or 0 <= one.utilisation <= 1
