#!/usr/bin/env python3
"""The real DeepSpeed goes on from what zero3d saved, as zero3d itself does. Needs a Python with torch, deepspeed and transformers.
Usage: deepspeed_resume.py --zero3d BINARY --python PYTHON [--keep FOLDER] [NAME-REGEX...]

Each case trains SAVED steps, saves, and goes on to STEPS. `zero3d export --deepspeed` makes of the checkpoint what DeepSpeed's
ranks load. Then
  DeepSpeed loads it and saves it at once: `zero3d diff` finds no changed bit of weights and optimizer states;
  DeepSpeed trains the steps that are left: losses, norms, learning rates and loss scales are zero3d's;
  its zero_to_fp32.py converts it: every weight equals, to the bit, that of `zero3d export --dtype fp32`.
Ends with 'N passed, N failed'."""
import argparse
import json
import os
import pathlib
import re
import shutil
import socket
import subprocess
import sys
import tempfile

GOLDEN = pathlib.Path(__file__).resolve().parent.parent / "tests" / "golden"
SAVED, STEPS, SEQUENCE = 3, 8, 16
SINGLE, HALF = 2e-5, 2e-3  # relative, of losses; of norms 10 and 15 times that

BF16 = {"bf16": {"enabled": True}}
FP16 = {"fp16": {"enabled": True, "initial_scale_power": 20, "loss_scale_window": 1000, "hysteresis": 1}}
DECAY = {"scheduler": {"type": "WarmupDecayLR", "params": {"total_num_steps": 20, "warmup_max_lr": 3e-3, "warmup_num_steps": 5}}}
COSINE = {"scheduler": {"type": "WarmupCosineLR", "params": {"total_num_steps": 20, "warmup_num_steps": 5}}}


def case(stage, world=2, model="gpt2-tiny", optimizer="AdamW", accumulation=2, trained_on=None, freeze=(), zero=None, **config):
    whole = {"train_micro_batch_size_per_gpu": 2, "gradient_clipping": 1.0,
             "optimizer": {"type": optimizer, "params": {"lr": 3e-3, "betas": [0.9, 0.95], "eps": 1e-8, "weight_decay": 0.1}},
             "zero_optimization": {"stage": stage, **(zero or {})}, **config}
    return {"stage": stage, "world": world, "model": model, "accumulation": accumulation, "trained_on": trained_on or world,
            "freeze": list(freeze), "config": whole, "half": "bf16" in config or "fp16" in config}


CASES = {
    "z1-fp32": case(1, **DECAY),
    "z2-fp32": case(2, accumulation=1),
    "z3-fp32": case(3, **COSINE),
    "z1-bf16": case(1, **BF16),
    "z2-bf16-saved-on-four": case(2, trained_on=4, **BF16),
    "z3-bf16-saved-on-one": case(3, trained_on=1, **BF16),
    "z1-three-ranks-odd": case(1, world=3, model="gpt2-odd", accumulation=1),
    "z3-three-ranks-odd": case(3, world=3, model="gpt2-odd", accumulation=1),
    "z1-fp16": case(1, **FP16),
    "z2-fp16": case(2, **FP16, **DECAY),
    "z3-fp16": case(3, **FP16),
    "z2-frozen": case(2, freeze=[r"wte|h\.0\."], **BF16),
    "z3-frozen": case(3, freeze=[r"wte|h\.0\."], **BF16),
    "z1-llama": case(1, model="llama-tiny", **BF16),
    "z3-llama-tied": case(3, model="llama-tied-rope3"),
    "z2-qwen2": case(2, model="qwen2-tiny", **BF16),
    "z3-qwen3": case(3, model="qwen3-tiny", **BF16),
    "z2-mistral": case(2, model="mistral-window"),
    "z3-gemma": case(3, model="gemma-tiny"),
    "z2-adam-l2": case(2, optimizer="Adam", **{"zero_allow_untested_optimizer": True}),
    "z3-sub-groups": case(3, zero={"sub_group_size": 5000}, **BF16),
    "z2-offload": case(2, zero={"offload_optimizer": {"device": "cpu"}}),
    "z3-offload": case(3, zero={"offload_optimizer": {"device": "cpu"}, "offload_param": {"device": "cpu"}}, **BF16),
}


class Failed(Exception):
    pass


def environment(**more):
    return dict(os.environ, OMP_NUM_THREADS="1", DS_ACCELERATOR="cpu", HF_HUB_OFFLINE="1", TOKENIZERS_PARALLELISM="false", **more)


def call(command, **keywords):
    result = subprocess.run([str(part) for part in command], capture_output=True, text=True, check=False, timeout=400, env=environment(),
                            stdin=subprocess.DEVNULL, **keywords)
    if result.returncode:
        raise Failed(f"{pathlib.Path(str(command[0])).name} {command[1]} ends with {result.returncode}: "
                     f"{(result.stderr + result.stdout).strip()[-1500:]}")
    return result.stdout


def read_lines(path):
    return [json.loads(line) for line in path.read_text().splitlines()]


