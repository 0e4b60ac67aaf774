#!/usr/bin/env python3
"""Writes golden.json: what YaRN makes of rope frequencies, and logits of the oracle model `qwen3moe-f32` with YaRN keys.

Everything is computed in f64 from the formulas of the YaRN paper (arXiv 2309.00071, sections 3.2 to 3.4), with the rounded corrections
that model files expect. Needs only Python. `make.py --check` compares the plain pass with llama.cpp's logits of the oracle instead.
"""

import json, math, pathlib, struct, sys

HERE = pathlib.Path(__file__).parent
ORACLE = HERE.parent / "oracle"


def yarn(base, rotated, factor, original, fast=32.0, slow=1.0, extrapolated=1.0, attention=1.0):
    """Radians per position of each pair, and what rotated elements are multiplied by."""
    def pair_of(turns):
        return rotated * math.log(original / (turns * 2 * math.pi)) / (2 * math.log(base))
    low = max(0, math.floor(pair_of(fast)))
    high = min(rotated - 1, math.ceil(pair_of(slow)))
    frequencies = []
    for pair in range(rotated // 2):
        plain = base ** (-2 * pair / rotated)
        kept = extrapolated * (1 - min(1, max(0, (pair - low) / max(0.001, high - low))))
        frequencies.append(plain / factor * (1 - kept) + plain * kept)
    return frequencies, attention * (1 + 0.1 * math.log(factor) if extrapolated else 1)


class Gguf:
    SIZES = {0: "B", 1: "b", 2: "H", 3: "h", 4: "I", 5: "i", 6: "f", 7: "?", 10: "Q", 11: "q", 12: "d"}

    def __init__(self, path):
        self.data, self.at, self.keys, self.infos = path.read_bytes(), 24, {}, {}
        tensors, keys = struct.unpack("<QQ", self.data[8:24])
        for _ in range(keys):
            key = self.text()
            self.keys[key] = self.value(self.take("I"))
        for _ in range(tensors):
            name = self.text()
            dims = [self.take("Q") for _ in range(self.take("I"))]
            assert self.take("I") == 0, "F32 only"
            self.infos[name] = dims, self.take("Q")
        self.start = (self.at + 31) // 32 * 32

    def take(self, of):
        (value,) = struct.unpack_from("<" + of, self.data, self.at)
        self.at += struct.calcsize("<" + of)
        return value

    def text(self):
        length = self.take("Q")
        self.at += length
        return self.data[self.at - length:self.at].decode("utf-8", "replace")

    def value(self, kind):
        if kind == 8:
            return self.text()
        if kind == 9:
            element, count = self.take("I"), self.take("Q")
            return [self.value(element) for _ in range(count)]
        return self.take(self.SIZES[kind])

    def rows(self, name):
        """Rows of the tensor, all matrices one after the other."""
        dims, offset = self.infos[name]
        count = math.prod(dims)
        flat = struct.unpack_from(f"<{count}f", self.data, self.start + offset)
        return [flat[i:i + dims[0]] for i in range(0, count, dims[0])]


def dot(a, b):
    return sum(map(float.__mul__, a, b))


def product(rows, x):
    return [dot(row, x) for row in rows]


def norm(x, weight, eps):
    scale = 1 / math.sqrt(sum(v * v for v in x) / len(x) + eps)
    return [v * scale * w for v, w in zip(x, weight)]


def logits(gguf, tokens, frequencies, magnitude, last):
    key = lambda name: gguf.keys["qwen3moe." + name]
    heads, kv_heads, dim = key("attention.head_count"), key("attention.head_count_kv"), key("attention.key_length")
    eps, used, hidden, half = key("attention.layer_norm_rms_epsilon"), key("expert_used_count"), key("expert_feed_forward_length"), dim // 2

    def turned(head, position):
        out = list(head)
        for j, frequency in enumerate(frequencies):
            c, s = math.cos(position * frequency) * magnitude, math.sin(position * frequency) * magnitude
            out[j], out[j + half] = head[j] * c - head[j + half] * s, head[j] * s + head[j + half] * c
        return out

    table = gguf.rows("token_embd.weight")
    states = [list(table[token]) for token in tokens]
    for layer in range(key("block_count")):
        of = lambda name: gguf.rows(f"blk.{layer}.{name}.weight")
        attn_norm, q_norm, k_norm, ffn_norm = (of(name)[0] for name in ("attn_norm", "attn_q_norm", "attn_k_norm", "ffn_norm"))
        wq, wk, wv, wo, router = of("attn_q"), of("attn_k"), of("attn_v"), of("attn_output"), of("ffn_gate_inp")
        gate, up, down = of("ffn_gate_exps"), of("ffn_up_exps"), of("ffn_down_exps")
        keys, values = [], []
        for position, x in enumerate(states):
            a = norm(x, attn_norm, eps)
            split = lambda rows: [rows[i:i + dim] for i in range(0, len(rows), dim)]
            q = [turned(norm(h, q_norm, eps), position) for h in split(product(wq, a))]
            keys.append([turned(norm(h, k_norm, eps), position) for h in split(product(wk, a))])
            values.append(split(product(wv, a)))
            mixed = []
            for head in range(heads):
                kv = head * kv_heads // heads
                scores = [dot(q[head], k[kv]) / math.sqrt(dim) for k in keys]
                top = max(scores)
                weights = [math.exp(score - top) for score in scores]
                total = sum(weights)
                mixed += [sum(w * v[kv][d] for w, v in zip(weights, values)) / total for d in range(dim)]
            h = [u + v for u, v in zip(x, product(wo, mixed))]
            f = norm(h, ffn_norm, eps)
            scores = product(router, f)
            top = max(scores)
            chances = [math.exp(score - top) for score in scores]
            chosen = sorted(range(len(scores)), key=lambda e: (-chances[e], e))[:used]
            total = sum(chances[e] for e in chosen)
            for e in chosen:
                g, u = product(gate[e * hidden:(e + 1) * hidden], f), product(up[e * hidden:(e + 1) * hidden], f)
                inner = [a / (1 + math.exp(-a)) * b for a, b in zip(g, u)]
                width = len(h)
                h = [s + chances[e] / total * o for s, o in zip(h, product(down[e * width:(e + 1) * width], inner))]
            states[position] = h
    head, out_norm = gguf.rows("output.weight"), gguf.rows("output_norm.weight")[0]
    return [product(head, norm(x, out_norm, eps)) for x in states[-last:]]


def main():
    gguf = Gguf(ORACLE / "models" / "qwen3moe-f32.gguf")
    base, rotated = gguf.keys["qwen3moe.rope.freq_base"], gguf.keys["qwen3moe.rope.dimension_count"]
    if sys.argv[1:] == ["--check"]:
        case = json.loads((ORACLE / "cases" / "qwen3moe-f32.json").read_text())["cases"][0]
        raw = (ORACLE / "cases" / case["logits"]).read_bytes()
        start = raw.index(b"\n") + 1
        wanted = struct.unpack_from(f"<{(len(raw) - start) // 4}f", raw, start)
        tokens = case["tokens"]
        found = sum(logits(gguf, tokens, yarn(base, rotated, 1.0, 4096)[0], 1.0, len(tokens)), [])
        size = math.sqrt(sum(v * v for v in wanted) / len(wanted))
        print("largest difference by the RMS:", max(abs(a - b) for a, b in zip(found, wanted, strict=True)) / size)
        return
    ropes = []
    for settings in (
        dict(base=1e6, rotated=128, factor=4.0, original=32768),                             # Qwen3 as published
        dict(base=1e6, rotated=64, factor=2.0, original=32768),
        dict(base=150000.0, rotated=64, factor=32.0, original=4096),
        dict(base=1e4, rotated=64, factor=8.0, original=4096, fast=16.0, slow=2.0),
        dict(base=5e5, rotated=128, factor=16.0, original=8192, attention=0.5),
        dict(base=1e6, rotated=64, factor=4.0, original=64, extrapolated=0.0),
        dict(base=1e6, rotated=64, factor=4.0, original=16),                                 # the ramp begins below pair 0
    ):
        frequencies, magnitude = yarn(**settings)
        ropes.append(dict(settings, frequencies=frequencies, magnitude=magnitude))
    model = dict(factor=4.0, original=24)
    tokens = [(7 * i * i + 3 * i + 11) % 500 for i in range(90)]
    rows = logits(gguf, tokens, *yarn(base, rotated, **model), 2)
    rounded = [[float(f"{value:.9g}") for value in row] for row in rows]
    text = json.dumps(dict(ropes=ropes, model=dict(model, tokens=tokens, logits=rounded)))
    (HERE / "golden.json").write_text(text + "\n")


main()
