#!/usr/bin/env python3
"""Model folders, token files and configurations as people publish them, and damaged as they arrive, each with its verdict: it
trains, or is refused in one message that says the words given here. All are made from a small recorded model and a few numbers.
Usage: published_files_test.py --zero3d BINARY [TEST...]"""
import gzip
import json
import pickle
import shutil
import struct
import unittest

import support
from support import MODELS, CommandTest, read_safetensors

MODEL = MODELS / "llama-tiny"  # a vocabulary of 257
TRAINS = object()  # the verdict of what is taken
LFS = b"version https://git-lfs.github.com/spec/v1\noid sha256:4d7a214614ab2935c943f9e0ff69d22e\nsize 548105171\n"
WEIGHTS = "model.safetensors"
INDEX = "model.safetensors.index.json"


# Model folders: the changes of each to the recorded one, file by file (None: it is not there).

def pack(header, data, length=None):
    text = header if isinstance(header, bytes) else json.dumps(header).encode()
    return struct.pack("<Q", len(text) if length is None else length) + text + data


def unpack(raw):
    size = struct.unpack("<Q", raw[:8])[0]
    entries = json.loads(raw[8:8 + size])
    entries.pop("__metadata__", None)
    return entries, raw[8 + size:]


def header(change):
    """The weights with another header: `change` gets it as a dict, and may return another one."""
    def changed(raw):
        entries, data = unpack(raw)
        return pack(change(entries) or entries, data)
    return changed


def entry(change, name="model.norm.weight"):
    return header(lambda entries: change(entries[name]))


def renamed(rename):
    return header(lambda entries: {rename(name): value for name, value in entries.items()})


def sharded(where, name="model-00001-of-00001.safetensors", index=None):
    """All weights in one shard; the index says that they lie at `where`."""
    def files(raw):
        names = list(unpack(raw)[0])
        named = index(names) if index else {"metadata": {"total_size": 1}, "weight_map": {n: where for n in names}}
        return {WEIGHTS: None, name: raw, INDEX: json.dumps(named).encode()}
    return files


def mapped(index):
    """One shard, and the index that `index` makes of its tensors' names."""
    return sharded("", index=index)


def weights(change):
    """The weights' bytes changed."""
    return lambda raw: {WEIGHTS: change(raw)}


def padded(raw):
    entries, data = unpack(raw)
    return pack(json.dumps(entries).encode() + b" " * 24, data)


def listed_twice(raw, name="model.norm.weight"):
    entries, data = unpack(raw)
    return pack(json.dumps(entries)[:-1].encode() + b"," + json.dumps({name: entries[name]})[1:].encode(), data)


def without_the_last(entries):
    last = max(entries, key=lambda name: entries[name]["data_offsets"])
    return {name: value for name, value in entries.items() if name != last}


def over_another(entries):
    entries["model.norm.weight"].update(data_offsets=entries["model.layers.0.input_layernorm.weight"]["data_offsets"])


SHARD = "model-00001-of-00001.safetensors"
BIN = "pytorch_model.bin"
BIN_SHARD = "pytorch_model-00001-of-00001.bin"


def pickled(raw):
    """The weights as torch.save writes them."""
    entries, data = unpack(raw)
    return support.torch_file({name: (e["shape"], data[slice(*e["data_offsets"])]) for name, e in entries.items()})


def without(name):
    """The weights without one tensor, in order for all that."""
    def changed(raw):
        entries, data = unpack(raw)
        kept, parts = {}, b""
        for other, e in entries.items():
            if other != name:
                part = data[slice(*e["data_offsets"])]
                kept[other] = {**e, "data_offsets": [len(parts), len(parts) + len(part)]}
                parts += part
        return pack(kept, parts)
    return changed


def doubled_key():
    text = (MODEL / "config.json").read_text().rstrip().removesuffix("}")
    return (text + ', "rms_norm_eps": 0.1}').encode()


def with_file(name, data):
    return lambda raw: {WEIGHTS: None, name: data}


