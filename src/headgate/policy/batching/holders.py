"""Remembers which places hold a block. Nearly always one does, so that one is remembered without a collection around
it."""


class Holders:
    __slots__ = ("_one", "_several")

    def __init__(self) -> None:
        self._one: dict[bytes, int] = {}
        """One place that holds each block."""
        self._several: dict[bytes, dict[int, None]] = {}
        """All places that hold a block, where they are more than one."""

    def __contains__(self, digest: bytes) -> bool:
        return digest in self._one

    def __len__(self) -> int:
        """Blocks held in at least one place."""
        return len(self._one)

    def of(self, digest: bytes) -> list[int]:
        several = self._several.get(digest)
        return [self._one[digest]] if several is None else list(several)

    def only_one(self, digest: bytes) -> bool:
        return digest not in self._several

    def known(self, chain: list[bytes]) -> int:
        """Number of leading blocks of a chain that are held somewhere. A place that holds one block holds all before
        it."""
        one, low, high = self._one, 0, len(chain)
        while low < high:
            middle = (low + high + 1) // 2
            if chain[middle - 1] in one:
                low = middle
            else:
                high = middle - 1
        return low

    def add(self, chain: list[bytes], start: int, place: int) -> None:
        """Notes that this place holds all of the chain from `start` on."""
        one = self._one
        for at in range(start, len(chain)):
            digest = chain[at]
            holder = one.get(digest)
            if holder is None:
                one[digest] = place
            else:
                self._several.setdefault(digest, {holder: None})[place] = None

    def remove(self, chain: list[bytes], start: int, place: int) -> None:
        """Notes that this place no longer holds the chain from `start` on."""
        one, several = self._one, self._several
        for at in range(start, len(chain)):
            digest = chain[at]
            places = several.get(digest) if several else None
            if places is None:
                del one[digest]
                continue
            del places[place]
            one[digest] = next(iter(places))
            if len(places) == 1:
                del several[digest]
