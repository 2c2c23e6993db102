"""Which form of the bundled weights is computed fastest, and what it costs in quality.

    python -m benchmarks.weights [--rounds 5] [--windows 12]

The bundled GGUF is Q4_1. Its tensors are put into other forms, and each form is compared with it: how likely it finds
ordinary texts (perplexity, as a ratio), and the CPU seconds of a prefill of 128 tokens and of decode steps of one and
of eight sequences. The forms take turns, in an order that turns round; a speed-up is the median of the rounds'. CPU
time on one thread, not time on the clock: others may be at work on this machine.
"""

import argparse
import json
import platform
import random
import statistics
import sys
import tempfile
import time
from collections.abc import Callable, Sequence
from pathlib import Path
from typing import Any

import numpy as np
from numpy.typing import NDArray
from tests.ordinary.corpus import made, shipped

from headgate.engine.runner.llama import Q4_0, Q4_1, Q8_0, Context, Model
from headgate.engine.runner.requantize import requantize
from headgate.engine.runner.tokenizer import Tokenizer
from headgate.engine.runner.weights import wanted
from headgate.wiring.common import bundled_model

ROOT = Path(__file__).resolve().parent.parent
WINDOW = 256
UNJUDGED = 32
"""Tokens at a window's beginning, where too little is known to go on from."""
PREFILL, STEPS, BESIDE = 128, 10, 8
WHAT = ("prefill", "decode_1", "decode_8")


FORMS: dict[str, Callable[[str], int]] = {
    "Q4_1, as it came": lambda name: Q4_1,
    "Q4_0": lambda name: Q4_0,
    "FFN gate and up Q4_0, the rest Q8_0": lambda name: Q4_0 if "ffn_gate" in name or "ffn_up" in name else Q8_0,
    "FFN of layers 4 to 25 Q4_0, the rest Q8_0": wanted,
    "Q8_0": lambda name: Q8_0,
}


