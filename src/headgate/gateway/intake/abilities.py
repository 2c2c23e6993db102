"""Tells which replicas have /v1/embeddings and /v1/responses, by their engine's dialect (replica/dialects.py), and how
they continue a chat.

Paths are asked about for those two only: every replica serves chats and text completions.
"""

from collections.abc import Callable, Collection, Iterable
from typing import Final

from headgate.model.dialect import DIALECTS, OPENAI_RANGES, Continue, Dialect, Ranges
from headgate.model.errors import NotOffered
from headgate.model.replica import Replica, ReplicaId
from headgate.replica.dialects import dialect_of

CHAT: Final = "/v1/chat/completions"
COMPLETIONS: Final = "/v1/completions"
EMBEDDINGS: Final = "/v1/embeddings"
RESPONSES: Final = "/v1/responses"
COUNT: Final = "/v1/messages/count_tokens"
QUOTE: Final = "/v1/quote"


class Abilities:
    def __init__(self, replicas: Callable[[], Iterable[Replica]]) -> None:
        """`replicas` returns a copy of the replicas that the dispatcher routes to, discovered names included. Any
        thread may call it, because long bodies are parsed in the parsing thread."""
        self._replicas = replicas

    def all_respond(self, models: Collection[str]) -> bool:
        """Whether all replicas of these models are known to have /v1/responses; False while there is no replica."""
        serving = self._serving(models)
        return bool(serving) and all(dialect_of(replica).responses is True for replica in serving)

    def unfit(self, path: str, model: str) -> frozenset[ReplicaId]:
        """Replicas of this model that do not have `path`. Raises NotOffered if all of them lack it, but not while the
        model has no replica: one may still join."""
        serving = self._serving((model,))
        unfit = frozenset(replica.id for replica in serving if not _has(dialect_of(replica), path))
        if serving and len(unfit) == len(serving):
            kinds = ", ".join(sorted({dialect_of(replica).name for replica in serving}))
            able = ", ".join(dialect.name for dialect in DIALECTS.values() if _has(dialect, path))
            raise NotOffered(
                f"no replica of model {model[:256]!r} has {path}: they are {kinds}. "
                f"Add a replica with a model for it behind one of: {able}",
                param="model",
            )
        return unfit

    def continuing(self, models: Collection[str]) -> Continue | None:
        """How all replicas of these models continue a chat whose last message is the assistant's. None: not all can,
        they differ, or there is no replica."""
        found = {dialect_of(replica).chat_continued for replica in self._serving(models)}
        return found.pop() if len(found) == 1 else None

    def ranges(self, models: Collection[str]) -> Ranges:
        """Parameter ranges that all replicas of these models accept; OpenAI's ranges while there is no replica."""
        found = [dialect_of(replica).ranges for replica in self._serving(models)]
        if not found:
            return OPENAI_RANGES
        return Ranges(
            temperature=min(one.temperature for one in found),
            n=min(one.n for one in found),
            stops=min(one.stops for one in found),
            text_logprobs=min(one.text_logprobs for one in found),
            tools=min(one.tools for one in found),
        )

    def _serving(self, models: Collection[str]) -> list[Replica]:
        return [one for one in self._replicas() if not one.names or any(model in one.names for model in models)]


def _has(dialect: Dialect, path: str) -> bool:
    """Whether a dialect has the path. A server of unknown kind (`openai`) is assumed to have /v1/responses."""
    return dialect.embeddings if path == EMBEDDINGS else dialect.responses is not False
