"""The step of GPT-2 124M under PyTorch eager, for train_step_bench: reads commands from stdin ("step", "matmul") and
answers each with a number (seconds of a whole training step; GFLOP/s of the step's matrix products alone)."""
import argparse
import os
import sys
import time

import torch
import torch.nn.functional as F
from transformers import GPT2Config, GPT2LMHeadModel

WIDTH, LAYERS, VOCABULARY = 768, 12, 50257


def products(tokens):
    """(count, m, k, n) of forward, input-gradient and weight-gradient products."""
    linears = [(LAYERS, WIDTH, 3 * WIDTH), (LAYERS, WIDTH, WIDTH), (LAYERS, WIDTH, 4 * WIDTH),
               (LAYERS, 4 * WIDTH, WIDTH), (1, WIDTH, VOCABULARY)]
    for count, inputs, outputs in linears:
        yield count, tokens, inputs, outputs
        yield count, tokens, outputs, inputs
        yield count, inputs, tokens, outputs


def matmul_rate(tokens, dtype):
    flop = seconds = 0.0
    for count, m, k, n in products(tokens):
        a, b = torch.randn(m, k, dtype=dtype), torch.randn(k, n, dtype=dtype)
        torch.mm(a, b)
        best = float("inf")
        for _ in range(3):
            begin = time.perf_counter()
            torch.mm(a, b)
            best = min(best, time.perf_counter() - begin)
        flop += count * 2.0 * m * k * n
        seconds += count * best
    return flop / seconds * 1e-9


def main():
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--batch", type=int, default=4)
    parser.add_argument("--sequence", type=int, default=64)
    parser.add_argument("--threads", type=int, default=2)
    parser.add_argument("--dtype", choices=["fp32", "bf16"], default="fp32")
    parser.add_argument("--dropout", type=float, default=0.1)
    args = parser.parse_args()
    replies = os.fdopen(os.dup(1), "w", buffering=1)
    os.dup2(2, 1)  # what libraries print goes to stderr

    torch.set_num_threads(args.threads)
    torch.manual_seed(1)
    dtype = torch.bfloat16 if args.dtype == "bf16" else torch.float32
    config = GPT2Config(resid_pdrop=args.dropout, embd_pdrop=args.dropout, attn_pdrop=args.dropout)
    model = GPT2LMHeadModel(config).to(dtype)
    model.train()
    optimizer = torch.optim.AdamW(model.parameters(), lr=1e-4)
    tokens = torch.randint(0, VOCABULARY, (args.batch, args.sequence + 1))

    def step():
        begin = time.perf_counter()
        logits = model(tokens[:, :-1], use_cache=False).logits
        loss = F.cross_entropy(logits.reshape(-1, VOCABULARY), tokens[:, 1:].reshape(-1))
        loss.backward()
        optimizer.step()
        optimizer.zero_grad(set_to_none=True)
        return time.perf_counter() - begin

    step()  # allocates the optimizer's states
    print("ready", file=replies)
    for line in sys.stdin:
        command = line.strip()
        if command == "step":
            print(step(), file=replies)
        elif command == "matmul":
            print(matmul_rate(args.batch * args.sequence, dtype), file=replies)
        else:
            sys.exit(f"unknown command {command!r}")


if __name__ == "__main__":
    main()
