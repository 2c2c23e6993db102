"""Clients as people use them, unmodified, in environments of their own. `make test-clients` tries more of them."""

from collections.abc import Iterator

import pytest

from tests.clients.catalog import CLIENTS, IN_CI
from tests.clients.running import Served, run, scripted, small

pytestmark = pytest.mark.timeout(300)


@pytest.fixture(scope="module")
def capable(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Served]:
    with scripted(tmp_path_factory.mktemp("scripted")) as served:
        yield served


@pytest.fixture(scope="module")
def embedded(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Served]:
    with small(tmp_path_factory.mktemp("small")) as served:
        yield served


@pytest.mark.parametrize(
    ("engine", "name"),
    [*(("capable", name) for name in IN_CI), ("embedded", "openai"), ("embedded", "anthropic")],
)
def test_a_client_works_unmodified(engine: str, name: str, request: pytest.FixtureRequest) -> None:
    client = CLIENTS[name]
    if not client.is_installed:
        pytest.skip(f"the client {name} is not installed (make clients)")
    done = run(client, request.getfixturevalue(engine))
    assert done.returncode == 0, done.stdout + done.stderr[-3000:]
    assert "\nok " in f"\n{done.stdout}"
