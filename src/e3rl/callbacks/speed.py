"""How fast a step was, against what the machine's matrix products reach."""

import time
from collections.abc import Iterator
from typing import Any

import torch
from lightning import LightningModule, Trainer
from torch import Tensor, nn

from e3rl.batch import RolloutBatch
from e3rl.functional.flops import MatmulSizes
from e3rl.policy.policy import Policy
from e3rl.policy.shape import matmul_sizes
from e3rl.process.distributed import all_sum, all_sum_and_max

ROWS = 2048  # of the products where the module does not say how many tokens it takes at once
MEASURE_S, FEWEST = 0.1, 5  # seconds and number of products; the fastest one counts


class Speedometer:
    """Metrics of a step under `update/` and `speed/`; measures the peak when it is made.

    Args:
        sizes: of the policy's products.
        peak: operations per second of a matrix product of the update's size, on this rank.
    """

    def __init__(self, sizes: MatmulSizes, peak: float) -> None:
        self.sizes = sizes
        self.peak = all_sum([peak])[0]

    @staticmethod
    def of(trainer: Trainer, pl_module: LightningModule) -> "Speedometer | None":
        """For the module's policy, in the precision that its passes run in; None without a model.

        Draws no random numbers.
        """
        policy = pl_module.policy
        weight = max(layer_weights(policy), key=Tensor.numel, default=None)
        if weight is None or not isinstance(policy, Policy):
            return None
        settings = getattr(pl_module, "settings", None)
        rows = int(getattr(settings, "tokens_per_microbatch", ROWS))
        with trainer.precision_plugin.forward_context():
            dtype = compute_dtype(weight, policy)
        return Speedometer(matmul_sizes(policy), measure_peak(weight, rows, dtype))

    def metrics(self, batch: RolloutBatch, step_s: float) -> dict[str, float]:
        """Over all ranks.

        update/tokens_trained went forwards and backwards, update/tokens_forwarded forwards alone
        (probes, reference, old log-probs); each pass counts. update/flops is what they take, per
        second of the update speed/update_flops_per_s, as a share of the peak speed/mfu (model
        FLOPs utilization, arXiv 2204.02311). speed/tokens_per_s are sampled tokens per second of
        the step.
        """
        counts = batch.passes
        sampled = float(batch.tensor("completion_mask").sum())
        (trained, forwarded, flops, tokens), (seconds,) = all_sum_and_max(
            [
                float(counts.with_gradient[0]),
                float(counts.without[0]),
                counts.flops(self.sizes),
                sampled,
            ],
            [batch.metrics.get("time/update_s", 0.0)],
        )
        row = {
            "update/tokens_trained": trained,
            "update/tokens_forwarded": forwarded,
            "update/flops": flops,
            "speed/tokens_per_s": tokens / step_s,
            "speed/peak_flops_per_s": self.peak,
        }
        if seconds:
            row["speed/update_flops_per_s"] = flops / seconds
            row["speed/mfu"] = flops / seconds / self.peak
        return row


def layer_weights(policy: Any) -> Iterator[Tensor]:
    """Matrices (out, in) of linear layers, embeddings and the output layer left out."""
    for name, module in policy.named_modules():
        if isinstance(module, nn.Linear) and not name.endswith("lm_head"):
            yield module.weight


def compute_dtype(weight: Tensor, policy: Policy) -> torch.dtype:
    """What products with the weight are formed in, here and now."""
    kind = weight.device.type
    if torch.is_autocast_enabled(kind):
        return torch.get_autocast_dtype(kind)
    return getattr(torch, policy.computed_in) if policy.computed_in else weight.dtype


def measure_peak(weight: Tensor, rows: int, dtype: torch.dtype) -> float:
    """Operations per second of the fastest of some products (rows, in) x (in, out).

    The first one, which sets up the library and touches new memory, does not count.
    """
    width_out, width_in = weight.shape
    left = torch.ones(rows, width_in, dtype=dtype, device=weight.device)
    right = torch.ones(width_out, width_in, dtype=dtype, device=weight.device)
    out = torch.empty(rows, width_out, dtype=dtype, device=weight.device)
    _time_product(left, right, out)
    taken: list[float] = []
    while sum(taken) < MEASURE_S or len(taken) < FEWEST:
        taken.append(_time_product(left, right, out))
    return 2.0 * rows * width_in * width_out / min(taken)


def _time_product(left: Tensor, right: Tensor, out: Tensor) -> float:
    started = time.perf_counter()
    torch.mm(left, right.T, out=out)
    if left.device.type == "cuda":
        torch.cuda.synchronize(left.device)
    return time.perf_counter() - started
