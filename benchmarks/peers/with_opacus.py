"""Contenders on Opacus, and PyTorch without privacy.

- `not private`: `nn.Embedding(sparse=True)` and SGD, which update only the rows
  of the batch. `torch Embedding`: the same with dense gradients.
- `ghost clipping`: norms without gradients of examples, two backward passes;
  `clipping alone`: the same without noise.
- `gradients of examples`: what Opacus does unless told otherwise.
"""

from __future__ import annotations

import itertools
import warnings
from typing import Any

import torch
from opacus import GradSampleModule
from opacus.grad_sample.grad_sample_module_fast_gradient_clipping import (
    GradSampleModuleFastGradientClipping,
)
from opacus.optimizers import DPOptimizer, DPOptimizerFastGradientClipping
from opacus.utils.fast_gradient_clipping_utils import (
    DPLossFastGradientClipping,
)
from torch import nn

from benchmarks.peers import data
from benchmarks.peers.contenders import CLIPPING, FRAMEWORKS, NOT_PRIVATE
from benchmarks.peers.turns import Contender, main

BASES = FRAMEWORKS["Opacus"].bases
GHOST, EXAMPLES = "ghost clipping", "gradients of examples"


class Attention(nn.Module):
    """Self-attention of layers that Opacus knows the norms of."""

    def __init__(self, width: int):
        super().__init__()
        self.queries = nn.Linear(width, width)
        self.keys = nn.Linear(width, width)
        self.values = nn.Linear(width, width)
        self.output = nn.Linear(width, width)

    def forward(self, items: Any) -> Any:
        def heads(layer: nn.Module) -> Any:
            split = layer(items).unflatten(-1, (data.HEADS, -1))
            return split.transpose(1, 2)

        seen = nn.functional.scaled_dot_product_attention(
            heads(self.queries), heads(self.keys), heads(self.values)
        )
        return self.output(seen.transpose(1, 2).flatten(2))


class Recommender(nn.Module):
    """Any of the models."""

    def __init__(self, setting: data.Setting, sparse: bool):
        super().__init__()
        self.setting = setting
        self.tables = nn.ModuleList()
        for _ in range(setting.tables):
            table = nn.Embedding(setting.rows, setting.width, sparse=sparse)
            nn.init.uniform_(table.weight, -0.05, 0.05)
            self.tables.append(table)
        width = setting.width
        if setting.model == "dlrm":
            units = [
                setting.tables * width + setting.numbers,
                *data.DLRM_HIDDEN,
            ]
            parts = [
                part
                for pair in itertools.pairwise(units)
                for part in (nn.Linear(*pair), nn.ReLU())
            ]
            self.top = nn.Sequential(*parts, nn.Linear(units[-1], 1))
        elif setting.model == "two-tower":
            self.towers = nn.ModuleList(
                nn.Sequential(
                    nn.Linear(width, data.TOWER_HIDDEN),
                    nn.ReLU(),
                    nn.Linear(data.TOWER_HIDDEN, data.TOWER_OUTPUT),
                )
                for _ in range(setting.tables)
            )
        else:
            self.attention = Attention(width)
            self.norms = nn.ModuleList(nn.LayerNorm(width) for _ in range(2))
            self.feed_forward = nn.Sequential(
                nn.Linear(width, data.FEED_FORWARD),
                nn.ReLU(),
                nn.Linear(data.FEED_FORWARD, width),
            )
            self.top = nn.Linear(width, 1)

    def forward(self, features: Any) -> Any:
        ids = features[: self.setting.tables]
        rows = [table(i) for table, i in zip(self.tables, ids, strict=True)]
        if self.setting.model == "dlrm":
            return self.top(torch.cat([*rows, features[-1]], -1))
        if self.setting.model == "two-tower":
            users, items = (
                tower(row) for tower, row in zip(self.towers, rows, strict=True)
            )
            return (users * items).sum(-1, keepdim=True)
        (items,) = rows
        items = self.norms[0](items + self.attention(items))
        items = self.norms[1](items + self.feed_forward(items))
        return self.top(items.mean(1))


def private(
    name: str, model: nn.Module, optimizer: Any, setting: data.Setting
) -> tuple[Any, Any, Any]:
    """Model, optimizer and loss, wrapped as `PrivacyEngine` wraps them."""
    settings = {
        "noise_multiplier": (
            0.0 if name == CLIPPING else data.NOISE_MULTIPLIER
        ),
        "max_grad_norm": data.CLIP_NORM,
        "expected_batch_size": setting.batch_size,
    }
    loss = nn.BCEWithLogitsLoss()
    if name == EXAMPLES:
        return GradSampleModule(model), DPOptimizer(optimizer, **settings), loss
    wrapped = GradSampleModuleFastGradientClipping(
        model, max_grad_norm=data.CLIP_NORM, use_ghost_clipping=True
    )
    optimizer = DPOptimizerFastGradientClipping(optimizer, **settings)
    loss_of_examples = nn.BCEWithLogitsLoss()

    def ghost(logits: Any, labels: Any) -> Any:
        # It wants one number for each example, not a column.
        return DPLossFastGradientClipping(wrapped, optimizer, loss_of_examples)(
            logits[:, 0], labels[:, 0]
        )

    return wrapped, optimizer, ghost


def make(name: str, setting: data.Setting) -> Contender:
    """Sets up a contender."""
    warnings.simplefilter("ignore")
    torch.manual_seed(data.SEED)
    model: Any = Recommender(setting, sparse=name == NOT_PRIVATE)
    table = model.tables[0]
    optimizer: Any = torch.optim.SGD(model.parameters(), data.RATE)
    loss_of: Any = nn.BCEWithLogitsLoss()
    if name not in BASES:
        model, optimizer, loss_of = private(name, model, optimizer, setting)
    features, labels = data.batches(setting)
    pool = itertools.cycle(
        [
            tuple(torch.from_numpy(part) for part in batch)
            for batch in zip(*features, labels, strict=True)
        ]
    )

    def step() -> Any:
        *x, y = next(pool)
        optimizer.zero_grad(set_to_none=True)
        loss = loss_of(model(x), y)
        loss.backward()
        optimizer.step()
        return loss

    return Contender(
        step=step,
        loss=lambda loss: float(loss.item()),
        rows=lambda ids: table.weight.detach()[torch.from_numpy(ids)].numpy(),
    )


if __name__ == "__main__":
    torch.set_num_threads(data.THREADS)
    main(make, "Opacus")
