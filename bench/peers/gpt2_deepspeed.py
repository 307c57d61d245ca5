"""The step of GPT-2 124M under DeepSpeed on CPUs, for deepspeed_bench: starts one process a rank (gloo, one thread
each), reads commands from stdin ("step", "matmul") and answers each with a number (seconds of a whole training step;
GFLOP/s of one rank's matrix products alone)."""
import argparse
import os
import subprocess
import sys
import time

os.environ.setdefault("DS_ACCELERATOR", "cpu")
STEP, MATMUL, END = 0, 1, 2


def run_rank(args, replies):
    import deepspeed
    import torch
    import torch.distributed as dist
    import torch.nn.functional as F
    from transformers import GPT2Config, GPT2LMHeadModel

    from gpt2_torch import VOCABULARY, matmul_rate

    torch.set_num_threads(1)
    torch.manual_seed(1)
    deepspeed.init_distributed(dist_backend="gloo")
    config = GPT2Config(resid_pdrop=args.dropout, embd_pdrop=args.dropout, attn_pdrop=args.dropout)
    ds_config = {"train_micro_batch_size_per_gpu": args.batch, "zero_optimization": {"stage": args.stage}}
    model = GPT2LMHeadModel(config)
    if args.offload:
        ds_config["optimizer"] = {"type": "AdamW", "params": {"lr": 1e-4}}
        ds_config["zero_optimization"]["offload_optimizer"] = {
            "device": args.offload, "nvme_path": args.path, "pipeline_read": True, "pipeline_write": True}
        engine, *_ = deepspeed.initialize(model=model, model_parameters=model.parameters(), config=ds_config)
    else:
        optimizer = torch.optim.AdamW(model.parameters(), lr=1e-4)
        engine, *_ = deepspeed.initialize(model=model, optimizer=optimizer, config=ds_config)
    tokens = torch.randint(0, VOCABULARY, (args.batch, args.sequence + 1))

    def step():
        dist.barrier()
        begin = time.perf_counter()
        logits = engine(tokens[:, :-1], use_cache=False).logits
        loss = F.cross_entropy(logits.reshape(-1, VOCABULARY), tokens[:, 1:].reshape(-1))
        engine.backward(loss)
        engine.step()
        dist.barrier()
        return time.perf_counter() - begin

    step()
    rank = dist.get_rank()
    if rank == 0:
        print("ready", file=replies)
    command = torch.zeros(1, dtype=torch.int64)
    while True:
        if rank == 0:
            line = sys.stdin.readline().strip()
            command[0] = {"step": STEP, "matmul": MATMUL}.get(line, END)
        dist.broadcast(command, 0)
        if command.item() == END:
            break
        value = step() if command.item() == STEP else matmul_rate(args.batch * args.sequence, torch.float32)
        if rank == 0:
            print(value, file=replies)
    dist.destroy_process_group()


def main():
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--batch", type=int, default=4, help="samples of a rank")
    parser.add_argument("--sequence", type=int, default=64)
    parser.add_argument("--stage", type=int, default=2)
    parser.add_argument("--ranks", type=int, default=2)
    parser.add_argument("--offload", choices=["cpu", "nvme"], help="where the optimizer's state lies")
    parser.add_argument("--path", default="/tmp", help="folder on a drive, for nvme")
    parser.add_argument("--dropout", type=float, default=0.1)
    parser.add_argument("--port", default="29517")
    args = parser.parse_args()
    replies = os.fdopen(os.dup(1), "w", buffering=1)
    os.dup2(2, 1)  # what libraries print goes to stderr
    sys.path.insert(0, os.path.dirname(os.path.abspath(__file__)))

    os.environ["OMP_NUM_THREADS"] = "1"
    others = []
    if "RANK" not in os.environ:
        os.environ.update(RANK="0", LOCAL_RANK="0", WORLD_SIZE=str(args.ranks), MASTER_ADDR="127.0.0.1",
                          MASTER_PORT=args.port)
        for rank in range(1, args.ranks):
            environment = dict(os.environ, RANK=str(rank), LOCAL_RANK=str(rank))
            others.append(subprocess.Popen([sys.executable] + sys.argv, env=environment, stdin=subprocess.DEVNULL))
    run_rank(args, replies)
    for process in others:
        process.wait()


if __name__ == "__main__":
    main()