FOLDERS = [
    ("as it was saved", lambda raw: {}, TRAINS),
    ("metadata of PyTorch", weights(header(lambda e: {**e, "__metadata__": {"format": "pt"}})), TRAINS),
    ("metadata that is null", weights(header(lambda e: {**e, "__metadata__": None})), TRAINS),
    ("metadata that is no text", weights(header(lambda e: {**e, "__metadata__": {"step": 3}})), "__metadata__"),
    ("a header padded with blanks", weights(padded), TRAINS),
    ("names without the base model's prefix", weights(renamed(lambda n: n.removeprefix("model."))), TRAINS),
    ("names wrapped by DistributedDataParallel", weights(renamed(lambda n: "module." + n)), "module."),
    ("names wrapped by torch.compile", weights(renamed(lambda n: "_orig_mod." + n)), "_orig_mod."),
    ("names wrapped by both", weights(renamed(lambda n: "module._orig_mod." + n)), "module._orig_mod."),
    ("names of an adapter's wrapper", weights(renamed(lambda n: "base_model.model." + n)), "merge_and_unload"),
    ("names of the part of a larger model", weights(renamed(lambda n: "language_model." + n)), "a model of text and images"),
    ("names within a module of a trainer", weights(renamed(lambda n: "actor." + n)), 'begin with "actor."'),
    ("names with the base model's prefix twice", weights(renamed(lambda n: "model." + n)), 'begin with "model."'),
    ("layers wrapped by FSDP", weights(renamed(lambda n: n.replace("layers.0.", "layers.0._fsdp_wrapped_module."))), "full state"),
    ("layers compiled one by one", weights(renamed(lambda n: n.replace("layers.1.", "layers.1._orig_mod."))), "torch.compile"),
    ("layers with adapters around them", weights(renamed(lambda n: n.replace("q_proj.", "q_proj.base_layer."))), "merge_and_unload"),
    ("layers quantized by GPTQ", weights(renamed(lambda n: n.replace("q_proj.weight", "q_proj.qweight"))), "GPTQ"),
    ("a name of another architecture", weights(renamed(lambda n: n.replace("q_proj", "query"))), "q_proj"),
    ("one shard and its index", sharded(SHARD), TRAINS),
    ("./ before the name of a shard", sharded("./" + SHARD), TRAINS),
    ("a shard in another folder", sharded("../model-00001-of-00001.safetensors"), "../model-00001"),
    ("a shard by its absolute path", sharded("/tmp/model-00001-of-00001.safetensors"), "/tmp/model-00001"),
    ("a shard that is not there", sharded("model-00002-of-00002.safetensors"), "model-00002-of-00002.safetensors"),
    ("an index without weight_map", mapped(lambda names: {"metadata": {}}), "weight_map"),
    ("an index that is a list", mapped(lambda names: names), INDEX),
    ("an index whose weight_map holds numbers", mapped(lambda names: {"weight_map": {n: 1 for n in names}}), "weight_map"),
    ("an index that leaves a tensor out", mapped(lambda names: {"weight_map": {n: SHARD for n in names[1:]}}), TRAINS),
    ("an index with a tensor that no shard has", mapped(lambda names: {"weight_map": dict.fromkeys([*names, "lost"], SHARD)}),
     "lost"),
    ("an index that was not fetched", lambda raw: {WEIGHTS: None, INDEX: LFS}, f"{INDEX}: is a git-lfs pointer"),
    ("weights of llama.cpp alone", with_file("model-q4.gguf", b"GGUF"), "llama.cpp"),
    ("weights of llama.cpp alone, without a config", lambda raw: {WEIGHTS: None, "config.json": None, "q4.gguf": b"GGUF"}, "q4.gguf"),
    ("weights as Meta publishes them", lambda raw: {WEIGHTS: None, "config.json": None, "consolidated.00.pth": b"PK\x03\x04",
                                                    "params.json": b"{}"}, "consolidated.00.pth"),
    ("weights in a .pt", with_file("model.pt", b"PK\x03\x04"), "pickled by PyTorch"),
    ("a checkpoint of a trainer", with_file("last.ckpt", b"PK\x03\x04"), "last.ckpt"),
    ("weights that were not fetched", lambda raw: {WEIGHTS: LFS}, "git-lfs"),
    ("a config that was not fetched", lambda raw: {"config.json": LFS}, "config.json"),
    ("a page of an error instead of weights", lambda raw: {WEIGHTS: b"<!DOCTYPE html>Entry not found"}, "no safetensors file"),
    ("a shard without the index", lambda raw: {WEIGHTS: None, SHARD: raw}, "get the index"),
    ("weights of a variant", lambda raw: {WEIGHTS: None, "model.fp16.safetensors": raw}, "rename"),
    ("a folder of checkpoints", lambda raw: {
        WEIGHTS: None, "config.json": None, "checkpoint-500/config.json": b"{}"}, "checkpoint-500': give that folder"),
    ("the Hub's cache", lambda raw: {
        WEIGHTS: None, "config.json": None, "refs/main": b"0a", "snapshots/0a/config.json": b"{}"}, "snapshots/0a'"),
    ("a checkpoint of DeepSpeed", lambda raw: {
        WEIGHTS: None, "config.json": None, "latest": b"global_step5", "global_step5/x": b""}, "--resume"),
    ("a config of Meta's", lambda raw: {"config.json": None, "params.json": b"{}"}, "as save_pretrained writes it"),
    ("a key twice in the config", lambda raw: {"config.json": doubled_key()}, "'rms_norm_eps' stands twice"),
    ("a head that is in no file", weights(without("lm_head.weight")), '"tie_word_embeddings": true'),
    ("a page of an error instead of a config", lambda raw: {"config.json": b"Entry not found"}, "config.json"),
    ("an adapter of LoRA",
     lambda raw: {WEIGHTS: None, "config.json": None, "adapter_config.json": b"{}", "adapter_model.safetensors": raw},
     "config.json"),
    ("weights of PyTorch", lambda raw: {WEIGHTS: None, BIN: pickled(raw)}, TRAINS),
    ("weights of PyTorch in a shard", lambda raw: {WEIGHTS: None, BIN_SHARD: pickled(raw), BIN + ".index.json": json.dumps(
        {"weight_map": dict.fromkeys(unpack(raw)[0], BIN_SHARD)}).encode()}, TRAINS),
    ("weights of PyTorch cut off", lambda raw: {WEIGHTS: None, BIN: pickled(raw)[:-100]}, "no complete zip archive"),
    ("weights of PyTorch that were not fetched", with_file("pytorch_model.bin", LFS), "git-lfs"),
    ("a trainer's state under the name of weights", with_file("pytorch_model.bin", support.torch_file({})), "missing from the folder"),
    ("weights under another name", with_file("weights.safetensors", b""), WEIGHTS),
    ("an empty file", lambda raw: {WEIGHTS: b""}, "0 bytes in all"),
    ("a header's size alone", lambda raw: {WEIGHTS: raw[:8]}, "truncated"),
    ("cut off within the header", lambda raw: {WEIGHTS: raw[:100]}, "truncated"),
    ("cut off within the data", lambda raw: {WEIGHTS: raw[:-1]}, "truncated"),
    ("bytes after the data", lambda raw: {WEIGHTS: raw + b"\0"}, "bytes of data"),
    ("a header that claims 2^63 bytes", lambda raw: {WEIGHTS: pack(b"{}", b"", 2 ** 63)}, "format allows"),
    ("a header that is no JSON", lambda raw: {WEIGHTS: pack(b"{'a': 1}", b"")}, "header"),
    ("a header that is a list", lambda raw: {WEIGHTS: pack(b"[]", b"")}, "no JSON object"),
    ("a header nested without end", lambda raw: {WEIGHTS: pack(b'{"a":' * 10 ** 6, b"")}, "header"),
    ("a tensor listed twice", weights(listed_twice), "twice"),
    ("a tensor without a shape", weights(entry(lambda e: e.pop("shape") and None)), "model.norm.weight"),
    ("a tensor of an unknown dtype", weights(entry(lambda e: e.update(dtype="F42"))), "F42"),
    ("a tensor of integers", weights(entry(lambda e: e.update(dtype="I32"))), "I32"),
    ("a tensor of 8-bit floats", weights(entry(lambda e: e.update(dtype="F8_E4M3", shape=[4 * e["shape"][0]]))), "F8_E4M3"),
    ("a tensor of another shape", weights(entry(lambda e: e.update(shape=[2, e["shape"][0] // 2]))), "[2, 32]"),
    ("a shape whose product overflows", weights(entry(lambda e: e.update(shape=[2 ** 62, 2 ** 62]))), "impossible"),
    ("a negative extent", weights(entry(lambda e: e.update(shape=[-64]))), "model.norm.weight"),
    ("offsets in the wrong order", weights(entry(lambda e: e["data_offsets"].reverse())), "model.norm.weight"),
    ("offsets beyond the file", weights(entry(lambda e: e.update(data_offsets=[2 ** 40, 2 ** 40 + 256]))), "outside"),
    ("two tensors over the same bytes", weights(header(over_another)), "inside the tensor before it"),
    ("a tensor left out", weights(header(without_the_last)), "the tensors end at byte"),
    ("a config cut off", lambda raw: {"config.json": b'{"architectures": ["LlamaFor'}, "config.json"),
    ("a config that is a list", lambda raw: {"config.json": b"[]"}, "config.json"),
    ("a config that is not there", lambda raw: {"config.json": None}, "config.json"),
]


# Token files: name, contents, options, words.

def shorts(count=400, top=257):
    return struct.pack(f"<{count}H", *(i * 31 % top for i in range(count)))


def ints(letter, count=400, top=257):
    return struct.pack(f"<{count}{letter}", *(i * 31 % top for i in range(count)))


def npy(descr="<u2", shape="(400,)", data=None, order="False"):
    text = f"{{'descr': '{descr}', 'fortran_order': {order}, 'shape': {shape}, }}".ljust(117).encode() + b"\n"
    return b"\x93NUMPY\1\0" + struct.pack("<H", len(text)) + text + (shorts() if data is None else data)


def megatron(data, code, lengths=(150, 250), size=2, magic=b"MMIDIDX\0\0", version=1, pointers=None):
    """.bin and .idx"""
    pointers = pointers or [sum(lengths[:i]) * size for i in range(len(lengths))]
    index = magic + struct.pack("<QBQQ", version, code, len(lengths), len(lengths) + 1)
    index += struct.pack(f"<{len(lengths)}i{len(lengths)}q{len(lengths) + 1}q", *lengths, *pointers, *range(len(lengths) + 1))
    return {"data.bin": data, "data.idx": index}


def llmc(data, magic=20240520, version=1, count=400):
    return struct.pack("<256i", magic, version, count, *[0] * 253) + data


PROSE = b"It was a bright cold day in April, and the clocks were striking thirteen.\n" * 20
TOKENS = [
    ("uint16 of nanoGPT", "data.bin", shorts(), "auto", TRAINS),
    ("uint32 named for what it is", "data.u32", ints("I"), "auto", TRAINS),
    ("uint32 by the option", "data.bin", ints("I"), "u32", TRAINS),
    ("uint32 as .bin", "data.bin", ints("I"), "auto", "--data-format u32"),
    ("uint32 as uint16", "data.bin", ints("I"), "u16", "--data-format u32"),
    ("int64 as .bin", "data.bin", ints("q"), "auto", "--data-format npy"),
    ("uint16 as uint32", "data.bin", ints("H", 4000, 60000), "u32", "--data-format u16"),
    ("tokens as text", "data.txt", shorts(), "text", "--data-format u16"),
    ("tokens of 4 bytes as text", "data.txt", ints("I"), "text", "--data-format u32"),
    ("NumPy as text", "data.txt", npy(), "text", "--data-format npy"),
    ("zeros alone", "data.bin", bytes(800), "auto", "zeros alone"),
    ("zeros alone, many", "data.bin", bytes(200000), "u16", "zeros alone"),
    ("many zeros before the tokens", "data.bin", bytes(200000) + shorts(), "u16", TRAINS),
    ("an odd number of bytes", "data.bin", shorts() + b"\0", "auto", "801 bytes"),
    ("a pointer of git-lfs", "data.bin", LFS, "auto", "git lfs pull"),
    ("a pointer of git-lfs as text", "data.txt", LFS, "text", "git lfs pull"),
    ("gzip", "data.bin", gzip.compress(shorts()), "auto", "gunzip"),
    ("gzip as text", "data.txt.gz", gzip.compress(PROSE), "auto", "gunzip"),
    ("prose as .bin", "data.bin", PROSE, "auto", "--data-format text"),
    ("prose as text", "data.txt", PROSE, "auto", TRAINS),
    ("JSON lines as .bin", "data.bin", b'{"text": "It was a bright cold day"}\n' * 20, "auto", "JSON lines"),
    ("Parquet", "train.parquet", b"PAR1\x15\4" + shorts(), "auto", "Parquet"),
    ("labels of a data set", "data.u32", struct.pack("<400i", *(-100 if i % 3 else i * 31 % 257 for i in range(400))), "auto",
     "below 0"),
    ("uint32 of another machine", "data.u32", struct.pack(">400I", *(1 + i * 31 % 256 for i in range(400))), "auto", "big-endian"),
    ("floats", "data.bin", ints("f"), "auto", "floating-point"),
    ("what Python pickled", "data.bin", pickle.dumps([i * 31 % 257 for i in range(400)] * 2 + [b""]), "u16", "pickled"),
    ("JSON lines as text", "data.jsonl", b'{"text": "It was a bright cold day"}\n' * 20, "auto", TRAINS),
    ("a zip of NumPy", "train.npz", b"PK\3\4" + shorts(), "auto", "numpy.save"),
    ("NumPy, uint16", "data.npy", npy(), "auto", TRAINS),
    ("NumPy as .bin", "data.bin", npy(), "auto", TRAINS),
    ("NumPy, int64", "data.npy", npy("<i8", data=ints("q")), "npy", TRAINS),
    ("NumPy as uint16", "data.npy", npy(), "u16", "--data-format npy"),
    ("NumPy, floats", "data.npy", npy("<f4", data=ints("f")), "auto", "<f4"),
    ("NumPy, big-endian", "data.npy", npy(">u2"), "auto", "little-endian"),
    ("NumPy, two dimensions", "data.npy", npy(shape="(20, 20)"), "auto", "one dimension"),
    ("NumPy, objects", "data.npy", npy("|O"), "auto", "|O"),
    ("NumPy, cut off", "data.npy", npy()[:-2], "auto", "cut off"),
    ("NumPy, a header without end", "data.npy", npy()[:60], "auto", "header"),
    ("llm.c, uint16", "data.bin", llmc(shorts()), "auto", TRAINS),
    ("llm.c, uint32", "data.bin", llmc(ints("I"), 20240801, 7), "auto", TRAINS),
    ("llm.c of another version", "data.bin", llmc(shorts(), version=2), "auto", "version 1"),
    ("llm.c, cut off", "data.bin", llmc(shorts())[:-2], "auto", "promises 400 tokens"),
    ("Megatron, uint16", "data", megatron(shorts(), 8), "auto", TRAINS),
    ("Megatron, int32", "data", megatron(ints("i"), 4, size=4), "auto", TRAINS),
    ("DeepSpeed, uint16", "data", megatron(shorts(), 6), "auto", TRAINS),
    ("DeepSpeed, uint32", "data", megatron(ints("I"), 7, size=4), "auto", TRAINS),
    ("DeepSpeed, uint64", "data", megatron(ints("Q"), 8, size=8), "auto", TRAINS),
    ("Megatron, data cut off", "data", megatron(shorts()[:-2], 8), "auto", "the bytes 800 as uint16 (Megatron)"),
    ("Megatron, data of another index", "data", megatron(shorts() * 2, 8), "auto", "the .bin has 1600"),
    ("Megatron, floats", "data", megatron(ints("d"), 6, size=8), "auto", "float64"),
    ("Megatron, sequences that overlap", "data", megatron(shorts(), 8, pointers=[0, 0]), "auto", "in two sequences"),
    ("Megatron, sequences in another order", "data", megatron(shorts(), 8, pointers=[500, 0]), "auto", TRAINS),
    ("Megatron, an index that was not fetched", "data", {"data.bin": shorts(), "data.idx": LFS}, "auto", "git lfs pull"),
    ("Megatron, data that were not fetched", "data", {**megatron(shorts(), 8), "data.bin": LFS}, "auto", "git-lfs"),
    ("Megatron, an unknown dtype", "data", megatron(shorts(), 11), "auto", "dtype code 11"),
    ("Megatron, no index of it", "data", megatron(shorts(), 8, magic=b"TNTIDX\0\0\0"), "auto", "MMIDIDX"),
    ("Megatron, of another version", "data", megatron(shorts(), 8, version=2), "auto", "version 1"),
    ("Megatron, no data beside the index", "data.idx", {"data.idx": megatron(shorts(), 8)["data.idx"]}, "auto", "data.bin"),
]

# Configurations: the text of a file, words.
OPTIMIZER = b'"optimizer": {"type": "AdamW", "params": {"lr": 1e-3}}'
CONFIGS = [
    ("plain", b'{"train_batch_size": 2, ' + OPTIMIZER + b"}", TRAINS),
    ("with a mark of byte order", b'\xef\xbb\xbf{"train_batch_size": 2, ' + OPTIMIZER + b"}", TRAINS),
    ("with comments and a comma at the end", b'{\n// batch\n"train_batch_size": 2, /* rate */ ' + OPTIMIZER + b",\n}", TRAINS),
    ("a template that was not filled in", b'{"train_batch_size": {{ batch }}, ' + OPTIMIZER + b"}", "brace"),
    ("a placeholder of a shell", b'{"train_batch_size": $BATCH\n, ' + OPTIMIZER + b"}", "$BATCH"),
    ("a rate of Python's that is no number", b'{"train_batch_size": 2, "optimizer": {"type": "AdamW", "params": {"lr": Infinity}}}',
     "NaN and Infinity are no numbers"),
    ("a list that a word ends", b'{"optimizer": {"type": "AdamW", "params": {"betas": [0.9, NaN]}}}', "put quotes around it"),
    ("an object without an end", b'{"train_batch_size": 2, ', "close it with }"),
    ("UTF-16", '{"train_batch_size": 2}'.encode("utf-16"), "ds.json"),
    ("a pointer of git-lfs", LFS, "git lfs pull"),
    ("nothing", b"", "ds.json"),
    ("a key twice", b'{"train_batch_size": 2, "train_batch_size": 4, ' + OPTIMIZER + b"}", "stands twice"),
    ("nested without end", b'{"a":' * 10 ** 5, "ds.json"),
    ("no optimizer", b'{"train_batch_size": 2}', "training needs an optimizer"),
    ("a rate in quotes", b'{"train_batch_size": 2, "optimizer": {"type": "AdamW", "params": {"lr": "1e-3"}}}', "expected a number"),
    ("a rate below zero", b'{"train_batch_size": 2, "optimizer": {"type": "AdamW", "params": {"lr": -1e-3}}}', "at least 0"),
    ("of the Hugging Face Trainer", b'{"train_batch_size": "auto", ' + OPTIMIZER + b"}", "--micro-batch"),
    ("of an older DeepSpeed", b'{"train_batch_size": 2, "amp": {"enabled": true}, ' + OPTIMIZER + b"}", "removed \"amp\""),
]


class PublishedFiles(CommandTest):
    def judge(self, verdict, **keywords):
        keywords.setdefault("config", self.config("small.json", train_micro_batch_size_per_gpu=1))
        result = self.run_command(self.train_arguments(steps=1, **keywords))
        if verdict is TRAINS:
            self.assertEqual(result.returncode, 0, result.stderr)
            self.assertIn("step 1/1", result.stdout)
            return
        self.assertEqual(result.returncode, 1, result.stdout + result.stderr)
        self.assertEqual(result.stderr.count("zero3d: "), 1, result.stderr)
        self.assertIn(verdict, result.stderr)
        self.assertLess(len(result.stderr), 4000)
        self.assertNotIn("step 1/1", result.stdout)

    def test_the_table_is_long_enough(self):
        self.assertGreaterEqual(len(FOLDERS) + len(TOKENS) + len(CONFIGS), 100)
        for table in (FOLDERS, TOKENS, CONFIGS):
            names = [row[0] for row in table]
            self.assertEqual(len(names), len(set(names)))

    def test_model_folders(self):
        raw = (MODEL / WEIGHTS).read_bytes()
        for name, changes, verdict in FOLDERS:
            folder = self.folder / "model"
            shutil.rmtree(folder, ignore_errors=True)
            folder.mkdir()
            files = {"config.json": (MODEL / "config.json").read_bytes(), WEIGHTS: raw, **changes(raw)}
            for file, contents in files.items():
                if contents is not None:
                    (folder / file).parent.mkdir(parents=True, exist_ok=True)
                    (folder / file).write_bytes(contents)
            with self.subTest(name):
                self.judge(verdict, model=folder)

    def test_token_files(self):
        for name, path, contents, data_format, verdict in TOKENS:
            folder = self.folder / "data"
            shutil.rmtree(folder, ignore_errors=True)
            folder.mkdir()
            for file, part in (contents if isinstance(contents, dict) else {path: contents}).items():
                (folder / file).write_bytes(part)
            with self.subTest(name):
                self.judge(verdict, data=folder / path, data_format=data_format)

    def test_configurations(self):
        path = self.folder / "ds.json"
        for name, text, verdict in CONFIGS:
            path.write_bytes(text)
            with self.subTest(name):
                self.judge(verdict, config=path)

    def test_what_is_trained_on_as_text_and_is_json_is_said(self):
        data = self.folder / "data.jsonl"
        data.write_bytes(b'{"text": "It was a bright cold day"}\n' * 20)
        told = self.train(data=data, data_format="auto", config=self.config(train_micro_batch_size_per_gpu=1), steps=1, ranks=2).stderr
        self.assertEqual(told.count("begins as JSON does"), 1, told)

    def test_the_id_of_a_model_instead_of_a_folder(self):
        self.judge("meta-llama/Llama-3.2-1B", model="meta-llama/Llama-3.2-1B")
        self.judge("found an address", model="https://huggingface.co/meta-llama/Llama-3.2-1B")

    def test_a_file_instead_of_a_folder(self):
        self.judge(f"found a file; give {MODEL}", model=MODEL / "config.json")
        self.judge(f"found a file; give {MODEL}", model=MODEL / WEIGHTS)

    def test_tokens_of_a_vocabulary_that_two_bytes_do_not_hold(self):
        folder = self.folder / "shape"
        folder.mkdir()
        config = json.loads((MODEL / "config.json").read_text())
        config.update(vocab_size=65537, hidden_size=16, intermediate_size=16, num_hidden_layers=1, num_attention_heads=1,
                      num_key_value_heads=1)
        (folder / "config.json").write_text(json.dumps(config))
        short, wide, prose = (self.folder / name for name in ("data.bin", "data.u32", "data.txt"))
        short.write_bytes(shorts())
        wide.write_bytes(ints("I", 400, 65537))
        prose.write_bytes(PROSE)
        shape = {"model": folder, "from_scratch": True, "data_format": "auto"}
        self.judge("a vocabulary of 65,537", data=short, **shape)
        self.judge("--data-format u32", data=short, **shape)
        self.judge(TRAINS, data=wide, **shape)
        # Bytes of a text are tokens, but hardly those of such a model.
        small = self.config("small.json", train_micro_batch_size_per_gpu=1)
        told = self.train(data=prose, config=small, steps=1, ranks=2, **shape).stderr
        self.assertEqual(told.count("the bytes of the text are taken as tokens"), 1, told)
        self.assertNotIn("bytes of the text", self.train(data=prose, config=small, steps=1, data_format="auto").stderr)


class Pieces(unittest.TestCase):
    """What the table is made with."""

    def test_a_header_that_is_written_again_reads_the_same(self):
        raw = (MODEL / WEIGHTS).read_bytes()
        self.assertEqual(unpack(header(lambda entries: None)(raw)), unpack(raw))
        self.assertIn("model.norm.weight", read_safetensors(MODEL / WEIGHTS))


if __name__ == "__main__":
    support.main()
