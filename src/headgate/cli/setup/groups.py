"""Names the groups under which `--help` lists commands and options, in the order in which it lists them."""

from cyclopts import Group

RUN = Group("Run", sort_key=0)
LOOK = Group("See what it does", sort_key=1)
OPERATE = Group("Operate", sort_key=2)
MEASURE = Group("Measure", sort_key=3)
DECIDE = Group("Decide", sort_key=4)
FIT_IN = Group("Fit in with other tools", sort_key=5)

MORE = Group("More", sort_key=9)

FIRST = Group("Start with these", sort_key=0)
SERVES = Group("What it serves", sort_key=1)
LISTEN = Group("Where it listens", sort_key=2)
LOGS = Group("What it logs", sort_key=3)
EMULATION = Group("Emulation and measurement", sort_key=7)


def engine_group(name: str) -> Group:
    """The group of flags that are made of EngineConfig's fields."""
    return Group(name, sort_key={"Model": 4, "Memory": 5, "Batching": 6}[name])
