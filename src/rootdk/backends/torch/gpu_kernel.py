"""A Reading on a GPU: one Triton program per block of query rows of one head walks over the keys once.

The same sums as the kernel on the CPU (kernel/softmax-inl.h), taken the same way: scores in units of log2, everything
relative to the running maximum or to a block's own, means and deviations merged by the formula of Chan, Golub and
LeVeque. There are no values, so no output is held: the only tile is the scores. No atomics and a grid that depends on
the shapes alone: the same call gives the same bits on one kind of GPU.
"""

from functools import cache

import triton
import triton.language as tl

LOG2_E = tl.constexpr(1.4426950408889634)
_LN_2 = tl.constexpr(0.6931471805599453)
# Steps are cut here, where 2^x is already 0 in float32: a larger one could overflow while its factor is 0.
_FLOOR = tl.constexpr(-200.0)
# Below this, sums of squared distances would overflow: such a row is summed in units of 2^80.
_FAR = tl.constexpr(-1e15)
_SMALL_UNIT = tl.constexpr(2.0**-80)
_LARGEST = tl.constexpr(3.4028234663852886e38)
# A row that sees fewer keys does not count for the key that rows point at, nor for a trend:
# rootdk.audit.layer.MIN_KEYS.
ENOUGH = tl.constexpr(16)
# Numbers that change from call to call: one compiled kernel serves all of them.
VARYING = ("heads", "group", "n_rows", "n_query", "n_key", "all_rows", "offset", "left", "right")


@triton.jit
def _tanh(y):
    """tanh, exact to rounding: a Padé quotient near 0, where 1 - 2/(e^2y + 1) would lose digits."""
    square = y * y
    near = y * (135135 + square * (17325 + square * (378 + square)))
    near = near / (135135 + square * (62370 + square * (3150 + square * 28)))
    far = 1 - 2 / (tl.exp2(tl.minimum(tl.abs(y), 20.0) * (2 * LOG2_E)) + 1)
    return tl.where(tl.abs(y) < 1, near, tl.where(y < 0, -far, far))


@triton.jit
def _bounded_log2(logit):
    """A logit in units of log2. A finite number stays finite; NaN and infinities do not change."""
    scaled = logit * LOG2_E
    finite = tl.abs(logit) <= _LARGEST
    return tl.where(finite & (tl.abs(scaled) > _LARGEST), tl.where(logit < 0, -_LARGEST, _LARGEST), scaled)


@triton.jit
def _scores(
    q_rows, q_block, key, k_row, keys_here,
    row_live, key_live, d, d_k: tl.constexpr, WHOLE: tl.constexpr, WIDTH: tl.constexpr, WIDEN: tl.constexpr,
):  # fmt: skip
    """<q_i, k_j> of one block, added up in float32."""
    columns = key + keys_here[None, :].to(tl.int64) * k_row
    if WHOLE:
        k_block = tl.load(columns + d[:, None], mask=key_live[None, :] & (d[:, None] < d_k), other=0.0)
        if WIDEN:  # the interpreter would multiply the bits of a bfloat16
            q_block, k_block = q_block.to(tl.float32), k_block.to(tl.float32)
        return tl.dot(q_block, k_block, input_precision="ieee")
    total = tl.zeros((row_live.shape[0], key_live.shape[0]), tl.float32)
    for start in range(0, d_k, WIDTH):
        components = start + d
        q_part = tl.load(q_rows + components[None, :], mask=row_live[:, None] & (components[None, :] < d_k), other=0.0)
        k_part = tl.load(columns + components[:, None], mask=key_live[None, :] & (components[:, None] < d_k), other=0.0)
        if WIDEN:
            q_part, k_part = q_part.to(tl.float32), k_part.to(tl.float32)
        total = tl.dot(q_part, k_part, total, input_precision="ieee")
    return total


