"""What caps, stops and runaway detection save of the decode, on real text.

Two kinds of it. Answers of the bundled model itself, which may end by itself and say 1 000 tokens at most: what a plain
chat would get without any protection, once greedy and once sampled as clients do (temperature 0.7). Each is looked at
as the gateway would see it, an event for each token, and cut where a cap, a stop sequence or the detector cuts it. And
the lengths of other models' answers to people (`--lengths`: a CSV with a column of output tokens, as ShareGPT's or
Azure's): what a cap would have cut of those.

A cap also cuts answers that were good, that is, would have ended by themselves: how many is said beside what it saves.
"""

import argparse
import csv
import gzip
import json
import sys
import threading
from collections.abc import Iterator
from dataclasses import asdict, dataclass
from pathlib import Path

from rich.console import Console

ROOT = Path(__file__).resolve().parent.parent
sys.path[:0] = [str(ROOT / "src"), str(ROOT)]
from benchmarks.report import CpuTime, Grid, Report, Row, Samples, judge, machine, verdict_grid  # noqa: E402
from benchmarks.runaway import ASKED, TOPICS  # noqa: E402

from headgate.config.output import TASKS  # noqa: E402
from headgate.gateway.answer.transcript import Repeats  # noqa: E402
from headgate.policy.answers.runaway import Detector  # noqa: E402

TITLE = "What caps, stops and runaway detection save of the decode"
RESULTS = ROOT / "benchmarks" / "results" / "saved.json"
MOST_TOKENS, SLOTS, CONTEXT = 1000, 8, 1280
AT_A_TIME = 8
"""Prompts between two lines of progress."""
LABELS = (
    "Is this review positive or negative? Answer with one word: '{}'|Which language is this written in? '{}'|"
    "Classify as question, order or statement: '{}'"
)
REVIEWS = (
    "I loved every minute of it.|The food was cold and the waiter rude.|Close the door, please.|Where is the station?|"
    "Das Wetter ist heute schön."
)


@dataclass(frozen=True, slots=True)
class Said:
    number: int
    task: str
    greedy: bool
    prompt: str
    pieces: list[str]
    finish: str


def prompts() -> list[tuple[str, bool, str]]:
    """(task, greedy, text)"""
    chats = [ask.format(topic) for topic in TOPICS.split("|")[:3] for ask in ASKED.split("|")]
    labels = [ask.format(review) for ask in LABELS.split("|") for review in REVIEWS.split("|")]
    asked = [("classify", text) for text in labels] + [("chat", text) for text in chats]
    return [(task, greedy, text) for task, text in asked for greedy in (True, False)]


def generate(numbers: list[int], threads: int) -> Iterator[Said]:
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
    ended: dict[int, str] = {}
    done = threading.Event()

    def hear(said: list[engines.SequenceOutput]) -> None:
        for one in said:
            pieces[one.sequence_id] += [one.text] if one.text else []
            if one.finish is not None or one.error is not None:
                ended[one.sequence_id] = "" if one.finish is None else one.finish.value
        if len(ended) == len(numbers):
            done.set()

    engine = engines.Engine(runner, runner.tokenizer, batcher_for(slots=SLOTS, slot_tokens=CONTEXT), monotonic, hear)
    engine.start()
    asked = prompts()
    for number in numbers:
        _, greedy, text = asked[number]
        tokens = runner.tokenizer.encode_chat([{"role": "user", "content": text}])
        sequence = Sequence(
            id=number, tokens=tokens, prompt_len=len(tokens), max_output=MOST_TOKENS, arrived=monotonic(), lane="batch",
            priority=3, first_token_by=monotonic() + 900, gap_target_s=1.0,
            sampling=Sampling(temperature=0.0 if greedy else 0.7, seed=number),
        )  # fmt: skip
        engine.submit(engines.EngineRequest(sequence))
    done.wait()
    engine.stop()
    for number in numbers:
        task, greedy, text = asked[number]
        yield Said(number, task, greedy, text, pieces[number], ended[number])


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


# -- what is cut --------------------------------------------------------------------------------------------------


def run_away_at(pieces: list[str]) -> int | None:
    """The event after which the gateway ends it, each token an event of its own; None: never."""
    repeats = Repeats(Detector())
    head = '{"id":"c","object":"chat.completion.chunk","choices":[{"index":0,"delta":{"content":'
    for count, piece in enumerate(pieces, 1):
        event = f'{head}{json.dumps(piece, ensure_ascii=False)}}},"finish_reason":null}}]}}'.encode()
        if repeats.hear([event]):
            return count
    return None


def stopped_at(pieces: list[str], stops: tuple[str, ...]) -> int | None:
    text = "".join(pieces)
    found = [at for stop in stops if (at := text.find(stop)) >= 0]
    if not found:
        return None
    size = 0
    for count, piece in enumerate(pieces, 1):
        size += len(piece)
        if size > min(found):
            return count
    return None


