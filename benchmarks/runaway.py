"""Whether the runaway detector ends what has run away, and nothing else, and what it costs.

Ordinary texts (`tests/ordinary/`, made from a seed and shipped with Python) must pass. What has run away is said by the
bundled model itself: greedy, and not allowed to end, a small model soon repeats itself. An answer counts as a loop if
its end is one unit said four times or more (the numbers of a list may count on); it is caught in time if it is ended
before the unit has been said a fifth time, that is within three repetitions.

The rules were chosen by the answers to every second of the first 200 prompts, by those to 400 prompts about other
things, which are not asked here, and by ordinary texts of other seeds. What they do with the rest is told apart: with
every other of the first 200, and with 200 about things that no rule was chosen by. All of them are chats, which are
watched by default; `--prompts 450` adds completions, which are not.

`--answers` names files with answers of other models, as AlpacaEval keeps them (a JSON list of objects with `output`).
How many of those to every second prompt are ended is told, and how many of these went on with something else
afterwards. Most of those had run away all the same, and run on differently.

That can only be asked of units that say something. Of `| | |`, `0, ` or `retrying...` four in a row are nothing: the
ordinary texts have tables of 29 equal rows, and 11 equal lines in a log. Such loops are counted all the same, by kind,
and a further figure says how many are ended within three repetitions or 512 bytes of repetition, whichever is later.
"""

import argparse
import json
import re
import sys
import threading
from collections.abc import Iterator
from dataclasses import asdict, dataclass
from pathlib import Path
from time import process_time
from typing import Any

from rich.console import Console

ROOT = Path(__file__).resolve().parent.parent
sys.path[:0] = [str(ROOT / "src"), str(ROOT)]
from benchmarks.report import CpuTime, Grid, Report, Row, Samples, judge, machine, verdict_grid  # noqa: E402
from tests.ordinary.corpus import ordinary  # noqa: E402

from headgate.gateway.answer.transcript import (  # noqa: E402
    Repeats,
    text_of,
)
from headgate.policy.answers.repeat_kind import (  # noqa: E402
    CIRCLES,
    ITEMS,
    LEAST,
    LINES,
    MEMBERS,
    MIXED,
    PATTERNS,
    PHRASES,
    SENTENCES,
    STAMMER,
    RepeatKind,
    kind_of,
)
from headgate.policy.answers.runaway import KEY, Detector  # noqa: E402

TITLE = "The runaway detector: what it ends, what it leaves alone, what it costs"
RESULTS = ROOT / "benchmarks" / "results" / "runaway.json"
SEEDS = (6, 7, 8)
"""Seeds of ordinary texts, none of which a rule was chosen by. The shipped texts are the same in all."""
MOST_TOKENS, SLOTS, CONTEXT = 480, 8, 1024
AT_A_TIME = 32
"""Prompts between two lines of progress."""
IN_TIME = 3
"""Repetitions."""
OR_BYTES = 512
"""Bytes of repetition: some 130 tokens of prose, more of anything else."""
TOPICS = (
    "the sea|tea|volcanoes|the history of bread|sorting algorithms|a lighthouse|the Roman Empire|photosynthesis|chess|"
    "a lost dog|bicycles|the moon landing|prime numbers|a storm|honey bees|databases|the violin|glaciers|"
    "public libraries|a haunted house"
)
FRESH_TOPICS = (
    "chocolate|rivers|spiders|the history of clocks|encryption|a shipwreck|the Silk Road|electricity|tennis|"
    "a lost child|submarines|the planet Mars|triangles|a drought|penguins|compilers|the drum|deserts at night|"
    "hospitals|a magic mirror"
)
"""Topics that no rule was chosen by."""
ASKED = (
    "Tell me about {}.|Write a short story about {}.|Give me a list of facts about {}.|Explain {} to a child.|"
    "Write a poem about {}.|Write Python code about {}.|What are the advantages and disadvantages of {}?|"
    "Write a table in Markdown about {}.|Write an essay about {} in five paragraphs.|Make a JSON list about {}."
)
BEGUN = ("The {} is", "Once upon a time there was {},", "1. {}\n2.", "def make():\n    # {}\n", "Chapter 1: {}\n\n")
KNOWN = len(TOPICS.split("|")) * len(ASKED.split("|"))
"""Chats about the first topics."""
CHATS = KNOWN + len(FRESH_TOPICS.split("|")) * len(ASKED.split("|"))
KINDS: dict[str, RepeatKind] = {
    "sentences": SENTENCES, "members": MEMBERS, "circles": CIRCLES, "items": ITEMS, "mixed": MIXED, "lines": LINES,
    "phrases": PHRASES, "stammer": STAMMER, "patterns": PATTERNS,
}  # fmt: skip


