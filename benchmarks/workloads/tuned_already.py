"""A wide perceptron on a table in memory. Its author has done what can be done: there is nothing left to gain."""

import argparse
from pathlib import Path

import torch
from torch import nn

WIDTH, BATCH, NUM_ROWS = 1024, 1024, 65_536
CPU_FLAGS = Path("/proc/cpuinfo")


def has_bf16():
    return CPU_FLAGS.exists() and "avx512_bf16" in CPU_FLAGS.read_text()


def main():
    parser = argparse.ArgumentParser()
    parser.add_argument("--steps", type=int, default=20000)
    parser.add_argument("--bf16", action=argparse.BooleanOptionalAction, default=has_bf16())
    args = parser.parse_args()
    torch.manual_seed(0)
    table = torch.randn(NUM_ROWS, WIDTH)
    target = torch.tanh(table[:, :64] @ torch.randn(64, 8) / 8) + 0.1 * torch.randn(NUM_ROWS, 8)
    layers = [part for _ in range(6) for part in (nn.Linear(WIDTH, WIDTH), nn.ReLU())]
    model = nn.Sequential(*layers, nn.Linear(WIDTH, 8))
    optimizer = torch.optim.AdamW(model.parameters(), lr=3e-4, fused=True)
    order = torch.randperm(NUM_ROWS)
    for step in range(args.steps):
        start = step * BATCH % NUM_ROWS
        if start == 0:
            order = torch.randperm(NUM_ROWS)
        rows = order[start : start + BATCH]
        with torch.autocast("cpu", torch.bfloat16, enabled=args.bf16):
            output = model(table[rows])
        loss = nn.functional.mse_loss(output.float(), target[rows])
        optimizer.zero_grad(set_to_none=True)
        loss.backward()
        optimizer.step()
        if step % 100 == 0:
            print(f"step {step}: loss {loss.item():.4f}")


if __name__ == "__main__":
    main()
