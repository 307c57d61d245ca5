#!/usr/bin/env python3
"""Trains a nano model of every family on every mesh, with dropout, and holds the losses of all steps to those of one rank.
Usage: mesh_runs.py --zero3d BINARY [--ranks 1,2,4,8] [--steps N] [--layers N] [--sample N] [--jobs N] [NAME-REGEX...]

A mesh is a factorisation of a number of ranks into dp x tp, at a ZeRO stage, as it is or with sequence_parallel and tp_overlap_comm.
--sample takes so many of them, spread evenly. Ends with 'N passed, N failed'."""
import argparse
import concurrent.futures
import json
import pathlib
import re
import subprocess
import sys
import tempfile

from support import RUNS, environment, read_lines

TOLERANCE = 1e-5  # relative, in fp32
BATCH = 16
MICRO = 2

SHAPE = {"vocab_size": 61, "hidden_size": 32, "intermediate_size": 42, "num_attention_heads": 8, "num_key_value_heads": 4,
         "head_dim": 4, "max_position_embeddings": 16, "initializer_range": 0.1, "attention_dropout": 0.1}
FAMILIES = {
    "gpt2": {"architectures": ["GPT2LMHeadModel"], "model_type": "gpt2", "vocab_size": 61, "n_embd": 32, "n_inner": 42, "n_head": 8,
             "n_positions": 16, "initializer_range": 0.1, "attn_pdrop": 0.1, "resid_pdrop": 0.1, "embd_pdrop": 0.1,
             "activation_function": "gelu_new"},
    "llama": {"architectures": ["LlamaForCausalLM"], "model_type": "llama", **SHAPE},
    "mistral": {"architectures": ["MistralForCausalLM"], "model_type": "mistral", **SHAPE, "sliding_window": 3},
    "qwen2": {"architectures": ["Qwen2ForCausalLM"], "model_type": "qwen2", **SHAPE},
    "qwen3": {"architectures": ["Qwen3ForCausalLM"], "model_type": "qwen3", **SHAPE},
    "gemma": {"architectures": ["GemmaForCausalLM"], "model_type": "gemma", **SHAPE, "hidden_activation": "gelu_pytorch_tanh"},
}


def meshes(counts):
    for ranks in counts:
        for tp in (1, 2, 4, 8):
            if ranks % tp or ranks == 1:
                continue
            for stage in range(4):
                for way in ("", "split", "overlap") if tp > 1 else ("",):
                    yield {"dp": ranks // tp, "tp": tp, "stage": stage, "way": way}


class Case:
    def __init__(self, family, mesh):
        self.family, self.mesh = family, mesh
        self.name = "{} dp {dp} x tp {tp} stage {stage} {way}".format(family, **mesh).strip()

    def config(self):
        mesh = self.mesh
        config = {"train_batch_size": BATCH, "train_micro_batch_size_per_gpu": MICRO,
                  "optimizer": {"type": "AdamW", "params": {"lr": 1e-3}},
                  "tensor_parallel": {"autotp_size": mesh["tp"], "tp_overlap_comm": mesh["way"] == "overlap"},
                  "zero_optimization": {"stage": mesh["stage"], "stage3_param_persistence_threshold": 0}}
        if mesh["way"] == "split":
            config["zero3d"] = {"sequence_parallel": True}
        return config

    def losses(self, arguments, work):
        folder = pathlib.Path(tempfile.mkdtemp(dir=work))
        (folder / "ds.json").write_text(json.dumps(self.config()))
        command = [arguments.zero3d, "train", "--config", folder / "ds.json", "--model", work / self.family, "--from-scratch",
                   "--data", RUNS / "tokens-61.u16", "--data-format", "u16", "--seq-len", 8, "--steps", arguments.steps,
                   "--ranks", self.mesh["dp"] * self.mesh["tp"], "--threads", 1, "--metrics", folder / "metrics.jsonl"]
        run = subprocess.run([str(part) for part in command], capture_output=True, text=True, env=environment(), check=False,
                             timeout=600)
        if run.returncode:
            raise RuntimeError(f"exit {run.returncode}: {run.stderr.strip()[-300:]}")
        return [line["loss"] for line in read_lines(folder / "metrics.jsonl")]


def compare(expected, got):
    if len(got) != len(expected):
        return f"{len(got)} steps, not {len(expected)}"
    for step, (want, have) in enumerate(zip(expected, got), 1):
        if not abs(want - have) <= TOLERANCE * abs(want):
            return f"step {step}: loss {have}, not {want}"
    return None


def main():
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--zero3d", required=True)
    parser.add_argument("--ranks", default="1,2,4,8")
    parser.add_argument("--steps", type=int, default=50)
    parser.add_argument("--layers", type=int, default=2)
    parser.add_argument("--sample", type=int, default=0)
    parser.add_argument("--jobs", type=int, default=2)
    parser.add_argument("names", nargs="*")
    arguments, _ = parser.parse_known_args()
    everything = [Case(family, mesh) for mesh in meshes([int(n) for n in arguments.ranks.split(",")]) for family in FAMILIES]
    cases = [case for case in everything if not arguments.names or any(re.search(n, case.name) for n in arguments.names)]
    if arguments.sample and arguments.sample < len(cases):
        cases = [cases[i * len(cases) // arguments.sample] for i in range(arguments.sample)]
    failed = 0
    with tempfile.TemporaryDirectory(prefix="zero3d-mesh-") as work:
        work = pathlib.Path(work)
        for family, config in FAMILIES.items():
            (work / family).mkdir()
            layers = {"n_layer" if family == "gpt2" else "num_hidden_layers": arguments.layers}
            (work / family / "config.json").write_text(json.dumps({**config, **layers}))
        one = {}
        with concurrent.futures.ThreadPoolExecutor(arguments.jobs) as pool:
            for family in sorted({case.family for case in cases}):
                alone = Case(family, {"dp": 1, "tp": 1, "stage": 0, "way": ""})
                one[family] = pool.submit(alone.losses, arguments, work)
            runs = [(case, pool.submit(case.losses, arguments, work)) for case in cases]
            for case, run in runs:
                try:
                    wrong = compare(one[case.family].result(), run.result())
                except (RuntimeError, subprocess.TimeoutExpired) as error:
                    wrong = str(error)
                failed += wrong is not None
                if wrong:
                    print(f"{case.name}: {wrong}", flush=True)
    print(f"{len(cases) - failed} passed, {failed} failed")
    sys.exit(failed > 0)


if __name__ == "__main__":
    main()
