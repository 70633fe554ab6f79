"""The phases of a run: what each second of it is counted under, in every row of the ledger."""

PHASES = {
    "start": "imports, weights, problems and workers, until the first validation or step",
    "engine": "the engine's start",
    "sync": "weights on their way to the engine",
    "rollout": "sampling",
    "reward": "waiting for scores",
    "probe": "entropies and gradient norms measured before an update",
    "forward": "forward passes of an update, and its loss",
    "backward": "backward passes",
    "optimizer": "clipping and the optimiser's steps",
    "validation": "validations",
    "checkpoint": "checkpoints",
    "logging": "rows of the ledger and its mirrors",
    "rest": "loading prompts, budgets, loops",
    "finish": "figures, tables, and the control sampled once more",
}
PREFIX = "phase/"


def phase_column(phase: str) -> str:
    """The name of a phase's seconds in a row."""
    return f"{PREFIX}{phase}_s"