@triton.jit
def _score_of_key(q_rows, column, row_live, d_k: tl.constexpr):
    """<q_i, k> of the rows and one key, added up in float32; in narrow pieces, which take few registers."""
    PART: tl.constexpr = 8
    total = tl.zeros((row_live.shape[0],), tl.float32)
    for start in range(0, d_k, PART):
        components = start + tl.arange(0, PART)
        q_part = tl.load(q_rows + components[None, :], mask=row_live[:, None] & (components[None, :] < d_k), other=0.0)
        k = tl.load(column + components, mask=components < d_k, other=0.0).to(tl.float32)
        total += tl.sum(q_part.to(tl.float32) * k[None, :], 1)
    return total


@triton.jit
def _add_block(
    s, maximum, total, moment, square, cube, minimum, count, mean, spread,
):  # fmt: skip
    """The sums of the rows with one more block of logits, -inf where hidden."""
    seen = s != float("-inf")
    high = tl.max(s, 1)
    low = tl.min(tl.where(seen, s, float("inf")), 1)
    block_count = tl.sum(seen.to(tl.int32), 1)
    base = tl.where(high == float("-inf"), 0.0, high)
    distance = tl.where(seen, s - base[:, None], 0.0)
    weight = tl.where(seen, tl.exp2(distance), 0.0)
    squares = weight * weight
    # The factors by which the sums so far, and the sums of this block, must shrink.
    now = tl.maximum(maximum, high)
    now_base = tl.where(now == float("-inf"), 0.0, now)
    f, g = tl.exp2(maximum - now_base), tl.exp2(high - now_base)
    block_total = tl.sum(weight, 1)
    block_moment = tl.sum(weight * tl.maximum(distance, _FLOOR), 1)
    step, block_step = tl.maximum(maximum - now_base, _FLOOR), tl.maximum(high - now_base, _FLOOR)
    moment = (moment + total * step) * f + (block_moment + block_total * block_step) * g
    total = total * f + block_total * g
    square = square * (f * f) + tl.sum(squares, 1) * (g * g)
    cube = cube * (f * f * f) + tl.sum(squares * weight, 1) * (g * g * g)
    minimum = tl.minimum(minimum, low)

    unit = tl.where(low - base < _FAR, _SMALL_UNIT, 1.0)
    in_units = distance * unit[:, None]
    number, before = block_count.to(tl.float32), count.to(tl.float32)
    inverse = tl.where(block_count > 0, 1.0 / tl.maximum(number, 1.0), 0.0)
    block_sum = tl.sum(in_units, 1)
    mean_distance = block_sum * inverse
    block_spread = tl.maximum(tl.sum(in_units * in_units, 1) - block_sum * mean_distance, 0.0) / unit / unit
    between = base + mean_distance / unit - mean
    share = tl.where(block_count > 0, number / tl.maximum(before + number, 1.0), 0.0)
    # In this order a side without keys adds 0 even where the square of a mean overflows.
    spread = spread + tl.where(block_count > 0, block_spread + between * (before * share) * between, 0.0)
    mean = mean + tl.where(block_count > 0, between * share, 0.0)
    return now, total, moment, square, cube, minimum, count + block_count, mean, spread


@triton.jit
def _pointed_at(s, start, maximum, top):
    """Where the largest logit of every row is, with one more block of them; the first one of several."""
    high, place = tl.max(s, 1, return_indices=True)
    at = start + place
    return tl.where((high > maximum) | ((high == maximum) & (at < top)), at, top)


