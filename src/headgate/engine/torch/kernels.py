"""Kernels in Triton, for what lies between the matrix products. fused.py launches them.

Attention reads keys and values from their pages. A single token's attention is shared by many programs, each with a
part of the context, and merged by `merge`; otherwise one stream's step would use a tenth of the GPU. A tile of a prompt
has the queries of all heads that share a KV head, so that what is read serves them all.
"""

import triton
import triton.language as tl


@triton.jit
def norm(x, weight, out, width, eps, BLOCK: tl.constexpr):
    row = tl.program_id(0).to(tl.int64)
    at = tl.arange(0, BLOCK)
    inside = at < width
    value = tl.load(x + row * width + at, mask=inside, other=0.0).to(tl.float32)
    scale = tl.rsqrt(tl.sum(value * value, 0) / width + eps)
    gain = tl.load(weight + at, mask=inside, other=0.0).to(tl.float32)
    tl.store(out + row * width + at, value * scale * gain, mask=inside)


@triton.jit
def add_norm(x, more, weight, out, width, eps, BLOCK: tl.constexpr):
    row = tl.program_id(0).to(tl.int64)
    at = tl.arange(0, BLOCK)
    inside = at < width
    value = tl.load(x + row * width + at, mask=inside, other=0.0)
    value = value + tl.load(more + row * width + at, mask=inside, other=0.0)
    tl.store(x + row * width + at, value, mask=inside)
    value = value.to(tl.float32)
    scale = tl.rsqrt(tl.sum(value * value, 0) / width + eps)
    gain = tl.load(weight + at, mask=inside, other=0.0).to(tl.float32)
    tl.store(out + row * width + at, value * scale * gain, mask=inside)


@triton.jit
def gate(both, out, width, BLOCK: tl.constexpr):
    row = tl.program_id(0).to(tl.int64)
    at = tl.program_id(1) * BLOCK + tl.arange(0, BLOCK)
    inside = at < width
    left = tl.load(both + row * 2 * width + at, mask=inside, other=0.0).to(tl.float32)
    right = tl.load(both + row * 2 * width + width + at, mask=inside, other=0.0).to(tl.float32)
    tl.store(out + row * width + at, left / (1.0 + tl.exp(-left)) * right, mask=inside)


