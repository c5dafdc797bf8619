"""PyTorch in eager mode with its fused AdamW."""

from __future__ import annotations

import torch

from benchmarks.protocol import EPSILON, WEIGHT_DECAY, Step, Worker, serve
from benchmarks.works import WORKS


class Torch(Worker):
    def load(self) -> Step:
        torch.set_num_threads(self.threads)
        model = WORKS[self.work["work"]].model()
        parameters = [parameter for parameter in model.parameters() if parameter.requires_grad]
        optimizer = torch.optim.AdamW(
            parameters, lr=self.work["learning_rate"], eps=EPSILON, weight_decay=WEIGHT_DECAY, fused=True
        )
        x, y = torch.from_numpy(self.x), torch.from_numpy(self.y)

        def step(index: int) -> torch.Tensor:
            optimizer.zero_grad()
            loss = torch.nn.functional.cross_entropy(model(x[index % len(x)]), y[index % len(y)])
            loss.backward()  # type: ignore[no-untyped-call]
            optimizer.step()
            return loss.detach()

        return step


if __name__ == "__main__":
    serve(Torch)
