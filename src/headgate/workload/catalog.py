"""Names workloads that people compare servers by, each with the targets that make an answer good.

Lengths, turns, pauses and targets of chat, code, reasoning, agents and batch are those of inference-perf's workload
catalog (commit 7de5ef2), as ranges with the same means.
"""

from dataclasses import dataclass


@dataclass(frozen=True, slots=True)
class CatalogEntry:
    load: str
    goodput: tuple[str, ...]
    """Targets of each answer, as in `--goodput`."""
    about: str
    """What it is, in a line."""


CATALOG = {
    "interactive-chat": CatalogEntry(
        "agents:rate=0.5,turns=1-7,prompt=1500-8500,new=10-90,output=150-450,think=5-85",
        ("ttft:1000", "tpot:50"),
        "people's chats of some turns, 5 000 tokens of context, all streamed",
    ),
    "code-generation": CatalogEntry(
        "agents:rate=0.05,turns=20-40,prompt=10000-60000,new=100-2900,output=50-800,think=1-29,max_prompt=120000",
        ("ttft:30000", "tpot:100"),
        "coding assistants with up to 120 000 tokens of repository and history, all streamed",
    ),
    "reasoning": CatalogEntry(
        "poisson:rate=0.5,prompt=250-2250,output=500-15500,unstreamed=0.2",
        ("ttft:2000", "tpot:100"),
        "short questions and thousands of tokens of thought; every fifth answer is not streamed",
    ),
    "agent": CatalogEntry(
        "agents:rate=0.2,turns=2-42,prompt=4000-20000,new=500-3500,output=100-1200,think=1-25,max_prompt=100000,"
        "unstreamed=0.5",
        ("ttft:2000", "tpot:100"),
        "agents that call tools between turns; half of the sessions are not streamed",
    ),
    "shared-prefix": CatalogEntry(
        "poisson:rate=30,prefixes=150,shared=6144,prompt=7200,output=100",
        ("ttft:2000",),
        "150 beginnings of 6 144 tokens, without a session that tells them apart, all streamed",
    ),
    "batch": CatalogEntry(
        "poisson:rate=1,prompt=1000-29000,output=50-950,lane=batch,unstreamed=1",
        ("e2e:630000",),
        "summaries of long documents in lane batch, for which no client waits; none is streamed",
    ),
}


def listed() -> str:
    return "; ".join(f"catalog:{name} ({entry.about})" for name, entry in CATALOG.items())
