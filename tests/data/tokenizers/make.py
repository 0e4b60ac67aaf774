"""Makes the files of this folder: see README.md. Needs the PyPI packages gguf, sentencepiece, tokenizers and xllamacpp.

Usage: make.py ORACLE HYBRID CORPUS [COUNT [SEED]]
ORACLE and HYBRID are the folders of the oracle data, CORPUS any English text of a few pages; COUNT random texts (90).
Files that are there are kept, so that their ids stay; remove them to make them anew.
"""

import collections
import ctypes
import json
import os
import random
import re
import sys
import tempfile

import gguf
import sentencepiece
import tokenizers
import xllamacpp
from tokenizers import pre_tokenizers

HERE = os.path.dirname(os.path.abspath(__file__))
CONTROL = ["<|endoftext|>", "<|im_start|>", "<|im_end|>"]
DEFINED = ["<think>", "</think>"]
PRE = ["llama-bpe", "glm4", "chatglm-bpe", "smollm", "gpt-2", "gpt-4o", "default"]
PIECES = (
    "a b the The THE River wonderful light Ab xYz é É ñ ß ſ İ ǅ ʰ ª א ع ह ि ้ ก 川 日本 의 あ ー 𝒳 ½ ² Ⅷ ٣ 0 7 42 123 12345 ' 's 'S 'T "
    "'ll 'LL 'Re 've 'd 'm ’s 'ſ . , ; : ! ? ... --- $ + < = > ^ ~ | ` _ / // \\ ( ) [ ] { } \" # % & * @ - 。 、 — « » € § ° © ™ 🙂 "
    "👩‍💻 ❤️ \u0301 \u200d \u200b \ufeff \u00ad \x00 \x7f \u0085 \u2028 \u3000 \u00a0 \u2009 <s> </s> <unk> <|im_start|> <|im_end|> <think> "
    "</think> <0x0A> ▁ ▁▁ \ufffd \ue000 \U0010ffff \u0378"
).split(" ") + [" ", " ", " ", "  ", "   ", "\t", "\n", "\n", "\n\n", "\r\n", "\r", " \n", "\v", "\f"]
# Here llama.cpp's "gpt-4o" departs from the pattern that the models were trained with.
DEPARTURES = ["THE❤\ufe0f@\n[\nǅ", "12345 \n\u0e49's", "\u093f\u00f1\ufffd's ʰ\u0e49ǅ", "'ſ'd;'m\u0e49'Re)"]
GPT_4O = (
    r"[^\r\n\p{L}\p{N}]?[\p{Lu}\p{Lt}\p{Lm}\p{Lo}\p{M}]*[\p{Ll}\p{Lm}\p{Lo}\p{M}]+(?i:'s|'t|'re|'ve|'m|'ll|'d)?"
    r"|[^\r\n\p{L}\p{N}]?[\p{Lu}\p{Lt}\p{Lm}\p{Lo}\p{M}]+[\p{Ll}\p{Lm}\p{Lo}\p{M}]*(?i:'s|'t|'re|'ve|'m|'ll|'d)?"
    r"|\p{N}{1,3}| ?[^\s\p{L}\p{N}]+[\r\n/]*|\s*[\r\n]+|\s+(?!\S)|\s+"
)


def random_texts(count, seed):
    pick = random.Random(seed)
    return ["".join(pick.choice(PIECES) for _ in range(pick.randint(1, 12))) for _ in range(count)]


def read(path):
    fields = gguf.GGUFReader(path).fields
    return {key: fields[key].contents() for key in fields if key.startswith("tokenizer.")}


def write(path, values):
    """A GGUF with a vocabulary and no tensors."""
    out = gguf.GGUFWriter(path, "llama")
    out.add_block_count(1)
    out.add_context_length(64)
    out.add_embedding_length(64)
    out.add_feed_forward_length(64)
    out.add_head_count(1)
    out.add_layer_norm_rms_eps(1e-5)
    for key, value in values.items():
        add = {bool: out.add_bool, str: out.add_string, int: out.add_uint32, list: out.add_array}[type(value)]
        add(key, value)
    out.write_header_to_file()
    out.write_kv_data_to_file()
    out.write_tensors_to_file()
    out.close()