@dataclass(frozen=True, slots=True)
class Said:
    number: int
    prompt: str
    pieces: list[str]


# -- what the model says ----------------------------------------------------------------------------------------


def prompts() -> list[tuple[bool, str]]:
    """(is a chat, text)"""
    topics = TOPICS.split("|")
    chats = [
        (True, ask.format(topic))
        for some in (topics, FRESH_TOPICS.split("|"))
        for ask in ASKED.split("|")
        for topic in some
    ]
    return chats + [(False, begun.format(topic)) for begun in BEGUN for topic in topics[:10]]


def generate(numbers: list[int], threads: int) -> Iterator[Said]:
    """Greedy, without an end: the same everywhere up to the last bits of the arithmetic."""
    from benchmarks.peers import bundled_model

    from headgate.engine import engine as engines
    from headgate.engine.runner.llama import Model
    from headgate.engine.runner.llama_runner import LlamaRunner
    from headgate.model.clock import monotonic
    from headgate.model.sampling import Sampling
    from headgate.model.sequence import Sequence
    from headgate.policy.compose import batcher_for

    runner = LlamaRunner(Model(bundled_model()), slots=SLOTS, slot_tokens=CONTEXT, threads=threads)
    pieces: dict[int, list[str]] = {number: [] for number in numbers}
    left, done = set(numbers), threading.Event()

    def hear(said: list[engines.SequenceOutput]) -> None:
        for one in said:
            pieces[one.sequence_id] += [one.text] if one.text else []
            if one.finish is not None or one.error is not None:
                left.discard(one.sequence_id)
        if not left:
            done.set()

    batcher = batcher_for(slots=SLOTS, slot_tokens=CONTEXT)
    engine = engines.Engine(runner, runner.tokenizer, batcher, monotonic, hear)
    engine.start()
    for number in numbers:
        chat, text = prompts()[number]
        encode = runner.tokenizer.encode
        tokens = runner.tokenizer.encode_chat([{"role": "user", "content": text}]) if chat else encode(text)
        sequence = Sequence(
            id=number, tokens=tokens, prompt_len=len(tokens), max_output=MOST_TOKENS, arrived=monotonic(), lane="batch",
            priority=3, first_token_by=monotonic() + 300, gap_target_s=1.0,
            sampling=Sampling(temperature=0.0, ignore_eos=True),
        )  # fmt: skip
        engine.submit(engines.EngineRequest(sequence))
    done.wait()
    engine.stop()
    yield from (Said(number, prompts()[number][1], pieces[number]) for number in numbers)


def said(kept: Path | None, threads: int, count: int, say: Console) -> list[Said]:
    """What was said before, and the rest anew."""
    known: dict[int, Said] = {}
    if kept is not None and kept.is_file():
        for line in kept.read_text().splitlines():
            one = Said(**json.loads(line))
            known[one.number] = one
    missing = [number for number in range(count) if number not in known]
    for at in range(0, len(missing), AT_A_TIME):
        new = list(generate(missing[at : at + AT_A_TIME], threads))
        known |= {one.number: one for one in new}
        say.print(f"{len(known)} of {count} answers")
        if kept is not None:
            with kept.open("a") as file:
                file.writelines(json.dumps(asdict(one)) + "\n" for one in new)
    return [known[number] for number in sorted(known)]


# -- what is found ----------------------------------------------------------------------------------------------


def loop(text: str) -> tuple[int, int] | None:
    """Period, and where the first unit begins, if the end is one unit said four times or more."""
    key, end = text[-40:], len(text)
    at = text.rfind(key, 0, end - 1)
    while at >= 0:
        period, same = end - len(key) - at, 0
        while same < end - period and text[end - 1 - same] == text[end - 1 - same - period]:
            same += 1
        if same >= IN_TIME * period:
            return period, end - same - period
        at = text.rfind(key, 0, at + len(key) - 1)
    return None