def judge_answer(answer: Said, samples: Samples) -> None:
    task, whole = TASKS[answer.task], len(answer.pieces)
    by = {
        "cap": min(whole, task.max_tokens),
        "stop": min(whole, stopped_at(answer.pieces, task.stop) or whole),
        "runaway": whole if task.runaway == "off" else min(whole, run_away_at(answer.pieces) or whole),
    }
    by["all"] = min(by.values())
    name = f"{answer.task}.{'greedy' if answer.greedy else 'sampled'}"
    samples.setdefault(f"{name}.said", []).append(whole)
    for cut, tokens in by.items():
        samples.setdefault(f"{name}.{cut}.tokens", []).append(tokens)
        samples.setdefault(f"{name}.{cut}.ended", []).append(float(tokens < whole))
        # An answer that would have ended by itself is one that somebody misses the end of.
        missed = tokens < whole and answer.finish == "stop"
        samples.setdefault(f"{name}.{cut}.missed", []).append(float(missed))


def lengths_of(path: Path) -> list[int]:
    with gzip.open(path, "rt") if path.suffix == ".gz" else path.open() as file:
        rows = csv.reader(file)
        head = [name.lower() for name in next(rows)]
        column = next(at for at, name in enumerate(head) if "decode" in name or "generated" in name or "output" in name)
        return [int(float(row[column])) for row in rows if row[column]]


def judge_lengths(path: Path, samples: Samples) -> tuple[str, ...]:
    lengths, cap = lengths_of(path), TASKS["chat"].max_tokens
    cut = [length for length in lengths if length > cap]
    saved, share = sum(length - cap for length in cut) / sum(lengths), len(cut) / len(lengths)
    name = path.name.split(".")[0]
    samples[f"lengths.{name}.saved"], samples[f"lengths.{name}.cut"] = [saved], [share]
    return (name, f"{len(lengths)}", f"{sum(lengths) / len(lengths):.0f}", f"{saved:.1%}", f"{share:.1%}")


# -- the run ------------------------------------------------------------------------------------------------------


def row_of(name: str, samples: Samples) -> tuple[str, ...]:
    whole, count = sum(samples[f"{name}.said"]), len(samples[f"{name}.said"])
    cells = [name.replace(".", ", "), str(count), f"{whole / count:.0f}"]
    for cut in ("cap", "stop", "runaway", "all"):
        saved = 1 - sum(samples[f"{name}.{cut}.tokens"]) / whole
        samples[f"{name}.{cut}.saved"] = [saved]
        ended, missed = sum(samples[f"{name}.{cut}.ended"]), sum(samples[f"{name}.{cut}.missed"])
        cells.append(f"{saved:.1%} ({ended:.0f}, {missed:.0f})")
    return tuple(cells)


def main() -> int:
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0] if __doc__ else None)
    parser.add_argument(
        "--said", type=Path, help="keep there what the model says, and take from there what it has said"
    )
    parser.add_argument("--prompts", type=int, default=len(prompts()), help="ask the first so many")
    parser.add_argument(
        "--lengths", type=Path, nargs="*", default=[], help="CSV files with output lengths of real answers"
    )
    parser.add_argument("--threads", type=int, default=2)
    parser.add_argument("--out", type=Path, help="where to keep the result; else results/saved.json")
    args = parser.parse_args()
    console, samples, before = Console(highlight=False), Samples(), CpuTime.now()
    lengths = tuple(judge_lengths(path, samples) for path in args.lengths)
    answers = said(args.said, args.threads, args.prompts, console)
    for answer in answers:
        judge_answer(answer, samples)
    names = sorted({name.removesuffix(".said") for name in samples if name.endswith(".said")})
    grid = Grid(
        (
            "tokens not decoded (answers ended, of them good)",
            "number",
            "tokens each",
            "cap",
            "stops",
            "runaway",
            "all together",
        ),
        tuple(row_of(name, samples) for name in names),
    )
    real = Grid(
        ("lengths of real answers", "number", "tokens each", "saved by the cap of a chat", "answers cut"), lengths
    )
    rows = [
        Row("of a plain chat's decode saved, greedy", "chat.greedy.all.saved", None, "≥", 0.1),
        Row("the same, sampled", "chat.sampled.all.saved", None, "≥", None),
        Row(
            "answers ended as repetition that would have ended by themselves, greedy",
            "chat.greedy.runaway.missed",
            None,
        ),
        Row("the same, sampled", "chat.sampled.runaway.missed", None),
    ]
    for style in ("greedy", "sampled"):
        values = samples[f"chat.{style}.runaway.missed"]
        samples[f"chat.{style}.runaway.missed"] = [sum(values) / len(values)]
    verdicts = [judge(row, samples) for row in rows]
    grids = (grid, real) if lengths else (grid,)
    for one in grids:
        console.print(one.table(TITLE))
    console.print(verdict_grid(verdicts).table("Enough?"))
    facts = {
        **machine(),
        "answers": str(len(answers)),
        "most tokens each": str(MOST_TOKENS),
        "others' share of the CPU time spent": f"{before.others_of_busy(CpuTime.now()):.0%}",
    }
    out: Path | None = args.out or (RESULTS if args.prompts == len(prompts()) else None)
    if out is not None:
        Report(TITLE, "benchmarks/saved.py", facts, verdicts, samples, grids).keep(out)
        console.print(f"wrote {out}")
    return 0 if all(verdict.passed is not False for verdict in verdicts) else 1


if __name__ == "__main__":
    sys.exit(main())