@triton.jit
def rotate(
    qkv, positions, slots, tables, cos, sin, keys, values, table_width,
    HEADS: tl.constexpr, KV_HEADS: tl.constexpr, HALF: tl.constexpr, PAGE: tl.constexpr, GROUP: tl.constexpr,
):  # fmt: skip
    row = tl.program_id(0).to(tl.int64)
    head = tl.program_id(1) * GROUP
    position = tl.load(positions + row)
    slot = tl.load(slots + row).to(tl.int64)
    group = tl.arange(0, GROUP)[:, None]
    at = tl.arange(0, HALF)[None, :]
    place = qkv + row * ((HEADS + 2 * KV_HEADS) * 2 * HALF) + (head + group) * (2 * HALF) + at
    low = tl.load(place).to(tl.float32)
    high = tl.load(place + HALF).to(tl.float32)
    if head < HEADS + KV_HEADS:
        c = tl.load(cos + position * HALF + at)
        s = tl.load(sin + position * HALF + at)
        first = low * c - high * s
        second = high * c + low * s
    else:
        first = low
        second = high
    if head < HEADS:
        tl.store(place, first)
        tl.store(place + HALF, second)
    else:
        page = tl.load(tables + slot * table_width + position // PAGE).to(tl.int64)
        inner = page * (KV_HEADS * PAGE * 2 * HALF) + (position % PAGE) * (2 * HALF) + at
        if head < HEADS + KV_HEADS:
            to = keys + inner + (head - HEADS + group) * (PAGE * 2 * HALF)
            tl.store(to, first)
            tl.store(to + HALF, second)
        else:
            to = values + inner + (head - HEADS - KV_HEADS + group) * (PAGE * 2 * HALF)
            tl.store(to, first)
            tl.store(to + HALF, second)


@triton.jit
def attend_single(
    qkv, positions, slots, tables, keys, values, parts, weights, table_width, scale,
    HEADS: tl.constexpr, KV_HEADS: tl.constexpr, HEAD: tl.constexpr, PAGE: tl.constexpr, GROUP: tl.constexpr,
    ROWS: tl.constexpr, BLOCK: tl.constexpr, PARTS: tl.constexpr, LEAST: tl.constexpr,
):  # fmt: skip
    """One part of one row's context, for the GROUP queries that share a KV head."""
    row = tl.program_id(0).to(tl.int64)
    kv_head = tl.program_id(1)
    part = tl.program_id(2)
    length = tl.load(positions + row) + 1
    each = tl.maximum(tl.cdiv(tl.cdiv(length, PARTS), BLOCK) * BLOCK, LEAST)
    start = part * each
    if start < length:
        end = tl.minimum(start + each, length)
        group = tl.arange(0, ROWS)
        at = tl.arange(0, HEAD)
        head = kv_head * GROUP + group
        mine = group < GROUP
        q = tl.load(qkv + row * ((HEADS + 2 * KV_HEADS) * HEAD) + head[:, None] * HEAD + at[None, :],
                    mask=mine[:, None], other=0.0)  # fmt: skip
        table = tables + tl.load(slots + row).to(tl.int64) * table_width
        best = tl.full([ROWS], -1e30, tl.float32)
        total = tl.zeros([ROWS], tl.float32)
        mixed = tl.zeros([ROWS, HEAD], tl.float32)
        for begin in range(start, end, BLOCK):
            token = begin + tl.arange(0, BLOCK)
            seen = token < end
            page = tl.load(table + token // PAGE, mask=seen, other=0).to(tl.int64)
            place = page * (KV_HEADS * PAGE * HEAD) + kv_head * (PAGE * HEAD) + (token % PAGE) * HEAD
            k = tl.load(keys + place[:, None] + at[None, :], mask=seen[:, None], other=0.0)
            v = tl.load(values + place[:, None] + at[None, :], mask=seen[:, None], other=0.0)
            score = tl.dot(q, tl.trans(k)) * scale
            score = tl.where(seen[None, :], score, -1e30)
            higher = tl.maximum(best, tl.max(score, 1))
            p = tl.exp2(score - higher[:, None])
            fade = tl.exp2(best - higher)
            mixed = mixed * fade[:, None] + tl.dot(p.to(v.dtype), v)
            total = total * fade + tl.sum(p, 1)
            best = higher
        to = (row * HEADS + head) * PARTS + part
        tl.store(parts + to[:, None] * HEAD + at[None, :], mixed / total[:, None], mask=mine[:, None])
        tl.store(weights + to, best + tl.log2(total), mask=mine)


@triton.jit
def merge(
    parts, weights, positions, out,
    HEADS: tl.constexpr, HEAD: tl.constexpr, BLOCK: tl.constexpr, PARTS: tl.constexpr, LEAST: tl.constexpr,
):  # fmt: skip
    row = tl.program_id(0).to(tl.int64)
    head = tl.program_id(1)
    length = tl.load(positions + row) + 1
    each = tl.maximum(tl.cdiv(tl.cdiv(length, PARTS), BLOCK) * BLOCK, LEAST)
    part = tl.arange(0, PARTS)
    there = part * each < length
    at = tl.arange(0, HEAD)
    begin = (row * HEADS + head) * PARTS
    weight = tl.load(weights + begin + part, mask=there, other=-1e30)
    share = tl.where(there, tl.exp2(weight - tl.max(weight, 0)), 0.0)
    mixed = tl.load(parts + (begin + part)[:, None] * HEAD + at[None, :], mask=there[:, None], other=0.0)
    tl.store(out + (row * HEADS + head) * HEAD + at, tl.sum(mixed * share[:, None], 0) / tl.sum(share, 0))


@triton.jit
def _block(
    q, best, total, mixed, begin, last, end, table, keys, values, at, inner, scale,
    KV_HEADS: tl.constexpr, HEAD: tl.constexpr, PAGE: tl.constexpr, BLOCK: tl.constexpr, MASKED: tl.constexpr,
):  # fmt: skip
    token = begin + tl.arange(0, BLOCK)
    if MASKED:
        page = tl.load(table + token // PAGE, mask=token < end, other=0).to(tl.int64)
    else:
        page = tl.load(table + token // PAGE).to(tl.int64)
    place = page * (KV_HEADS * PAGE * HEAD) + inner + (token % PAGE) * HEAD
    k = tl.load(keys + place[:, None] + at[None, :])
    score = tl.dot(q, tl.trans(k)) * scale
    if MASKED:
        score = tl.where(token[None, :] <= last[:, None], score, -1e30)
    higher = tl.maximum(best, tl.max(score, 1))
    p = tl.exp2(score - higher[:, None])
    fade = tl.exp2(best - higher)
    if MASKED:  # what lies there may be no number, and no share of it is 0
        v = tl.load(values + place[:, None] + at[None, :], mask=(token < end)[:, None], other=0.0)
    else:
        v = tl.load(values + place[:, None] + at[None, :])
    mixed = mixed * fade[:, None]
    mixed = tl.dot(p.to(v.dtype), v, mixed)
    return higher, total * fade + tl.sum(p, 1), mixed


@triton.jit
def attend_tile(
    qkv, tiles, tables, keys, values, out, table_width, scale,
    HEADS: tl.constexpr, KV_HEADS: tl.constexpr, HEAD: tl.constexpr, PAGE: tl.constexpr, GROUP: tl.constexpr,
    ROWS: tl.constexpr, BLOCK: tl.constexpr,
):  # fmt: skip
    """Some tokens of one prompt: each attends to what came before it, and to itself."""
    # The last tiles have the longest contexts: they begin first, so that no few of them run on when all else is done.
    tile = tiles + (tl.num_programs(1) - 1 - tl.program_id(1)) * 4
    kv_head = tl.program_id(0)
    first = tl.load(tile).to(tl.int64)
    position = tl.load(tile + 2)
    count = tl.load(tile + 3)
    if count > 0:
        rows = tl.arange(0, ROWS)
        token = rows // GROUP
        head = kv_head * GROUP + rows % GROUP
        at = tl.arange(0, HEAD)
        mine = token < count
        asked = qkv + (first + token)[:, None] * ((HEADS + 2 * KV_HEADS) * HEAD) + head[:, None] * HEAD
        q = tl.load(asked + at[None, :], mask=mine[:, None], other=0.0)
        table = tables + tl.load(tile + 1).to(tl.int64) * table_width
        inner = kv_head * (PAGE * HEAD)
        best = tl.full([ROWS], -1e30, tl.float32)
        total = tl.zeros([ROWS], tl.float32)
        mixed = tl.zeros([ROWS, HEAD], tl.float32)
        end = position + count
        whole = (position + 1) // BLOCK * BLOCK
        last = position + token
        for begin in range(0, whole, BLOCK):
            best, total, mixed = _block(q, best, total, mixed, begin, last, end, table, keys, values, at, inner, scale,
                                        KV_HEADS, HEAD, PAGE, BLOCK, False)  # fmt: skip
        for begin in range(whole, end, BLOCK):
            best, total, mixed = _block(q, best, total, mixed, begin, last, end, table, keys, values, at, inner, scale,
                                        KV_HEADS, HEAD, PAGE, BLOCK, True)  # fmt: skip
        to = out + (first + token)[:, None] * (HEADS * HEAD) + head[:, None] * HEAD + at[None, :]
        tl.store(to, mixed / total[:, None], mask=mine[:, None])


@triton.jit
def _above(scores, row, best, warmth, bound, width, BLOCK: tl.constexpr):
    """Counts the tokens whose score is at least `bound`, and their mass."""
    count = 0.0
    mass = 0.0
    for begin in range(0, width, BLOCK):
        at = begin + tl.arange(0, BLOCK)
        score = (
            tl.load(scores + row * width + at, mask=at < width, other=-float("inf")).to(tl.float32) - best
        ) * warmth
        kept = score >= bound
        count += tl.sum(tl.where(kept, 1.0, 0.0), 0)
        mass += tl.sum(tl.where(kept, tl.exp(score), 0.0), 0)
    return count, mass


@triton.jit
def draw(
    scores, temperatures, top_ps, top_ks, min_ps, chances, tokens, width, ROUNDS: tl.constexpr, BLOCK: tl.constexpr
):
    """The bounds of top_k and top_p are found by halving: sorting a vocabulary takes longer than a layer."""
    row = tl.program_id(0).to(tl.int64)
    temperature = tl.load(temperatures + row)
    best = -float("inf")
    found = 0
    broken = 0
    for begin in range(0, width, BLOCK):
        at = begin + tl.arange(0, BLOCK)
        score = tl.load(scores + row * width + at, mask=at < width, other=-float("inf")).to(tl.float32)
        broken += tl.sum(tl.where(score != score, 1, 0), 0)
        top = tl.max(score, 0)
        found = tl.where(top > best, begin + tl.argmax(score, 0), found)
        best = tl.maximum(best, top)
    if temperature >= 1e-5:
        warmth = 1.0 / temperature
        bound = tl.maximum(tl.log(tl.maximum(tl.load(min_ps + row), 1e-30)), -60.0)
        wanted = tl.load(top_ks + row)
        if wanted > 0:
            high = 0.0
            for _ in range(ROUNDS):
                middle = (bound + high) / 2
                count, mass = _above(scores, row, best, warmth, middle, width, BLOCK)
                enough = count >= wanted
                bound = tl.where(enough, middle, bound)
                high = tl.where(enough, high, middle)
        count, mass = _above(scores, row, best, warmth, bound, width, BLOCK)
        share = tl.load(top_ps + row)
        if share < 1.0:
            wanted_mass = share * mass
            high = 0.0
            for _ in range(ROUNDS):
                middle = (bound + high) / 2
                count, above = _above(scores, row, best, warmth, middle, width, BLOCK)
                enough = above >= wanted_mass
                bound = tl.where(enough, middle, bound)
                mass = tl.where(enough, above, mass)
                high = tl.where(enough, high, middle)
        target = tl.load(chances + row) * mass
        before = 0.0
        done = 0
        for begin in range(0, width, BLOCK):
            at = begin + tl.arange(0, BLOCK)
            score = (
                tl.load(scores + row * width + at, mask=at < width, other=-float("inf")).to(tl.float32) - best
            ) * warmth
            weight = tl.where(score >= bound, tl.exp(score), 0.0)
            block = tl.sum(weight, 0)
            if (done == 0) & (before + block > target):
                reached = before + tl.cumsum(weight, 0)
                found = tl.min(tl.where((reached > target) & (weight > 0), at, width - 1), 0)
                done = 1
            before += block
    good = (broken == 0) & (best > -float("inf")) & (best < float("inf"))
    tl.store(tokens + row, tl.where(good, found, -1))
