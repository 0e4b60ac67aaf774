"""Makes `families.json`: ids by the library that the models were made with, for each way of cutting words.

Usage: families.py. Needs the PyPI packages gguf and tokenizers (0.23). Texts are those of `reference.json`, and TEXTS; the
vocabulary is that of `bpe.gguf`. The patterns are those of the families' `tokenizer.json`.
"""

import json
import os

import gguf
from tokenizers import AddedToken, Regex, Tokenizer, models, normalizers, pre_tokenizers

HERE = os.path.dirname(os.path.abspath(__file__))
CONTRACTIONS = r"(?i:'s|'t|'re|'ve|'m|'ll|'d)"
ENGLISH = CONTRACTIONS + r"|[^\r\n\p{L}\p{N}]?\p{L}+|"
TAIL = r"| ?[^\s\p{L}\p{N}]+[\r\n]*|\s*[\r\n]+|\s+(?!\S)|\s+"
GPT2 = r"'s|'t|'re|'ve|'m|'ll|'d| ?\p{L}+| ?\p{N}+| ?[^\s\p{L}\p{N}]+|\s+(?!\S)|\s+"
UPPER, LOWER = r"[\p{Lu}\p{Lt}\p{Lm}\p{Lo}\p{M}]", r"[\p{Ll}\p{Lm}\p{Lo}\p{M}]"
CASED = lambda end: rf"[^\r\n\p{{L}}\p{{N}}]?{UPPER}*{LOWER}+{end}|[^\r\n\p{{L}}\p{{N}}]?{UPPER}+{LOWER}*{end}|"
SLASH = r"| ?[^\s\p{L}\p{N}]+[\r\n/]*|\s*[\r\n]+|\s+(?!\S)|\s+"
GPT4O = CASED(CONTRACTIONS + "?") + r"\p{N}{1,3}" + SLASH
QWEN2 = ENGLISH + r"\p{N}" + TAIL
HAN = "[一-龥ࠀ-一가-\ud7ff]+"
CJK = "[一-龥\u3040-ゟ゠-ヿ]+"
V3 = (
    r"""[!"#$%&'()*+,\-./:;<=>?@\[\\\]^_`{|}~][A-Za-z]+|[^\r\n\p{L}\p{P}\p{S}]?[\p{L}\p{M}]+"""
    r"| ?[\p{P}\p{S}]+[\r\n]*|\s*[\r\n]+|\s+(?!\S)|\s+"
)
BLOOM = r" ?[^(\s|.,!?…。，、।۔،)]+"
KIMI_UPPER, KIMI_LOWER = UPPER[:-1] + r"&&[^\p{Han}]]", LOWER[:-1] + r"&&[^\p{Han}]]"
KIMI = (
    rf"[\p{{Han}}]+|[^\r\n\p{{L}}\p{{N}}]?{KIMI_UPPER}*{KIMI_LOWER}+{CONTRACTIONS}?"
    rf"|[^\r\n\p{{L}}\p{{N}}]?{KIMI_UPPER}+{KIMI_LOWER}*{CONTRACTIONS}?|\p{{N}}{{1,3}}" + TAIL
)
NFC = {"qwen2", "qwen35", "command-r", "olmo"}
MERGES_FIRST = {"llama-bpe", "tekken", "glm4", "minicpm5"}
FAMILIES = {
    "llama-bpe": [ENGLISH + r"\p{N}{1,3}" + TAIL],
    "glm4": [ENGLISH + r"\p{N}{1,3}" + TAIL],
    "dbrx": [ENGLISH + r"\p{N}{1,3}" + TAIL],
    "qwen2": [QWEN2],
    "deepseek-r1-qwen": [QWEN2],
    "qwen35": [CONTRACTIONS + r"|[^\r\n\p{L}\p{N}]?[\p{L}\p{M}]+|\p{N}| ?[^\s\p{L}\p{M}\p{N}]+[\r\n]*|\s*[\r\n]+|\s+(?!\S)|\s+"],
    "smollm": [r"\p{N}", GPT2],
    "command-r": [r"\p{N}", GPT2],
    "gpt-2": [GPT2],
    "olmo": [GPT2],
    "gpt-4o": [GPT4O],
    "tekken": [CASED("") + r"\p{N}" + SLASH],
    "deepseek-coder": [r"[\r\n]", r"\s?\p{L}+", r"\s?\p{P}+", HAN, r"\p{N}"],
    "deepseek-v3": [r"\p{N}{1,3}", CJK, V3],
    "falcon": [r"[\p{P}\$\+<=>\^~\|`]+", GPT2, r"[0-9][0-9][0-9]"],
    "seed-coder": [ENGLISH + r"\p{N}{1}| ?[^\s\p{L}\p{N}\r\n]+|\s*[\r\n]+|\s+(?!\S)|\s+"],
    "bloom": [BLOOM],
    "viking": [BLOOM, r"\p{N}"],
    "chameleon": [r"<sentinel:[0-9]+>", r"(IMGIMG)((A|B|C|D|E|F|G|H|I){1,4})Z", r"([\t\n]|    |  )", r"\p{N}",
                  r"[\p{P}!-/:-@\[-`{-~]", GPT2],
    "superbpe": [r"\p{N}+", r"(?=(\d{3})+(?!\d))"],
    "tiny_aya": [r"\d{1,3}(?=(?:\d{3})*\b)", GPT4O],
    "bailingmoe": [r"'(?i:[sdmt]|ll|ve|re)|[^\r\n\p{L}\p{N}]?+\p{L}+|\p{N}| ?[^\s\p{L}\p{N}]++[\r\n]*|\s*[\r\n]|\s+(?!\S)|\s+"],
    "kimi-k2": [KIMI],
    "laguna": [r"[^\n]+|[\n]+", QWEN2],
    "exaone-moe": [CONTRACTIONS + r"|[^\r\n\p{L}\p{N}]?(?:\p{L}\p{M}*(?: \p{L}\p{M}*)*)+|\p{N}| ?[^\s\p{L}\p{N}]+[\r\n/]?|\s*[\r\n]|\s+(?!\S)|\s+"],
    "minicpm5": [r"\p{N}{1,3}", ENGLISH + r"\p{N}+" + TAIL],
    "ufakzeka": [r"[^\r\n\p{L}\p{N}]?\p{L}+|\p{N}" + TAIL],
}
TEXTS = [
    "cafe\u0301 n\u0303andu\u0301 u\u0308ber", "\u1112\u1161\u11ab\u1100\u1173\u11af 한글", "\u212b \u2126 \u0958 e\u0323\u0302",
    "x = foo(1234567, 'it''s'); // 日本語とカタカナ\r\n\r\n\treturn -1;", "camelCase HTTPServer XMLHttpRequest2 ÄÖÜäöü", "1234 1234a 12 123 1234567890",
    "<sentinel:12> IMGIMGABZ a    b  c\td", "one, two (three) … vier。fünf", "a b c d e  f\u0301 g", "I'M you'LL we'Re 'tis rock'n'roll",
    "if (x->y != 3.14159) { s += \"%d\\n\"; }", "Ｆｕｌｌ　ｗｉｄｔｈ！？ 、。", "Привет, мир! Ελληνικά Αθήνα ქართული", "~!@#$%^&*()_+`-={}|[]\\:\";'<>?,./",
]


