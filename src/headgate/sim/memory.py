"""Accounts for a replica's KV memory at the gateway's level: the tokens that its requests will need, and the beginnings
of prompts that it has cached.

Where the machine's memory is paged, what several requests share is held once, as in `policy/batching/paged.py`: there a
block has 16 tokens, here as many as an id of `Arrival.prefix` stands for. What no request uses any more stays cached,
on the device while there is room and then on the host. The blocks used longest ago go first, and of a prompt its end
before its beginning.
"""

from collections import OrderedDict

from headgate.machine.profile import Profile
from headgate.workload.arrival import BLOCK_TOKENS, Arrival

Block = tuple[int, int]
"""Place in the prompt, and id. What one request has alone is at place −1, with the request's number."""


class ReplicaMemory:
    __slots__ = ("_device", "_held", "_host", "_host_tokens", "_idle", "_known", "_on_host", "_paged", "_unit", "taken")

    def __init__(self, profile: Profile) -> None:
        self._paged = profile.paged
        self._device = profile.kv_tokens
        self._host_tokens = profile.host_tokens
        self._unit = profile.block_tokens
        self.taken = 0
        """Tokens that the admitted requests will need in the end."""
        self._held: dict[Block, list[int]] = {}
        """For each block of an admitted request: requests that use it, and its tokens."""
        self._known: OrderedDict[Block, int] = OrderedDict()
        """Tokens that the device has of each block, the least recently used first."""
        self._idle = 0
        """Tokens of these blocks that no request uses."""
        self._host: OrderedDict[Block, int] = OrderedDict()
        """Tokens that the host has of each block that had to leave the device, the least recently used first."""
        self._on_host = 0
        """Tokens of the blocks on the host."""

    @property
    def cached(self) -> int:
        """Tokens of all blocks that are computed, wherever they are."""
        return sum(self._known.values()) + self._on_host

    def needs(self, arrival: Arrival, output: int, choices: int) -> int:
        """Returns the tokens by which a request would raise those taken."""
        left = arrival.prompt_tokens
        if not self._paged:
            return choices * (left + output)
        needed, held = left + choices * output, self._held
        if held:
            for block in enumerate(arrival.prefix):
                if left <= 0:
                    break
                found = held.get(block)
                if found is not None:
                    needed -= min(found[1], left)
                left -= BLOCK_TOKENS
        return needed

    def hold(self, arrival: Arrival, output: int, choices: int) -> None:
        """Takes the memory of a request that is admitted."""
        self.taken += self.needs(arrival, output, choices)
        left, held = arrival.prompt_tokens, self._held
        for block in enumerate(arrival.prefix):
            if left <= 0:
                break
            size = left if left < BLOCK_TOKENS else BLOCK_TOKENS
            found = held.get(block)
            if found is None:
                held[block] = [1, size]
                self._idle -= self._known.get(block, 0)
            else:
                found[0] += 1
                found[1] = max(found[1], size)
            left -= BLOCK_TOKENS
        self._make_room()

    def release(self, arrival: Arrival, number: int, output: int, choices: int, said: int) -> None:
        """Frees the memory of a request. `number` names what it has alone; `said`: tokens of each answer so far."""
        prompt, held, known = arrival.prompt_tokens, self._held, self._known
        blocks = list(enumerate(arrival.prefix[: -(-prompt // BLOCK_TOKENS)]))
        if self._paged:
            self.taken -= prompt + choices * output - min(prompt, len(blocks) * BLOCK_TOKENS)
        else:
            self.taken -= choices * (prompt + output)
        if known or blocks:
            named = prompt + said if arrival.turn else prompt
            self._keep((-1, number), prompt + choices * said - min(named, len(arrival.prefix) * BLOCK_TOKENS))
        # The end of a prompt first, so that it is evicted before the beginning.
        for block in reversed(blocks):
            found = held[block]
            found[0] -= 1
            if not found[0]:
                del held[block]
                if self._paged:
                    self.taken -= found[1]
                self._idle += known.get(block, 0)
            if block in known:
                known.move_to_end(block)
        self._make_room()

    def find(self, arrival: Arrival) -> tuple[int, int]:
        """Returns the tokens of a prompt that are computed, and how many of these have to be loaded from the host. They
        are never all, since the last must be computed to know what comes next."""
        known, host, found, loaded = self._known, self._host, 0, 0
        for block in enumerate(arrival.prefix):
            tokens = known.get(block, 0)
            if not tokens and block in host:
                tokens = host[block]
                host.move_to_end(block)
                self._keep(block, tokens)
                loaded += tokens
            found += tokens
            if tokens < BLOCK_TOKENS:
                break
        if loaded:
            self._make_room()
        return min(found, arrival.prompt_tokens - 1) // self._unit * self._unit, loaded

    def computed(self, arrival: Arrival, tokens: int) -> None:
        """Notes that the first `tokens` of a request are computed, prompt and answer."""
        for block in enumerate(arrival.prefix):
            if tokens <= 0:
                break
            self._keep(block, tokens if tokens < BLOCK_TOKENS else BLOCK_TOKENS)
            tokens -= BLOCK_TOKENS

    def _keep(self, block: Block, tokens: int) -> None:
        before = self._known.get(block, 0)
        if tokens > before:
            self._known[block] = tokens
            if block not in self._held:
                self._idle += tokens - before

    def _make_room(self) -> None:
        """Moves cached blocks to the host, and drops them there, until what is left has room."""
        known, host = self._known, self._host
        while self._idle > max(0, self._device - self.taken):
            block, tokens = known.popitem(last=False)
            if block in self._held:
                known[block] = tokens
                continue
            self._idle -= tokens
            self._on_host += tokens - host.get(block, 0)
            host[block] = tokens
        while self._on_host > self._host_tokens:
            self._on_host -= host.popitem(last=False)[1]