def train(arguments, case, folder):
    """The records of all steps; folder/saved has the checkpoint of step SAVED."""
    config = json.loads(json.dumps(case["config"]))
    config["train_batch_size"] = 2 * case["accumulation"] * case["world"]
    config["gradient_accumulation_steps"] = case["accumulation"] * case["world"] // case["trained_on"]
    if case["accumulation"] * case["world"] % case["trained_on"]:
        raise Failed("no such case: the global batch does not divide")
    (folder / "ours.json").write_text(json.dumps(config))
    vocabulary = json.loads((GOLDEN / "models" / case["model"] / "config.json").read_text())["vocab_size"]
    case["tokens"] = str(GOLDEN / "runs" / f"tokens-{vocabulary}.u16")
    command = [arguments.zero3d, "train", "--config", folder / "ours.json", "--model", GOLDEN / "models" / case["model"],
               "--data", case["tokens"], "--data-format", "u16", "--order", "sequential", "--seq-len", SEQUENCE, "--threads", 1,
               "--ranks", case["trained_on"], "--save", folder / "saved"]
    for pattern in case["freeze"]:
        command += ["--freeze", pattern]
    call([*command, "--steps", SAVED])
    call([*command, "--steps", STEPS, "--resume", "latest", "--metrics", folder / "metrics.jsonl"])
    return read_lines(folder / "metrics.jsonl")


def export(arguments, case, folder):
    """What DeepSpeed will load, in folder/theirs."""
    saved = folder / "saved" / f"global_step{SAVED}"
    theirs = dict(case["config"], gradient_accumulation_steps=case["accumulation"])
    (folder / "theirs.json").write_text(json.dumps(theirs))
    call([arguments.zero3d, "export", saved, "--deepspeed", "--out", folder / "theirs", "--ranks", case["world"],
          "--zero-stage", case["stage"], "--config", folder / "theirs.json"])
    call([arguments.zero3d, "export", saved, "--out", folder / "weights", "--dtype", "fp32"])


def resume(arguments, case, folder):
    """DeepSpeed's own records of the steps that are left."""
    with socket.socket() as found:
        found.bind(("127.0.0.1", 0))
        port = found.getsockname()[1]
    (folder / "case.json").write_text(json.dumps({**case, "port": port}))
    ranks = [subprocess.Popen([arguments.python, os.path.abspath(__file__), "--inside", str(folder), str(rank)], stdin=subprocess.DEVNULL,
                              stdout=subprocess.PIPE, stderr=subprocess.STDOUT, text=True, env=environment())
             for rank in range(case["world"])]
    try:
        texts = [rank.communicate(timeout=400)[0] for rank in ranks]
    finally:
        for rank in ranks:
            rank.kill()
    for rank, text in zip(ranks, texts):
        if rank.returncode:
            raise Failed(f"DeepSpeed ends with {rank.returncode}: {text.strip()[-1500:]}")
    return json.loads((folder / "records.json").read_text())


def compare(case, ours, theirs):
    """What differs first, or nothing."""
    single, norm = (HALF, 15) if case["half"] else (SINGLE, 10)
    ours = [record for record in ours if record["step"] > SAVED]
    if [r["step"] for r in ours] != [r["step"] for r in theirs]:
        return f"steps {[r['step'] for r in theirs]}, not {[r['step'] for r in ours]}"
    worst = 0.0
    for want, got in zip(ours, theirs):
        difference = abs(got["loss"] - want["loss"]) / abs(want["loss"])
        worst = max(worst, difference)
        if not difference <= single:
            return f"step {want['step']}: loss {got['loss']}, not {want['loss']}"
        if not want["skipped"] and got["grad_norm"] and \
                not abs(got["grad_norm"] - want["grad_norm"]) <= norm * single * want["grad_norm"] + 1e-7:
            return f"step {want['step']}: norm {got['grad_norm']}, not {want['grad_norm']}"
        if not abs(got["lr"] - want["lr"]) <= 1e-6 * want["lr"] + 1e-12:
            return f"step {want['step']}: lr {got['lr']}, not {want['lr']}"
        if "fp16" in case["config"] and got["loss_scale"] != want["loss_scale"]:
            return f"step {want['step']}: loss scale {got['loss_scale']}, not {want['loss_scale']}"
        if bool(got["skipped"]) != bool(want["skipped"]):
            return f"step {want['step']}: skipped {got['skipped']}, not {want['skipped']}"
    case["worst"] = worst
    return None


def check(arguments, case, folder):
    ours = train(arguments, case, folder)
    export(arguments, case, folder)
    wrong = compare(case, ours, resume(arguments, case, folder))
    if wrong:
        raise Failed(wrong)
    call([arguments.zero3d, "diff", folder / "theirs", folder / "again"])
    call([arguments.python, os.path.abspath(__file__), "--convert", folder])


# What runs in the outside Python.