@triton.jit
def _logits(
    raw, factor, softcap, slope, behind, bias, b_row, b_key, mask, m_row, m_key, row, sees_from, sees_to, segment,
    key_segments, key_places, keys_here, LIMITS: tl.constexpr,
):  # fmt: skip
    """Products -> logits in units of log2: scale, softcap, slope, bias, and -inf where hidden."""
    s = raw * factor[:, None]
    if softcap is not None:
        y = s / softcap
        s = tl.where(tl.abs(y) < 1.0 / 8192, s, softcap * _tanh(y))  # below it the cap changes no bit
    at_key = keys_here[None, :].to(tl.int64)
    seen = (keys_here[None, :] >= sees_from[:, None]) & (keys_here[None, :] < sees_to[:, None])
    places = keys_here[None, :]
    if key_segments is not None:
        live = places < tl.max(sees_to)
        seen = seen & (segment[:, None] == tl.load(key_segments + places, mask=live, other=0))
        places = tl.load(key_places + places, mask=live, other=0)
    if slope is not None:
        s = s - slope * tl.abs(behind[:, None] - places).to(tl.float32)
    if bias is not None:
        added = tl.load(bias + row[:, None] * b_row + at_key * b_key, mask=seen, other=0.0)
        s = s + _bounded_log2(added.to(tl.float32))
    if LIMITS:
        if mask is not None:
            seen = seen & (tl.load(mask + row[:, None] * m_row + at_key * m_key, mask=seen, other=0) != 0)
        s = tl.where(seen, s, float("-inf"))
    return s