HEAD = '{"id":"chatcmpl-1","object":"chat.completion.chunk","created":1,"model":"m","choices":[{"index":0,"delta":'


def event_of(piece: str) -> bytes:
    return f'{HEAD}{{"content":{json.dumps(piece)}}},"finish_reason":null}}]}}'.encode()


def ended_at(pieces: list[str]) -> int | None:
    """How many pieces it takes as the gateway hears them, each an event; None: it is never ended."""
    repeats = Repeats(Detector())
    return next((count for count, piece in enumerate(pieces, 1) if repeats.hear([event_of(piece)])), None)


def alike(text: str) -> str:
    """With the numbers of lists all the same."""
    return re.sub(r"(?<=\n)([ *#-]*)(\d+)(?=[.)])", lambda found: found[1] + "0" * len(found[2]), text)


def judge_loops(answers: list[Said], samples: Samples) -> list[dict[str, Any]]:
    found = []
    for answer in answers:
        text = "".join(answer.pieces)
        taken = ended_at(answer.pieces)
        ended = None if taken is None else len("".join(answer.pieces[:taken]))
        if (looped := loop(alike(text))) is None:
            continue
        period, start = looped
        kind = next(name for name, kind in KINDS.items() if kind is kind_of(text[-period:]))
        repeated = None if ended is None else (ended - start - period) / period
        in_time = repeated is not None and repeated <= IN_TIME
        soon = ended is not None and ended - start - period <= max(IN_TIME * period, OR_BYTES)
        figures: dict[str, float] = {"in_time": in_time, "soon": soon, "caught": ended is not None, "period": period}
        if ended is not None:
            figures["repetitions"] = max(0.0, repeated or 0.0)
        fresh = answer.number >= KNOWN
        for part in ("fresh",) if fresh else ("known", "odd") if answer.number % 2 else ("known",):
            for name, value in figures.items():
                samples.setdefault(f"{part}.{kind}.{name}", []).append(float(value))
                samples.setdefault(f"{part}.all.{name}", []).append(float(value))
        unit = text[start : start + min(period, 120)]
        facts = {
            "number": answer.number,
            "prompt": answer.prompt,
            "kind": kind,
            "period": period,
            "start": start,
            "ended": ended,
        }
        found.append({**facts, "in_time": in_time, "said": len(text), "unit": unit, "form": form_of(text[-period:])})
    return found


def form_of(unit: str) -> str:
    """What a unit looks like, for those that are not ended in time."""
    lines = [line.strip() for line in (unit + unit).split("\n")[1:-1]]
    if len(unit.encode()) < KEY:
        return f"anything of fewer than {KEY} bytes"
    if any(line.startswith("|") for line in lines) or unit.count("|") > 1:
        return "rows of a table"
    if re.search(r"[][{}=_<>;]|\\|\w\(|```|import |\",", unit):
        return "code and data"
    if lines and all(re.match(r"[-*•#]|\d+[.)]", line) for line in lines if line):
        return "items and headings"
    return "lines of text" if lines else "words in a line"