def learn_bpe(texts, count):
    """Byte-level tokens with merges learnt across word borders, so that a wrong border shows in the ids."""
    printable = [b for b in range(256) if 0x21 <= b <= 0x7E or 0xA1 <= b <= 0xAC or 0xAE <= b]
    rest = iter(range(256, 512))
    alphabet = [chr(b) if b in printable else chr(next(rest)) for b in range(256)]
    spell = lambda text: [alphabet[b] for b in text.encode()]
    runs = [spell(part) for text in texts for part in re.split(r"<[^ ]*?>", text)]
    merges, tokens = [], list(alphabet)
    for _ in range(count):
        pairs = collections.Counter(p for run in runs for p in zip(run, run[1:]) if len(p[0] + p[1]) <= 14)
        (left, right), _ = max(pairs.items(), key=lambda pair: (pair[1], pair[0]))
        merges.append(f"{left} {right}")
        if left + right not in tokens:
            tokens.append(left + right)
        for run in runs:
            at = 0
            while at + 1 < len(run):
                if run[at] == left and run[at + 1] == right:
                    run[at : at + 2] = [left + right]
                at += 1
    # Words that no merge reaches: some splits take them as a whole.
    for word in [" wonderful", " lighthouse", "zebra", " 日本"]:
        if "".join(spell(word)) not in tokens:
            tokens.append("".join(spell(word)))
    normal = len(tokens)
    return {
        "tokenizer.ggml.model": "gpt2",
        "tokenizer.ggml.pre": "qwen2",
        "tokenizer.ggml.tokens": tokens + CONTROL + DEFINED,
        "tokenizer.ggml.token_type": [1] * normal + [3] * len(CONTROL) + [4] * len(DEFINED),
        "tokenizer.ggml.merges": merges,
        "tokenizer.ggml.bos_token_id": normal,
        "tokenizer.ggml.eos_token_id": normal + 2,
    }


def learn_spm(corpus, texts, folder):
    with open(f"{folder}/corpus.txt", "w") as out:
        out.write(open(corpus).read() + "\n" + "\n".join(text.replace("\x00", "") for text in texts[:60]))
    sentencepiece.SentencePieceTrainer.train(
        input=f"{folder}/corpus.txt", model_prefix=f"{folder}/spm", vocab_size=900, model_type="bpe", byte_fallback=True,
        character_coverage=0.99, user_defined_symbols=DEFINED, control_symbols=CONTROL[1:], split_digits=True,
        allow_whitespace_only_pieces=True, normalization_rule_name="identity", remove_extra_whitespaces=False, num_threads=1,
    )
    model = sentencepiece.SentencePieceProcessor(model_file=f"{folder}/spm.model")

    def kind(token):
        special = [(model.is_unknown(token), 2), (model.is_control(token), 3), (model.is_byte(token), 6)]
        return next((kind for found, kind in special if found), 4 if model.id_to_piece(token) in DEFINED else 1)

    ids = range(model.vocab_size())
    return {
        "tokenizer.ggml.model": "llama",
        "tokenizer.ggml.tokens": [model.id_to_piece(token) for token in ids],
        "tokenizer.ggml.scores": [float(model.get_score(token)) for token in ids],
        "tokenizer.ggml.token_type": [kind(token) for token in ids],
        "tokenizer.ggml.bos_token_id": model.bos_id(),
        "tokenizer.ggml.eos_token_id": model.eos_id(),
        "tokenizer.ggml.unknown_token_id": model.unk_id(),
    }


class Params(ctypes.Structure):
    """llama_model_params, larger than it is; VOCAB_ONLY is the place of its first flag in xllamacpp 2026.10.11549."""

    VOCAB_ONLY = 72
    _fields_ = [("bytes", ctypes.c_ubyte * 256)]