def windows(tokenizer: Tokenizer, count: int) -> list[list[int]]:
    """Half from texts that are made, half from Python's manual."""
    kinds = ([text.text for text in made(each=1)], [text.text for text in shipped() if text.kind == "manual"])
    found: list[list[int]] = []
    for texts in kinds:
        random.Random(2).shuffle(texts)
        long = (tokens for tokens in map(tokenizer.encode, texts) if len(tokens) >= WINDOW)
        found += [tokens[:WINDOW] for tokens, _ in zip(long, range(count // 2), strict=False)]
    return found


def judged(model: Model, texts: Sequence[list[int]]) -> tuple[NDArray[np.float64], list[NDArray[np.float32]]]:
    """For each window, nats for a token; and the logarithm of each token's chance at each place."""
    context = Context(model, slots=1, n_ctx=WINDOW, batch_tokens=WINDOW, threads=1)
    told, chances = [], []
    for tokens in texts:
        fill(context, tokens, 0, rows=WINDOW - UNJUDGED + 1)
        logits = context.logits(WINDOW - UNJUDGED + 1)[:-1]
        most = logits.max(1, keepdims=True)
        chances.append(logits - np.log(np.exp(logits - most).sum(1, keepdims=True)) - most)
        told.append(-chances[-1][np.arange(len(logits)), tokens[UNJUDGED:]].mean(dtype=np.float64))
    context.close()
    return np.array(told), chances


def apart(base: list[NDArray[np.float32]], other: list[NDArray[np.float32]]) -> tuple[float, float]:
    """How far what `other` expects is from what `base` does: nats of divergence, and the share of places where the most
    likely token is the same."""
    nats = [float((np.exp(one) * (one - two)).sum(1).mean()) for one, two in zip(base, other, strict=True)]
    same = [float((one.argmax(1) == two.argmax(1)).mean()) for one, two in zip(base, other, strict=True)]
    return statistics.mean(nats), statistics.mean(same)


def fill(context: Context, tokens: Sequence[int], slot: int, rows: int = 1) -> float:
    """Computes a prompt in an emptied slot; gives the CPU seconds of it."""
    count = len(tokens)
    context.trim(slot, 0)
    context.tokens[:count], context.positions[:count], context.slots[:count] = tokens, np.arange(count), slot
    context.wanted[: count - rows], context.wanted[count - rows : count] = 0, 1
    began = time.process_time()
    if context.decode(count) != 0:
        raise SystemExit("llama.cpp could not compute a step")
    return time.process_time() - began


def decode(context: Context, tokens: Sequence[int], beside: int) -> float:
    """CPU seconds of a step that decodes this many sequences."""
    for slot in range(beside):
        fill(context, tokens[:16], slot)
    took = []
    for step in range(STEPS):
        context.tokens[:beside], context.positions[:beside] = tokens[step : step + beside], 16 + step
        context.slots[:beside], context.wanted[:beside] = np.arange(beside), 1
        began = time.process_time()
        context.decode(beside)
        took.append(time.process_time() - began)
    return statistics.median(took)


def measure(paths: dict[str, Path], rounds: int, count: int) -> list[dict[str, Any]]:
    models = {form: Model(path) for form, path in paths.items()}
    tokenizer = Tokenizer(next(iter(models.values())), clock=lambda: 0.0)
    texts = windows(tokenizer, count)
    prompt = [int(token) for token in np.random.default_rng(1).integers(100, 40_000, 256)]
    told: dict[str, NDArray[np.float64]] = {}
    contexts: dict[str, Context] = {}
    differ: dict[str, tuple[float, float]] = {}
    first_chances: list[NDArray[np.float32]] = []
    for form, model in models.items():
        told[form], chances = judged(model, texts)
        first_chances = first_chances or chances
        differ[form] = apart(first_chances, chances)
        contexts[form] = Context(model, slots=BESIDE, n_ctx=BESIDE * 256, batch_tokens=PREFILL, threads=1)
        print(f"{form}: loss {told[form].mean():.4f}", file=sys.stderr, flush=True)
    took: dict[str, list[tuple[float, ...]]] = {form: [] for form in paths}
    for number in range(rounds):
        order = list(paths) if number % 2 else list(paths)[::-1]
        for form in order:
            context = contexts[form]
            one = fill(context, prompt[:PREFILL], 0), decode(context, prompt, 1), decode(context, prompt, BESIDE)
            took[form].append(one)
    first = next(iter(paths))
    rows: list[dict[str, Any]] = []
    for form, path in paths.items():
        worse = told[form] - told[first]
        half = len(worse) // 2
        ratios = [
            statistics.median(base[what] / mine[what] for base, mine in zip(took[first], took[form], strict=True))
            for what in range(3)
        ]
        rows.append(
            {
                "form": form,
                "size_mb": path.stat().st_size / 1e6,
                "perplexity": float(np.exp(told[form].mean())),
                "perplexity_ratio": float(np.exp(worse.mean())),
                "perplexity_ratio_error": float(worse.std() / len(worse) ** 0.5),
                "perplexity_ratio_made": float(np.exp(worse[:half].mean())),
                "perplexity_ratio_manual": float(np.exp(worse[half:].mean())),
                "divergence_nats": differ[form][0],
                "same_first_choice": differ[form][1],
                "prefill_ms": 1e3 * statistics.median(one[0] for one in took[form]),
                "decode_1_ms": 1e3 * statistics.median(one[1] for one in took[form]),
                "decode_8_ms": 1e3 * statistics.median(one[2] for one in took[form]),
                "prefill_speedup": ratios[0],
                "decode_1_speedup": ratios[1],
                "decode_8_speedup": ratios[2],
            }
        )
    return rows


def table(rows: list[dict[str, Any]], rounds: int, count: int) -> str:
    lines = [
        "# The bundled weights in other forms",
        "",
        f"`python -m benchmarks.weights`: {count} windows of {WINDOW} tokens for perplexity; {rounds} rounds for",
        f"speed, CPU time on one thread, {platform.machine()}. All against Q4_1 as it came; speed-ups are medians.",
        "",
        "| form | MB | perplexity | ratio | made texts, manual | divergence, nats | same first choice | prefill of 128"
        " | decode 1 | decode 8 |",
        "|---|---|---|---|---|---|---|---|---|---|",
    ]
    for row in rows:
        cells = (
            row["form"],
            f"{row['size_mb']:.0f}",
            f"{row['perplexity']:.3f}",
            f"{row['perplexity_ratio']:.3f} ± {row['perplexity_ratio_error']:.3f}",
            f"{row['perplexity_ratio_made']:.3f}, {row['perplexity_ratio_manual']:.3f}",
            f"{row['divergence_nats']:.3f}",
            f"{100 * row['same_first_choice']:.0f} %",
            *(f"{row[f'{what}_ms']:.1f} ms, {row[f'{what}_speedup']:.2f}×" for what in WHAT),
        )
        lines.append(f"| {' | '.join(cells)} |")
    return "\n".join(lines) + "\n"


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--rounds", type=int, default=5)
    parser.add_argument("--windows", type=int, default=12)
    parser.add_argument("--out", type=Path, default=ROOT / "benchmarks" / "results" / "weights.json")
    arguments = parser.parse_args()
    source = bundled_model()
    with tempfile.TemporaryDirectory() as folder:
        paths: dict[str, Path] = {}
        for number, (form, type_of) in enumerate(FORMS.items()):
            paths[form] = source if number == 0 else Path(folder) / f"{number}.gguf"
            if number:
                with paths[form].open("wb") as file:
                    requantize(source, file, type_of, 0)
        rows = measure(paths, arguments.rounds, arguments.windows)
    said = table(rows, arguments.rounds, arguments.windows)
    print(said)
    kept = {"rounds": arguments.rounds, "windows": arguments.windows, "forms": rows}
    arguments.out.write_text(json.dumps(kept, indent=1) + "\n")
    arguments.out.with_suffix(".md").write_text(said)


if __name__ == "__main__":
    main()
