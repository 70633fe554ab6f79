"""`FSDP2Strategy`: every rank holds a part of weights, gradients and optimiser states."""

from lightning.pytorch.strategies import ModelParallelStrategy


class FSDP2Strategy(ModelParallelStrategy):
    """Lightning's strategy for PyTorch's FSDP2, with all ranks of all machines in one group.

    What is shared among ranks is up to the module's `configure_model`. Ranks talk by gloo on CPU
    and by nccl on GPUs.
    """

    def __init__(self) -> None:
        super().__init__(data_parallel_size=1, tensor_parallel_size=1)

    def setup_environment(self) -> None:
        self._data_parallel_size = self.num_nodes * self.num_processes  # now they are known
        super().setup_environment()