class Llama:
    """llama.cpp's tokenizer of one file."""

    library = ctypes.CDLL(os.path.join(os.path.dirname(xllamacpp.__file__), "xllamacpp.abi3.so"), mode=ctypes.RTLD_GLOBAL)
    quiet = ctypes.CFUNCTYPE(None, ctypes.c_int, ctypes.c_char_p, ctypes.c_void_p)(lambda *_: None)

    def __init__(self, path):
        lib = self.library
        lib.llama_log_set(self.quiet, None)
        lib.llama_model_default_params.restype = Params
        lib.llama_model_load_from_file.restype = lib.llama_model_get_vocab.restype = ctypes.c_void_p
        lib.llama_model_load_from_file.argtypes = [ctypes.c_char_p, Params]
        lib.llama_model_get_vocab.argtypes = lib.llama_vocab_n_tokens.argtypes = [ctypes.c_void_p]
        lib.llama_vocab_is_eog.argtypes, lib.llama_vocab_is_eog.restype = [ctypes.c_void_p, ctypes.c_int], ctypes.c_bool
        text, number, flag, pointer = ctypes.c_char_p, ctypes.c_int, ctypes.c_bool, ctypes.c_void_p
        lib.llama_tokenize.argtypes = [pointer, text, number, pointer, number, flag, flag]
        lib.llama_detokenize.argtypes = [pointer, pointer, number, text, number, flag, flag]
        params = lib.llama_model_default_params()
        params.bytes[Params.VOCAB_ONLY] = 1
        self.vocabulary = lib.llama_model_get_vocab(lib.llama_model_load_from_file(path.encode(), params))

    def encode(self, text, ends=False, parse=True):
        data = text.encode()
        ids = (ctypes.c_int32 * (len(data) + 16))()
        return ids[: self.library.llama_tokenize(self.vocabulary, data, len(data), ids, len(ids), ends, parse)]

    def decode(self, ids):
        out = ctypes.create_string_buffer(64 * len(ids) + 64)
        array = (ctypes.c_int32 * max(1, len(ids)))(*ids)
        size = self.library.llama_detokenize(self.vocabulary, array, len(ids), out, len(out), False, True)
        return out.raw[:size].decode(errors="replace")

    def ids(self, texts):
        count = self.library.llama_vocab_n_tokens(self.vocabulary)
        return {
            "parsed": [self.encode(text) for text in texts],
            "plain": [self.encode(text, parse=False) for text in texts],
            "ends": [self.encode(text, ends=True) for text in texts[:8]],
            "eog": [token for token in range(count) if self.library.llama_vocab_is_eog(self.vocabulary, token)],
        }


def gpt_4o(vocabulary, control):
    """The pattern itself, by the library that the models were made with."""
    ids = {token: number for number, token in enumerate(vocabulary["tokenizer.ggml.tokens"])}
    merges = [tuple(merge.split(" ", 1)) for merge in vocabulary["tokenizer.ggml.merges"]]
    out = tokenizers.Tokenizer(tokenizers.models.BPE(vocab=ids, merges=merges))
    split = pre_tokenizers.Split(tokenizers.Regex(GPT_4O), "isolated")
    byte_level = pre_tokenizers.ByteLevel(add_prefix_space=False, use_regex=False)
    out.pre_tokenizer = pre_tokenizers.Sequence([split, byte_level])
    out.add_special_tokens(CONTROL if control else [])
    out.add_tokens(DEFINED)
    return lambda texts: [out.encode(text).ids for text in texts]


def main(oracle, hybrid, corpus, count=90, seed=1):
    folder = tempfile.mkdtemp()
    here = lambda name: os.path.join(HERE, name)
    files = [f"{oracle}/{name}.json" for name in ["tokenizers/qwen2", "tokenizers/llama-bpe", "smollm2/tokenizer"]]
    texts = [case["text"] for file in files for case in json.load(open(file))["cases"]]
    texts = list(dict.fromkeys(texts)) + DEPARTURES + random_texts(int(count), int(seed))
    if not os.path.exists(here("bpe.gguf")):
        write(here("bpe.gguf"), learn_bpe(random_texts(1500, 99) + texts, 900))
    if not os.path.exists(here("spm.gguf")):
        write(here("spm.gguf"), learn_spm(corpus, texts, folder))
    for name, model in [("qwen35", "qwen35moe"), ("gpt-4o", "gpt-oss-mxfp4")]:
        write(here(f"{name}.gguf"), read(f"{hybrid}/models/{model}.gguf"))
    out = {"texts": texts, "bpe": {}, "spm": {}}
    bpe = read(here("bpe.gguf"))
    for pre in PRE:
        write(f"{folder}/one.gguf", bpe | {"tokenizer.ggml.pre": pre})
        out["bpe"][pre] = Llama(f"{folder}/one.gguf").ids(texts)
    out["bpe"]["gpt-4o"] |= {"parsed": gpt_4o(bpe, True)(texts), "plain": gpt_4o(bpe, False)(texts)}
    no_prefix = {"add_space_prefix": False, "add_bos_token": False, "add_eos_token": True}
    for name, extra in {"usual": {}, "no-prefix": no_prefix}.items():
        changed = {f"tokenizer.ggml.{key}": value for key, value in extra.items()}
        write(f"{folder}/one.gguf", read(here("spm.gguf")) | changed)
        model = Llama(f"{folder}/one.gguf")
        out["spm"][name] = model.ids(texts)
        out["spm"][name]["detokenized"] = [model.decode(ids) for ids in out["spm"][name]["parsed"]]
    with open(here("reference.json"), "w") as file:
        json.dump(out, file, ensure_ascii=False, separators=(",", ":"))


main(*sys.argv[1:])