@triton.jit(do_not_specialize=VARYING)
def read_rows(
    query, key, mask, bias, sinks, alibi, row_scale, offsets, lengths, rows, first_key,
    row_starts, row_ends, row_places, row_segments, key_segments, key_places,
    fields, keys, first_weight, top_key, top_share, top_mass,
    q_batch, q_head, q_row, k_batch, k_head, k_row,
    m_batch, m_head, m_row, m_key, b_batch, b_head, b_row, b_key,
    heads, group, n_rows, n_query, n_key, all_rows,
    offset, scale, softcap, left, right,
    d_k: tl.constexpr, WIDTH: tl.constexpr, WHOLE: tl.constexpr, WIDEN: tl.constexpr, SPREAD: tl.constexpr,
    BLOCK_ROWS: tl.constexpr, BLOCK_KEYS: tl.constexpr,
):  # fmt: skip
    """One block of rows of one head. An argument that a call does not have is None, and its code is not compiled.

    Outputs: fields and keys of a Reading; first_weight, the weight that every row gives to the key first_key of its
    batch entry (key 0 without one); top_key, top_share and top_mass, the key that most rows of a head point at, for
    which all of them must be one block. row_starts and row_ends (the keys between which a row sees) and row_places (its
    position among them) replace offset and limits; with row_segments, key_segments and key_places a row sees only the
    keys of its segment, and distances are between positions in it. SPREAD takes n_rows evenly spread rows of the query
    instead of all, or of those in `rows`.
    """
    blocks = tl.cdiv(n_rows, BLOCK_ROWS)
    program = tl.program_id(0)
    # Head by head, so that its keys stay in cache; within a head the last rows first: under a causal limit they are
    # the longest, and the short ones fill the gaps at the end.
    of_head, head_of_all = blocks - 1 - program % blocks, program // blocks
    batch, head = (head_of_all // heads).to(tl.int64), (head_of_all % heads).to(tl.int64)

    place = of_head * BLOCK_ROWS + tl.arange(0, BLOCK_ROWS)
    live = place < n_rows
    row = place.to(tl.int64)
    if rows is not None:
        row = tl.load(rows + place, mask=live, other=0)
        # Values on the device were not checked: these bounds keep all reads inside the query.
        row = tl.minimum(tl.maximum(tl.where(row < 0, row + n_query, row), 0), n_query - 1)
    if SPREAD:  # as rootdk.audit.watching.rows.sampled_rows
        row = (2 * (n_query - 1) * row + n_rows - 1) // (2 * tl.maximum(n_rows - 1, 1))
    position = row + (offset if offsets is None else tl.load(offsets + batch))
    length = n_key if lengths is None else tl.minimum(tl.load(lengths + batch).to(tl.int32), n_key)
    factor = tl.full((BLOCK_ROWS,), scale * LOG2_E, tl.float32)
    if row_scale is not None:
        factor = tl.load(row_scale + batch * n_query + row, mask=live, other=0.0).to(tl.float32) * factor

    slope = None if alibi is None else tl.load(alibi + head_of_all).to(tl.float32) * LOG2_E
    # 32 bits are enough for distances: float32 cannot distinguish neighbouring keys that are further away.
    near = tl.minimum(tl.maximum(position, -(2**30)), 2**30).to(tl.int32)
    # Keys from <= j < to: in 32 bits, because they are compared with every key.
    sees_from, sees_to = tl.zeros((BLOCK_ROWS,), tl.int32), tl.zeros((BLOCK_ROWS,), tl.int32) + length
    if left is not None:
        sees_from = tl.minimum(tl.maximum(position - left, 0), n_key).to(tl.int32)
    if right is not None:
        sees_to = tl.minimum(tl.maximum(position + right + 1, 0), length).to(tl.int32)
    segment = row
    if row_starts is not None:
        entry = batch * n_query + row
        sees_from = tl.load(row_starts + entry, mask=live, other=0)
        sees_to = tl.minimum(tl.load(row_ends + entry, mask=live, other=0), length)
        near = tl.load(row_places + entry, mask=live, other=0)
        if row_segments is not None:
            segment = tl.load(row_segments + entry, mask=live, other=0)
            key_segments += batch * n_key
            key_places += batch * n_key
    sees_to = tl.where(live, sees_to, 0)
    # What some row sees, in whole blocks, and the blocks that all rows see whole: there no limit has to be checked.
    first = tl.min(tl.where(live, sees_from, n_key)) // BLOCK_KEYS * BLOCK_KEYS
    last = tl.max(sees_to)
    full_first = tl.cdiv(tl.max(tl.where(live, sees_from, 0)), BLOCK_KEYS) * BLOCK_KEYS
    full_last = tl.min(tl.where(live, sees_to, n_key)) // BLOCK_KEYS * BLOCK_KEYS
    if mask is not None or key_segments is not None:
        full_last = full_first
    none_full = full_last <= full_first
    full_first, full_last = tl.where(none_full, first, full_first), tl.where(none_full, first, full_last)

    d = tl.arange(0, WIDTH)
    q_rows = query + batch * q_batch + head * q_head + row[:, None] * q_row
    q_block = 0.0
    if WHOLE:
        q_block = tl.load(q_rows + d[None, :], mask=live[:, None] & (d[None, :] < d_k), other=0.0)
    key += batch * k_batch + head // group * k_head
    if mask is not None:
        mask += batch * m_batch + head * m_head
    if bias is not None:
        bias += batch * b_batch + head * b_head

    none = tl.zeros((BLOCK_ROWS,), tl.float32)
    maximum, minimum = none + float("-inf"), none + float("inf")
    total, moment, square, cube, mean, spread = none, none, none, none, none, none
    count, top = tl.zeros((BLOCK_ROWS,), tl.int32), tl.zeros((BLOCK_ROWS,), tl.int32)
    for start in range(full_first, full_last, BLOCK_KEYS):
        keys_here = start + tl.arange(0, BLOCK_KEYS)
        raw = _scores(q_rows, q_block, key, k_row, keys_here, live, keys_here < length, d, d_k, WHOLE, WIDTH, WIDEN)
        s = _logits(
            raw, factor, softcap, slope, near, bias, b_row, b_key, mask, m_row, m_key,
            row, sees_from, sees_to, segment, key_segments, key_places, keys_here, False,
        )  # fmt: skip
        if top_key is not None:
            top = _pointed_at(s, start, maximum, top)
        maximum, total, moment, square, cube, minimum, count, mean, spread = _add_block(
            s, maximum, total, moment, square, cube, minimum, count, mean, spread
        )
    # The blocks before them and behind them.
    before, behind = (full_first - first) // BLOCK_KEYS, tl.cdiv(last - full_last, BLOCK_KEYS)
    for number in range(before + tl.maximum(behind, 0)):
        start = tl.where(number < before, first + number * BLOCK_KEYS, full_last + (number - before) * BLOCK_KEYS)
        keys_here = start + tl.arange(0, BLOCK_KEYS)
        raw = _scores(q_rows, q_block, key, k_row, keys_here, live, keys_here < length, d, d_k, WHOLE, WIDTH, WIDEN)
        s = _logits(
            raw, factor, softcap, slope, near, bias, b_row, b_key, mask, m_row, m_key,
            row, sees_from, sees_to, segment, key_segments, key_places, keys_here, True,
        )  # fmt: skip
        if top_key is not None:
            top = _pointed_at(s, start, maximum, top)
        maximum, total, moment, square, cube, minimum, count, mean, spread = _add_block(
            s, maximum, total, moment, square, cube, minimum, count, mean, spread
        )

    # The end of a row: the sink joins, and the sums become the numbers of a Reading.
    of_keys, level = maximum, tl.where(tl.abs(maximum) == _LARGEST, maximum, maximum * _LN_2)
    sink_weight = none
    if sinks is not None:
        sink_logit = tl.load(sinks + head).to(tl.float32)
        sink = none + _bounded_log2(sink_logit)
        maximum = tl.maximum(of_keys, sink)
        shrink, sink_weight = tl.exp2(of_keys - maximum), tl.exp2(sink - maximum)
        moment = (moment + total * tl.maximum(of_keys - maximum, _FLOOR)) * shrink
        moment += sink_weight * tl.maximum(sink - maximum, _FLOOR)
        total = total * shrink + sink_weight
        square, cube = square * shrink * shrink, cube * shrink * shrink * shrink
        level = tl.where(sink > of_keys, sink_logit, level)
    has_weight, sound = total > 0, total - total == 0
    inverse = tl.where(has_weight, 1.0 / tl.where(has_weight, total, 1.0), 0.0)
    log_total = tl.where(has_weight, tl.log(tl.where(has_weight, total, 1.0)), 0.0)
    nan = none + float("nan")
    if top_key is not None:
        used = live & has_weight & sound & (count >= ENOUGH)
        votes = tl.sum(((top[:, None] == top[None, :]) & used[None, :]).to(tl.int32), 1)
        most, voters = tl.max(tl.where(used, votes, 0)), tl.sum(used.to(tl.int32))
        chosen = tl.min(tl.where(used & (votes == most), top, n_key - 1)) + tl.zeros((1,), tl.int32)
        raw = _score_of_key(q_rows, key + chosen.to(tl.int64) * k_row, live, d_k)
        s = _logits(
            raw[:, None], factor, softcap, slope, near, bias, b_row, b_key, mask, m_row, m_key,
            row, sees_from, sees_to, segment, key_segments, key_places, chosen, True,
        )  # fmt: skip
        weight = tl.where(used, tl.minimum(tl.exp2(tl.max(s, 1) - maximum) * inverse, 1.0), 0.0)
        number = tl.maximum(voters, 1).to(tl.float32)
        tl.store(top_key + head_of_all, tl.max(chosen).to(tl.int64))
        tl.store(top_share + head_of_all, tl.where(voters > 0, most / number, float("nan")))
        tl.store(top_mass + head_of_all, tl.where(voters > 0, tl.sum(weight) / number, float("nan")))
    else:
        flat = head_of_all.to(tl.int64) * n_rows + place
        if first_weight is not None:
            at = tl.zeros((1,), tl.int32)
            if first_key is not None:
                at += tl.minimum(tl.maximum(tl.load(first_key + batch), 0), n_key - 1).to(tl.int32)
            raw = _score_of_key(q_rows, key + at.to(tl.int64) * k_row, live, d_k)
            s = _logits(
                raw[:, None], factor, softcap, slope, near, bias, b_row, b_key, mask, m_row, m_key,
                row, sees_from, sees_to, segment, key_segments, key_places, at, True,
            )  # fmt: skip
            weight = tl.minimum(tl.exp2(tl.max(s, 1) - maximum) * inverse, 1.0)
            tl.store(first_weight + flat, tl.where(sound, tl.where(has_weight, weight, 0.0), nan), mask=live)
        out = fields + flat
        # In the order of rootdk.reading.FIELDS.
        tl.store(out, tl.where(sound, level + log_total, nan), mask=live)
        natural = tl.where(tl.abs(of_keys) == _LARGEST, of_keys, of_keys * _LN_2)
        tl.store(out + all_rows, tl.where(sound, natural, nan), mask=live)
        natural = tl.where(tl.abs(minimum) == _LARGEST, minimum, minimum * _LN_2)
        tl.store(out + 2 * all_rows, tl.where(sound, natural, nan), mask=live)
        tl.store(out + 3 * all_rows, tl.where(sound, mean * _LN_2, nan), mask=live)
        variance = spread / tl.maximum(count.to(tl.float32), 1.0) * (_LN_2 * _LN_2)
        tl.store(out + 4 * all_rows, tl.where(sound, variance, nan), mask=live)
        entropy = tl.where(count > 0, tl.maximum(log_total - moment * inverse * _LN_2, 0.0), 0.0)
        tl.store(out + 5 * all_rows, tl.where(sound, entropy, nan), mask=live)
        tl.store(out + 6 * all_rows, tl.where(sound, square * inverse * inverse, nan), mask=live)
        tl.store(out + 7 * all_rows, tl.where(sound, cube * inverse * inverse * inverse, nan), mask=live)
        tl.store(out + 8 * all_rows, tl.where(sound, sink_weight * inverse, nan), mask=live)
        tl.store(keys + flat, count.to(tl.int64), mask=live)


@triton.jit(do_not_specialize=("entries", "heads", "n_rows"))
def digest_heads(
    largest_logit, entropy, keys, largest, mean, entries, heads, n_rows, SINKS: tl.constexpr, BLOCK: tl.constexpr
):
    """For one head the largest finite logit, and the mean of entropy / ln n over the rows that see enough keys."""
    head = tl.program_id(0)
    all_rows = entries.to(tl.int64) * heads * n_rows
    # Enough is 16, or what the longest row of any head sees: usually the first block has a row that sees 16.
    most, start = tl.full((), 0, tl.int64), tl.full((), 0, tl.int64)
    while (start < all_rows) & (most < ENOUGH):
        at = start + tl.arange(0, BLOCK)
        most = tl.maximum(most, tl.max(tl.load(keys + at, mask=at < all_rows, other=0)))
        start += BLOCK
    most = tl.maximum(tl.minimum(most, ENOUGH), 1)
    high = tl.full((BLOCK,), float("-inf"), tl.float32)
    total, count = tl.zeros((BLOCK,), tl.float32), tl.zeros((BLOCK,), tl.int32)
    of_entry = head.to(tl.int64) * n_rows
    for _ in range(entries):
        for start_row in range(0, n_rows, BLOCK):
            row = start_row + tl.arange(0, BLOCK)
            live = row < n_rows
            at = of_entry + row
            seen = tl.load(keys + at, mask=live, other=0)
            logit = tl.load(largest_logit + at, mask=live, other=float("-inf"))
            high = tl.maximum(high, tl.where(logit - logit == 0, logit, float("-inf")))
            outcomes = (seen + SINKS).to(tl.float32)
            ratio = tl.load(entropy + at, mask=live, other=0.0) / tl.log(tl.maximum(outcomes, 2.0))
            use = live & (seen >= most) & (outcomes > 1) & (ratio - ratio == 0)
            total += tl.where(use, ratio, 0.0)
            count += use.to(tl.int32)
        of_entry += heads.to(tl.int64) * n_rows
    number = tl.sum(count)
    tl.store(largest + head, tl.max(high))
    tl.store(mean + head, tl.where(number > 0, tl.sum(total) / tl.maximum(number, 1).to(tl.float32), float("nan")))


@cache
def autotuned(sizes):
    """The kernel with the sizes of blocks that are fastest when tried.

    Trying waits for the device, and other blocks round differently: so this runs only where it was asked for.
    """
    configs = [
        triton.Config({"BLOCK_ROWS": s.rows, "BLOCK_KEYS": s.keys}, num_warps=s.warps, num_stages=s.stages)
        for s in sizes
    ]
    return triton.autotune(configs, key=["n_rows", "n_key", "d_k"])(read_rows)