def main():
    fields = gguf.GGUFReader(os.path.join(HERE, "bpe.gguf")).fields
    read = lambda key: fields["tokenizer.ggml." + key].contents()
    tokens, kinds = read("tokens"), read("token_type")
    merges = [tuple(merge.split(" ", 1)) for merge in read("merges")]
    texts = json.load(open(os.path.join(HERE, "reference.json")))["texts"] + TEXTS
    out = {"texts": texts, "families": {}}
    for name, patterns in FAMILIES.items():
        ids = {}
        for mode, control in [("parsed", True), ("plain", False)]:
            vocabulary = {token: number for number, token in enumerate(tokens)}
            tokenizer = Tokenizer(models.BPE(vocab=vocabulary, merges=merges, ignore_merges=name in MERGES_FIRST))
            cuts = [pre_tokenizers.Split(Regex(pattern), "isolated") for pattern in patterns]
            tokenizer.pre_tokenizer = pre_tokenizers.Sequence(
                cuts + [pre_tokenizers.ByteLevel(add_prefix_space=False, use_regex=False)])
            if name in NFC:
                tokenizer.normalizer = normalizers.NFC()
            added = lambda kind, special: [
                AddedToken(t, special=special, normalized=False) for t, k in zip(tokens, kinds) if k == kind]
            if control:
                tokenizer.add_special_tokens(added(3, True))
            tokenizer.add_tokens(added(4, False))
            ids[mode] = [tokenizer.encode(text, add_special_tokens=False).ids for text in texts]
        out["families"][name] = ids
    with open(os.path.join(HERE, "families.json"), "w") as file:
        json.dump(out, file, ensure_ascii=False, separators=(",", ":"))


main()