def missed_rows(loops: list[dict[str, Any]]) -> tuple[tuple[str, ...], ...]:
    missed = [found for found in loops if not found["in_time"]]
    rows = []
    for form in sorted({found["form"] for found in missed}):
        some = [found for found in missed if found["form"] == form]
        shown = sorted(some, key=lambda found: int(found["period"]))[len(some) // 2]["unit"]
        counts = [sum(found["number"] >= KNOWN for found in some)]
        rows.append(
            (form, str(len(some) - counts[0]), str(counts[0]), f"`{json.dumps(shown[:60], ensure_ascii=False)}`")
        )
    return tuple((form, known, fresh, shown.replace("|", "¦")) for form, known, fresh, shown in rows)


def judge_answers(paths: list[Path], samples: Samples) -> None:
    """What is ended of other models' answers to every second prompt: the rules were chosen by those to the others. One
    that still repeats where it ends has run away; what others have said afterwards is lost."""
    texts = {one["output"] for path in paths for one in json.loads(path.read_text())[1::2] if one["output"]}
    ended, lost = 0, 0
    for text in texts:
        data, detector = text.encode(), Detector()
        at = next((at + 4 for at in range(0, len(data), 4) if detector.hear(data[at : at + 4])), None)
        if at is not None:
            same = 0
            while at + same < len(data) and data[at + same] == data[at + same - detector.period]:
                same += 1
            ended, lost = ended + 1, lost + (len(data) - at - same > detector.period)
    samples["answers"], samples["answers.ended"] = [float(len(texts))], [ended / max(1, len(texts))]
    samples["answers.went_on"] = [lost / max(1, len(texts))]


def judge_alike(least: int) -> float:
    """The share of ordinary texts that would be ended if everything that repeats were judged like a sentence, with
    at least this number of bytes of repetition."""
    before = {kind: (kind.times, kind.least) for kind in KINDS.values()}
    alike = Samples()
    try:
        for kind in before:
            kind.times, kind.least = SENTENCES.times, max(LEAST, least)
        judge_ordinary(alike)
    finally:
        for kind, (times, bytes_) in before.items():
            kind.times, kind.least = times, bytes_
    return alike["ordinary.false_share"][0]


def judge_ordinary(samples: Samples) -> list[str]:
    """Those that were ended, by kind and number."""
    ended, count = [], 0
    for seed in SEEDS:
        for text in ordinary(seed):
            if seed != SEEDS[0] and text.kind in ("manual", "source"):
                continue
            count += 1
            if ended_at([text.text[at : at + 4] for at in range(0, len(text.text), 4)]) is not None:
                ended.append(f"{text.kind} {text.number}, seed {seed}")
    samples["ordinary.texts"], samples["ordinary.false_share"] = [float(count)], [len(ended) / count]
    return ended


def cost_us(events: list[bytes], watched: bool) -> float:
    """Per token: of finding the text of an event, and of watching it as the gateway does."""
    repeats, began = Repeats(Detector()), process_time()
    for event in events:
        if watched:
            repeats.hear([event])
        else:
            text_of(event)
    return (process_time() - began) / len(events) * 1e6


def measure_cost(samples: Samples) -> None:
    for name, kinds in (("prose", {"essay", "email", "recipe"}), ("tables", {"varied_table", "records", "csv"})):
        words = [piece for text in ordinary() if text.kind in kinds for piece in re.findall(r"\s*\S{1,5}", text.text)]
        events = [event_of(word) for word in words]
        for _ in range(5):
            samples.setdefault(f"{name}.read_us", []).append(cost_us(events, False))
            samples.setdefault(f"{name}.watched_us", []).append(cost_us(events, True))


# -- the run ------------------------------------------------------------------------------------------------------


def main() -> int:
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0] if __doc__ else None)
    parser.add_argument(
        "--said", type=Path, help="keep there what the model says, and take from there what it has said"
    )
    parser.add_argument("--prompts", type=int, default=CHATS, help="ask the first so many; 0: only what --said has")
    parser.add_argument("--answers", type=Path, nargs="*", default=[], help="JSON files with answers of other models")
    parser.add_argument("--threads", type=int, default=2)
    parser.add_argument("--out", type=Path, help="where to keep the result; else results/runaway.json")
    args = parser.parse_args()
    console, samples, before = Console(highlight=False), Samples(), CpuTime.now()
    measure_cost(samples)
    false = judge_ordinary(samples)
    samples["ordinary.if_alike"] = [judge_alike(LEAST)]
    samples["ordinary.if_alike_long"] = [judge_alike(OR_BYTES)]
    answers = said(args.said, args.threads, args.prompts, console)
    loops = judge_loops(answers, samples)
    for part, kind in ((part, kind) for part in ("known", "odd", "fresh") for kind in ("sentences", "all")):
        for figure in ("in_time", "soon"):
            values = samples.get(f"{part}.{kind}.{figure}", [])
            samples[f"{part}.{kind}.{figure}_share"] = [sum(values) / max(1, len(values))]
        samples[f"{part}.{kind}.loops"] = [float(len(samples.get(f"{part}.{kind}.in_time", [])))]
    rows = [
        Row("ordinary texts", "ordinary.texts", None, "≥", 2000),
        Row("of them ended, share", "ordinary.false_share", None, "≤", 0.001, 0.0),
        Row("would be, if all that repeats were judged like a sentence", "ordinary.if_alike", None, "≤", None),
        Row(f"would be, if that took {OR_BYTES} bytes at least", "ordinary.if_alike_long", None, "≤", None),
        Row("loops of sentences", "known.sentences.loops", None, "≥", 100),
        Row("of them ended within three repetitions, share", "known.sentences.in_time_share", None, "≥", 0.95),
        Row("of those that the rules were not chosen by, share", "odd.sentences.in_time_share", None, "≥", None),
        Row("loops of any kind", "known.all.loops", None, "≥", 100),
        Row("of them ended within three repetitions, share", "known.all.in_time_share", None, "≥", 0.75),
        Row("of those that the rules were not chosen by, share", "odd.all.in_time_share", None, "≥", None),
        Row(f"of all within three repetitions or {OR_BYTES} bytes, share", "known.all.soon_share", None, "≥", None),
        Row("about other things: loops of sentences", "fresh.sentences.loops", None, "≥", None),
        Row("of them ended within three repetitions, share", "fresh.sentences.in_time_share", None, "≥", 0.95),
        Row("about other things: loops of any kind", "fresh.all.loops", None, "≥", None),
        Row("of them ended within three repetitions, share", "fresh.all.in_time_share", None, "≥", 0.75),
    ]
    if args.answers:
        judge_answers(args.answers, samples)
        rows += [
            Row("answers of other models, to prompts that no rule was chosen by", "answers", None, "≥", None),
            Row("of them ended, share", "answers.ended", None, "≤", None),
            Row("of them ended that went on with something else, share", "answers.went_on", None, "≤", 0.001),
        ]
    verdicts = [judge(row, samples) for row in rows]
    grid = Grid(
        (
            "what repeats",
            "loops",
            "ended",
            "within 3 repetitions",
            f"or {OR_BYTES} bytes",
            "median period",
            "median repetitions until ended",
        ),
        tuple(loop_row(part, name, samples) for part in ("known", "fresh") for name in KINDS),
    )
    missed = Grid(("not within 3 repetitions", "loops", "about other things", "such as"), missed_rows(loops))
    costs = Grid(
        ("text", "finding it in an event, µs", "and watching it, µs"),
        tuple(
            (name, f"{min(samples[f'{name}.read_us']):.2f}", f"{min(samples[f'{name}.watched_us']):.2f}")
            for name in ("prose", "tables")
        ),
    )
    console.print(grid.table("Loops the model made"), missed.table("Missed"), costs.table("Per token, interpreted"))
    console.print(verdict_grid(verdicts).table("Enough?"))
    console.print(*false, sep="\n")
    facts = {
        **machine(),
        "prompts": str(len(answers)),
        "tokens each": str(MOST_TOKENS),
        "others' share of the CPU time spent": f"{before.others_of_busy(CpuTime.now()):.0%}",
    }
    out: Path | None = args.out or (RESULTS if args.prompts == CHATS else None)
    if out is not None:
        Report(TITLE, "benchmarks/runaway.py", facts, verdicts, samples, (grid, missed, costs)).keep(out)
        out.with_suffix(".loops.json").write_text(json.dumps(loops, indent=1) + "\n")
        console.print(f"wrote {out}")
    return 0 if all(verdict.passed is not False for verdict in verdicts) else 1


def loop_row(part: str, kind: str, samples: Samples) -> tuple[str, ...]:
    name, label = f"{part}.{kind}", kind if part == "known" else f"{kind}, about other things"
    count = len(samples.get(f"{name}.in_time", []))
    if not count:
        return (label, "0", "", "", "", "", "")

    def share(what: str) -> str:
        return f"{sum(samples[f'{name}.{what}']) / count:.0%}"

    def median(what: str) -> str:
        values = sorted(samples.get(f"{name}.{what}", []))
        return f"{values[len(values) // 2]:.1f}" if values else "–"

    shares = (share("caught"), share("in_time"), share("soon"))
    return (label, str(count), *shares, median("period"), median("repetitions"))


if __name__ == "__main__":
    sys.exit(main())
