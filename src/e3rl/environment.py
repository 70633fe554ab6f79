"""Process settings that must be in place before torch, tokenizers or a hub client load.

They are defaults: whatever the user has exported wins.
"""

import os

DEFAULTS = {
    # Two OpenMP teams that spin for work on shared cores slow each other down by 10x and more;
    # a passive team gives its core away while it waits. Read once, when libgomp is loaded.
    "OMP_WAIT_POLICY": "PASSIVE",
    # Forking a process after the tokenizer has started threads would print a warning per worker.
    "TOKENIZERS_PARALLELISM": "false",
    # Experiments are logged to disk; `WANDB_MODE=online` and a login make them live.
    "WANDB_MODE": "offline",
    "WANDB_SILENT": "true",
    # cuBLAS needs this for deterministic results on a GPU.
    "CUBLAS_WORKSPACE_CONFIG": ":4096:8",
}


def prepare() -> None:
    """Put every default into the environment that the user has not set."""
    for name, value in DEFAULTS.items():
        os.environ.setdefault(name, value)
