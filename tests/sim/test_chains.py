import random

from headgate.policy.batching.ledger import extend_chain
from headgate.sim.chains import chain_of
from headgate.workload.arrival import Arrival


def shared(one: list[bytes], other: list[bytes]) -> int:
    same = 0
    while same < min(len(one), len(other)) and one[same] == other[same]:
        same += 1
    return same


def test_a_link_for_each_full_block_and_the_batcher_adds_none() -> None:
    for tokens in (1, 15, 16, 17, 511, 512, 1500):
        chain = chain_of(Arrival(0.0, tokens, 1, prefix=(1, 2)), 7, 16)
        assert len(chain) == tokens // 16
        assert len(set(chain)) == len(chain)
        before = list(chain)
        extend_chain(chain, [0] * tokens, 16, b"")
        assert chain == before


def test_the_answers_links_are_there_and_nobody_elses() -> None:
    one, other = (chain_of(Arrival(0.0, 1024, 1, prefix=(1, 2)), number, 16, 40) for number in (1, 2))
    assert len(one) == (1024 + 40) // 16
    assert shared(one, other) == 64
    part = chain_of(Arrival(0.0, 1000, 1, prefix=(1, 2)), 3, 16, 100)
    assert shared(one, part) == 1000 // 16


def test_prompts_share_as_much_as_their_ids_say() -> None:
    rng = random.Random(1)
    for _ in range(200):
        ids = [rng.randint(-3, 3) for _ in range(4)]
        others = [rng.randint(-3, 3) for _ in range(4)]
        same = next((at for at, (a, b) in enumerate(zip(ids, others, strict=True)) if a != b), 4)
        tokens, fewer = rng.randint(1, 3000), rng.randint(1, 3000)
        mine = chain_of(Arrival(0.0, tokens, 1, prefix=tuple(ids)), 1, 16)
        other = chain_of(Arrival(0.0, fewer, 1, prefix=tuple(others)), 2, 16)
        assert shared(mine, other) == min(same * 512 // 16, tokens // 16, fewer // 16)


def test_what_goes_beyond_the_prefix_is_nobody_elses() -> None:
    one, other = (chain_of(Arrival(0.0, 1000, 1), number, 16) for number in (1, 2))
    assert not set(one) & set(other)
