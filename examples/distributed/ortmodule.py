"""Train a torch module on onnxruntime in several processes.

torchrun --nproc-per-node 2 examples/distributed/ortmodule.py

What is wrapped in ORTModule is wrapped in DistributedDataParallel, as any module is.
"""

from __future__ import annotations

import argparse

import torch
import torch.distributed as dist
from sklearn.datasets import load_digits
from torch import nn
from torch.nn.parallel import DistributedDataParallel
from torch.utils.data import DataLoader, DistributedSampler, TensorDataset

from onward.torch import ORTModule


def main(epochs: int) -> None:
    dist.init_process_group("gloo")  # "nccl" where each process has a GPU
    torch.manual_seed(0)
    images, labels = load_digits(return_X_y=True)
    data = TensorDataset(torch.from_numpy(images).float() / 16, torch.from_numpy(labels))
    sampler: DistributedSampler[object] = DistributedSampler(data, shuffle=True, drop_last=True)
    loader = DataLoader(data, batch_size=32, sampler=sampler, drop_last=True)

    net = nn.Sequential(nn.Linear(64, 128), nn.ReLU(), nn.Dropout(0.1), nn.Linear(128, 10))
    model = DistributedDataParallel(ORTModule(net))
    optimizer = torch.optim.AdamW(model.parameters(), lr=3e-3)
    for epoch in range(epochs):
        sampler.set_epoch(epoch)
        for x, y in loader:
            optimizer.zero_grad()
            nn.functional.cross_entropy(model(x), y).backward()  # gradients are means over all processes
            optimizer.step()

    model.eval()
    with torch.no_grad():
        right = (model(data.tensors[0]).argmax(1) == data.tensors[1]).float().mean()
    if dist.get_rank() == 0:
        print(f"{dist.get_world_size()} processes, {epochs} epochs: accuracy {right:.3f}")
    dist.destroy_process_group()


if __name__ == "__main__":
    arguments = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    arguments.add_argument("--epochs", type=int, default=10)
    main(arguments.parse_args().epochs)