def make_engine(case, rank):
    os.environ.update(RANK=str(rank), LOCAL_RANK=str(rank), WORLD_SIZE=str(case["world"]), LOCAL_SIZE=str(case["world"]),
                      MASTER_ADDR="127.0.0.1", MASTER_PORT=str(case["port"]))
    import deepspeed
    import torch
    import transformers
    from deepspeed.accelerator import get_accelerator
    torch.set_num_threads(1)
    if "fp16" in case["config"]:
        type(get_accelerator()).is_fp16_supported = lambda self: True
    deepspeed.init_distributed(dist_backend="gloo")
    torch.manual_seed(4321)  # weights that are not those of the checkpoint, but for frozen ones of stages below 3
    settings = transformers.AutoConfig.from_pretrained(GOLDEN / "models" / case["model"])
    settings._attn_implementation = "eager"
    model = transformers.AutoModelForCausalLM.from_config(settings).float().train()
    for name, parameter in model.named_parameters():
        if any(re.search(pattern, name) for pattern in case["freeze"]):
            parameter.requires_grad_(False)
    config = dict(case["config"], gradient_accumulation_steps=case["accumulation"])
    return deepspeed.initialize(model=model, model_parameters=[p for p in model.parameters() if p.requires_grad], config=config)[0]


def train_inside(folder, rank):
    case = json.loads((folder / "case.json").read_text())
    engine = make_engine(case, rank)
    import numpy
    import torch
    path, _ = engine.load_checkpoint(str(folder / "theirs"))
    if path is None or engine.global_steps != SAVED:
        raise RuntimeError(f"nothing was loaded: {path}, step {engine.global_steps}")
    engine.save_checkpoint(str(folder / "again"))
    tokens = numpy.fromfile(case["tokens"], numpy.uint16).astype(numpy.int64)
    samples = (len(tokens) - 1) // SEQUENCE
    records = []
    for step in range(SAVED, STEPS):
        record = {"step": step + 1, "lr": engine.get_lr()[0], "loss_scale": getattr(engine.optimizer, "cur_scale", None)
                  or getattr(engine.optimizer, "loss_scale", None), "skipped": engine.skipped_steps}
        loss_sum = torch.zeros(1, dtype=torch.float64)
        for micro in range(case["accumulation"]):
            first = ((step * case["accumulation"] + micro) * case["world"] + rank) * 2
            rows = [tokens[i % samples * SEQUENCE:][:SEQUENCE + 1] for i in (first, first + 1)]
            batch = torch.from_numpy(numpy.stack(rows))
            logits = engine(input_ids=batch[:, :-1].contiguous(), use_cache=False).logits
            loss = torch.nn.functional.cross_entropy(logits.float().flatten(0, 1), batch[:, 1:].flatten())
            engine.backward(loss)
            engine.step()
            loss_sum += loss.detach().double()
        torch.distributed.all_reduce(loss_sum)
        norm = engine.get_global_grad_norm()
        record.update(loss=loss_sum.item() / case["accumulation"] / case["world"], skipped=engine.skipped_steps > record["skipped"],
                      grad_norm=None if norm is None else float(norm))
        records.append(record)
    if rank == 0:
        (folder / "records.json").write_text(json.dumps(records))
    torch.distributed.barrier()
    os._exit(0)  # its own end waits for threads


def convert_inside(folder):
    """By the script that DeepSpeed laid beside its own checkpoint, as a user runs it."""
    import torch
    from safetensors.torch import load_file
    call([sys.executable, folder / "again" / "zero_to_fp32.py", folder / "theirs", folder / "converted"])
    got = {}
    for file in sorted((folder / "converted").glob("*.bin")):
        got.update(torch.load(file))
    want = load_file(folder / "weights" / "model.safetensors")
    for name, value in want.items():
        if name not in got:
            raise RuntimeError(f"zero_to_fp32.py leaves {name} out; it has {sorted(got)}")
        if got[name].dtype != torch.float32 or not torch.equal(got[name], value):
            raise RuntimeError(f"zero_to_fp32.py makes another {name}")


def main():
    if "--inside" in sys.argv:
        return train_inside(pathlib.Path(sys.argv[2]), int(sys.argv[3]))
    if "--convert" in sys.argv:
        return convert_inside(pathlib.Path(sys.argv[2]))
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--zero3d", required=True, type=os.path.abspath)
    parser.add_argument("--python", required=True, help="of an environment with torch, deepspeed and transformers")
    parser.add_argument("--keep", type=pathlib.Path, help="where the cases' files stay")
    parser.add_argument("names", nargs="*")
    arguments = parser.parse_args()
    work = arguments.keep or pathlib.Path(tempfile.mkdtemp(prefix="zero3d-deepspeed-"))
    counts = [0, 0]
    for name, chosen in CASES.items():
        if arguments.names and not any(re.search(pattern, name) for pattern in arguments.names):
            continue
        folder = work / name
        shutil.rmtree(folder, ignore_errors=True)
        folder.mkdir(parents=True)
        try:
            check(arguments, chosen, folder)
            print(f"ok    {name}  worst loss difference {chosen['worst']:.1e}", flush=True)
            counts[0] += 1
        except (Failed, subprocess.TimeoutExpired) as error:
            print(f"WRONG {name}: {error}", flush=True)
            counts[1] += 1
    if not arguments.keep:
        shutil.rmtree(work, ignore_errors=True)
    print(f"{counts[0]} passed, {counts[1]} failed")
    return counts[1] > 0


if __name__ == "__main__":
    sys.exit(main())
