"""The Triton kernels compute what plain PyTorch does. Without a GPU, Triton's interpreter runs them."""

import os
from pathlib import Path
from typing import Any

import pytest

torch = pytest.importorskip("torch", reason="no PyTorch: pip install torch")
ON = "cuda" if torch.cuda.is_available() else "cpu"
if ON == "cpu":
    os.environ["TRITON_INTERPRET"] = "1"  # read when the kernels are made
pytest.importorskip("triton", reason="no Triton: pip install triton")

from headgate.engine.torch.cache import Cache  # noqa: E402
from headgate.engine.torch.fused import FusedOperations  # noqa: E402
from headgate.engine.torch.pages import PageLedger  # noqa: E402
from headgate.engine.torch.plain import PlainOperations  # noqa: E402
from headgate.engine.torch.shape import ModelShape, read_shape  # noqa: E402
from headgate.engine.torch.weights import read_weights  # noqa: E402
from headgate.engine.torch.work import Laid, Size, work_in  # noqa: E402
from tests.engine.torch.tiny import folder  # noqa: E402

pytestmark = pytest.mark.timeout(60)


class Both:
    """The same cache under both kinds of operations, with what the kernels are given."""

    def __init__(self, shape: ModelShape, at: Path) -> None:
        device = torch.device(ON)
        torch.manual_seed(4)
        self.shape = shape
        ledger = PageLedger(slots=4, slot_tokens=256, blocks=64)
        weights = read_weights(at, shape, device, torch.float32)
        self.cache = Cache(shape, ledger, device, torch.float32)
        self.cache.keys.normal_()
        self.cache.values.normal_()
        self.cache.tables[:4] = torch.randperm(64)[: 4 * 16].reshape(4, 16).repeat(1, 2)[:, :18] + 1
        self.plain = PlainOperations(shape, weights, self.cache)
        self.fused = FusedOperations(shape, weights, self.cache)

    def work(self) -> Laid:
        """Two streams and one row that fills up; a chunk at a prompt's beginning, one within, and an empty tile."""
        size = Size(singles=3, chunked=50, tiles=4, chunks=1)
        work = work_in(torch.zeros(size.numbers, dtype=torch.int32, device=ON), size)
        work.slots[:] = 4
        work.slots[:2] = torch.tensor([0, 1])
        work.positions[:2] = torch.tensor([200, 17])
        work.slots[3:23], work.positions[3:23] = 2, torch.arange(20)
        work.slots[23:53], work.positions[23:53] = 3, torch.arange(77, 107)
        rows = self.fused.tile
        assert rows == 32
        work.tiles[:2] = torch.tensor([[3, 2, 0, 20], [23, 3, 77, 30]])
        return work


@pytest.fixture(scope="module")
def both(tmp_path_factory: pytest.TempPathFactory) -> Both:
    at = folder(tmp_path_factory.mktemp("kernels"))
    return Both(read_shape(at), at)


def close(one: Any, other: Any) -> bool:
    return bool(((one - other).norm() / other.norm()) < (5e-3 if ON == "cuda" else 1e-5))  # tf32 there


def test_norms_and_the_gate(both: Both) -> None:
    x, more, weight = torch.randn(5, 64, device=ON), torch.randn(5, 64, device=ON), torch.randn(64, device=ON)
    assert close(both.fused.norm(x, weight), both.plain.norm(x, weight))
    sums = x.clone(), x.clone()
    assert close(both.fused.add_norm(sums[0], more, weight), both.plain.add_norm(sums[1], more, weight))
    assert close(*sums)
    wide = torch.randn(5, 2 * 1500, device=ON)
    assert close(both.fused.gate(wide), both.plain.gate(wide))


def test_rotated_keys_and_values_are_in_their_pages(both: Both) -> None:
    work = both.work()
    qkv = torch.randn(53, (8 + 2 * 2) * 16, device=ON)
    kept = both.cache.keys.clone(), both.cache.values.clone()
    plain = qkv.clone()
    both.plain.rotate(plain, work, 1)
    after = both.cache.keys.clone(), both.cache.values.clone()
    both.cache.keys.copy_(kept[0])
    both.cache.values.copy_(kept[1])
    both.fused.rotate(qkv, work, 1)
    assert close(qkv[:, : 8 * 16], plain[:, : 8 * 16])
    for mine, theirs, before in zip((both.cache.keys, both.cache.values), after, kept, strict=True):
        assert not torch.equal(theirs, before)
        assert close(mine[:, 1:], theirs[:, 1:])  # page 0 is no one's


def test_attention_of_streams_and_chunks(both: Both) -> None:
    work = both.work()
    qkv = torch.randn(53, (8 + 2 * 2) * 16, device=ON)
    # Where nothing was written for these sequences may be what another one left, or no numbers at all.
    for kept in (both.cache.keys, both.cache.values):
        kept[:, 0] = torch.nan
        for slot, length in ((0, 201), (1, 18), (2, 20), (3, 107)):
            kept[:, both.cache.tables[slot, length // 16].long(), :, length % 16 :] = torch.nan
    mine, theirs = both.fused.attend(qkv, work, 1), both.plain.attend(qkv, work, 1)
    for rows in (slice(0, 2), slice(3, 23), slice(23, 53)):
        assert close(mine[rows], theirs[rows])


def test_draws(both: Both) -> None:
    rows = 12
    logits = 3 * torch.randn(rows, 9000, device=ON)
    logits[11, 40] = torch.nan
    said = torch.tensor(
        [(t, p, k, m) for t in (0.0, 0.8) for p in (1.0, 0.9) for k, m in ((0, 0.0), (50, 0.0), (0, 0.05))]
    )
    temperature, top_p, top_k, min_p = (column.contiguous().to(ON) for column in said.t())
    for chance in (0.0, 0.5, 0.999):
        chances = torch.full((rows,), chance, device=ON)
        mine, theirs = (
            one.draw(logits, temperature, top_p, top_k, min_p, chances).tolist() for one in (both.fused, both.plain)
        )
        assert mine == theirs
        assert mine[11] == -1
    assert both.fused.best_of(logits).tolist() == both.plain.best_of(logits).tolist()
