# SPDX-License-Identifier: Apache-2.0
"""A PyTorch trainer and four workers that make its batches: the tensors are in shared memory, on a GPU or without one."""

import multiprocessing
from multiprocessing.queues import SimpleQueue

import torch

import caid

WORKERS, BATCHES = 4, 25


def work(address: str, seed: int, batches: SimpleQueue[caid.Array]) -> None:
    torch.manual_seed(seed)
    with caid.connect(address) as client:
        for _ in range(BATCHES):
            x = torch.rand(256, 3)
            with client.array(torch.cat([x, x.sum(1, keepdim=True)], 1)) as batch:
                batches.put(batch)


if __name__ == "__main__":
    spawn, net = multiprocessing.get_context("spawn"), torch.nn.Linear(3, 1)
    optimizer, batches = torch.optim.SGD(net.parameters(), lr=0.3), spawn.SimpleQueue()
    with caid.LocalDaemon() as daemon, daemon.connect() as client:
        for seed in range(WORKERS):
            spawn.Process(target=work, args=(daemon.address, seed, batches)).start()
        for _ in range(WORKERS * BATCHES):
            with batches.get() as batch:  # the worker's memory, not a copy
                x, y = torch.from_dlpack(batch).split([3, 1], 1)
            loss = torch.nn.functional.mse_loss(net.to(x.device)(x), y)
            optimizer.zero_grad(), loss.backward(), optimizer.step()
        print(f"loss {loss.item():.4f}, published as version {client.publish_many('sum/', net.state_dict())}")
