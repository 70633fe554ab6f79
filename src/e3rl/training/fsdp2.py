"""`FSDP2Strategy`: every rank holds a part of weights, gradients and optimiser states."""

from collections.abc import Collection, Iterator, Mapping
from contextlib import contextmanager
from pathlib import Path
from typing import Any, cast

from lightning.pytorch.strategies import ModelParallelStrategy
from torch import Tensor
from torch.distributed.checkpoint.state_dict import (
    StateDictOptions,
    get_model_state_dict,
    get_optimizer_state_dict,
    set_model_state_dict,
    set_optimizer_state_dict,
)
from torch.distributed.device_mesh import DeviceMesh, init_device_mesh
from torch.distributed.fsdp import FSDPModule
from torch.distributed.tensor import DTensor

from e3rl.checkpoints.sharded import (
    WEIGHTS,
    check_same_weights,
    load_shards,
    name_parameters,
    run_on_first_rank,
    save_shards,
    split_tensors,
)
from e3rl.policy.policy import Policy
from e3rl.policy.sharding import Replicas, count_shards, shard

# Torch's own strictness knows nothing of weights that a module leaves out on purpose.
AS_SHARED = StateDictOptions(strict=False)
WHOLE = StateDictOptions(full_state_dict=True, broadcast_from_rank0=True, strict=False)


class FSDP2Strategy(ModelParallelStrategy):
    """Lightning's strategy for PyTorch's FSDP2, with ranks of all machines in one group or several.

    What is shared among ranks is up to the module's `configure_model`, which calls `share`. Ranks
    talk by gloo on CPU and by nccl on GPUs. Checkpoints are folders of shards; those of other
    numbers of ranks and groups are resumed, and single files of other strategies too.

    Args:
        replicas: groups of consecutive ranks, of which each has a copy of the weights (HSDP);
            "machines": one on each machine.

    Raises ValueError, when the trainer is built, where the groups would not be of the same size.
    """

    def __init__(self, replicas: Replicas = 1) -> None:
        super().__init__(data_parallel_size=1, tensor_parallel_size=1)
        self.replicas = replicas

    @property
    def ranks(self) -> int:
        """Processes on all machines."""
        return int(self.num_nodes * self.num_processes)

    def set_world_ranks(self) -> None:
        count_shards(self.replicas, self.ranks, self.num_nodes)  # before processes are started
        super().set_world_ranks()

    def setup_environment(self) -> None:
        self._data_parallel_size = self.ranks  # now they are known
        super().setup_environment()
        self._mesh = self._make_mesh()

    def _make_mesh(self) -> DeviceMesh:
        shards = count_shards(self.replicas, self.ranks, self.num_nodes)
        if shards == self.ranks:
            return self.device_mesh["data_parallel"]
        groups = (self.ranks // shards, shards)
        return init_device_mesh(
            self.root_device.type, groups, mesh_dim_names=("replicas", "shards")
        )

    def share(self, policy: Policy) -> None:
        """Leave a policy with this rank's part of its weights; at most once, on all ranks."""
        shard(policy, self._mesh, str(self.precision_plugin.precision))
        policy.read_weights(self.root_device)

    @contextmanager
    def block_backward_sync(self) -> Iterator[None]:
        """Groups of ranks keep gradients to themselves, for the next backward pass to add up."""
        self._let_groups_meet(False)
        try:
            yield
        finally:
            self._let_groups_meet(True)

    def _let_groups_meet(self, may: bool) -> None:
        assert self.model is not None
        for module in self.model.modules():
            if isinstance(module, FSDPModule):
                module.set_requires_all_reduce(may, recurse=False)

    def save_checkpoint(
        self, checkpoint: dict[str, Any], filepath: str | Path, storage_options: Any | None = None
    ) -> None:
        """Raises OSError on all ranks where one cannot write; the former checkpoint stays."""
        save_shards(*split_tensors(checkpoint), Path(self.broadcast(filepath)))

    def load_checkpoint(
        self, checkpoint_path: str | Path, weights_only: bool | None = None
    ) -> dict[str, Any]:
        """Take up weights and optimiser states; returns the rest.

        Raises DamagedCheckpointError, naming file and reason.
        """
        path = Path(self.broadcast(checkpoint_path))
        return self._load_shards(path) if path.is_dir() else self._load_whole(path)

    def _load_shards(self, path: Path) -> dict[str, Any]:
        assert self.model is not None
        own = cast(Mapping[str, Tensor], get_model_state_dict(self.model))
        # A module compares its own buffers with what is loaded, so not in their place.
        weights = {k: v if isinstance(v, DTensor) else v.clone() for k, v in own.items()}
        optimizers = [get_optimizer_state_dict(self.model, each) for each in self.optimizers]
        tensors, _ = split_tensors({"state_dict": weights, "optimizer_states": optimizers})
        rest = load_shards(tensors, path)
        self._put_weights(weights, AS_SHARED, weights)
        for optimizer, state, saved in zip(
            self.optimizers, optimizers, rest["optimizers"], strict=True
        ):
            state["param_groups"] = saved["param_groups"]
            set_optimizer_state_dict(self.model, optimizer, state)
        return rest

    def _load_whole(self, path: Path) -> dict[str, Any]:
        assert self.model is not None
        checkpoint: dict[str, Any] = {}
        # One rank reads all of it and gives the others their parts, a tensor at a time.
        run_on_first_rank(lambda: checkpoint.update(self.checkpoint_io.load_checkpoint(path)))
        weights, states = checkpoint.pop("state_dict", {}), checkpoint.pop("optimizer_states", [])
        rest, names = self.broadcast((checkpoint, list(weights)))
        self._put_weights(weights, WHOLE, names)
        name_of = {id(weight): name for name, weight in self.model.named_parameters()}
        for number, optimizer in enumerate(self.optimizers):
            own = [name_of[id(p)] for group in optimizer.param_groups for p in group["params"]]
            saved = name_parameters(states[number], own) if states else {}
            set_optimizer_state_dict(self.model, optimizer, saved, options=WHOLE)
        return rest

    def _put_weights(
        self, weights: Mapping[str, Tensor], how: StateDictOptions, names: Collection[str]
    ) -> None:
        """Raises RuntimeError, naming one, for other weights than a checkpoint of the model has."""
        assert self.model is not None
        own = get_model_state_dict(self.model)  # frozen weights under adapters are not saved
        check_same_weights(*([f"{WEIGHTS}{name}" for name in each] for each in (own, names)))
        set_model_state_dict(self.model, dict(weights), options=how)
