"""Checkpoints that every rank writes a part of: a folder `step-000064.ckpt`.

Tensors (weights and optimiser states, by flat names) are in files of torch.distributed.checkpoint,
from which any number of ranks takes what it holds; `rest.pt` has everything else. The checksums of
all files go into the manifest, which is written last, in a folder that only then gets its name.
Only tensors and primitives are in any of it, and reading never runs pickled code.
"""

import os
import pickle
import warnings
from collections.abc import Callable, Collection, Iterator, Mapping
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import torch
from torch import Tensor
from torch.distributed.checkpoint.api import CheckpointException
from torch.distributed.checkpoint.filesystem import FileSystemReader, FileSystemWriter
from torch.distributed.checkpoint.metadata import Metadata, StorageMeta, TensorStorageMetadata
from torch.distributed.checkpoint.state_dict_loader import load
from torch.distributed.checkpoint.state_dict_saver import save

from e3rl.checkpoints.durable import (
    defer_interrupts,
    find_os_error,
    flush_to_disk,
    swap,
    sync_folder,
    unwrap_os_error,
)
from e3rl.checkpoints.files import (
    MANIFEST,
    DamagedCheckpointError,
    checksum_file,
    clear_drafts,
    draft_of,
    find_altered,
    find_missing,
    manifest,
    sha256,
)
from e3rl.process.distributed import all_gather, rank, world_size

REST, INDEX = "rest.pt", ".metadata"
WEIGHTS = "state_dict/"  # what their names begin with
METADATA = "torch.distributed.checkpoint.metadata"
# Everything that an index of tensors is made of, beside torch's data types.
INDEX_TYPES = {
    *((METADATA, name) for name in ("Metadata", "TensorStorageMetadata", "TensorProperties")),
    *((METADATA, name) for name in ("ChunkStorageMetadata", "MetadataIndex", "StorageMeta")),
    (METADATA, "_MEM_FORMAT_ENCODING"),
    ("torch.distributed.checkpoint.filesystem", "_StorageInfo"),
    ("torch.serialization", "_get_layout"),
    ("torch", "Size"),
    ("pathlib", "PosixPath"),
    ("pathlib", "WindowsPath"),
}
MOVED = {"pathlib._local": "pathlib"}  # what Python 3.13 calls the module of its paths
STREAM_BROKE = ("unexpected pos", "PytorchStreamWriter")  # torch, after a failed write


def save_shards(tensors: Mapping[str, Tensor], rest: Mapping[str, Any], path: Path) -> None:
    """Write a checkpoint; all ranks call it, each with its parts of the same tensors.

    What was at `path` stays until the new one is whole and takes its place at once. Raises OSError
    (for instance on a full disk) on all ranks, after removing the draft.
    """
    draft = draft_of(path)

    def start() -> None:
        path.parent.mkdir(parents=True, exist_ok=True)
        clear_drafts(path.parent)
        draft.mkdir()

    def finish() -> None:
        if path.exists():
            swap(draft, path)
        else:
            os.replace(draft, path)
        checksum_file(path).unlink(missing_ok=True)  # of a file that was there
        sync_folder(path.parent)
        clear_drafts(path.parent)

    try:
        run_on_first_rank(start)
        with defer_interrupts(), _raise_on_all_ranks("written"):
            save(
                dict(tensors), storage_writer=FileSystemWriter(draft), no_dist=_is_single_process()
            )
        run_on_first_rank(lambda: _write_rest(rest, draft))
        sums = _run_on_all_ranks(lambda: {file.name: sha256(file) for file in _own_files(draft)})
        run_on_first_rank(
            lambda: _write_manifest({k: v for s in sums for k, v in s.items()}, draft)
        )
        run_on_first_rank(finish)
    except (OSError, RuntimeError):
        if rank() == 0:
            clear_drafts(path.parent)
        raise


def load_shards(tensors: Mapping[str, Tensor], path: Path) -> dict[str, Any]:
    """Fill a rank's parts of tensors from a checkpoint, and return the rest; all ranks call it.

    Raises DamagedCheckpointError, naming the file, on all ranks, before anything is read;
    RuntimeError for other weights than the checkpoint has, or other shapes of tensors; OSError for
    what a rank cannot read.
    """
    reasons = _run_on_all_ranks(lambda: find_missing(path))
    if not any(reasons):
        reasons = _run_on_all_ranks(lambda: find_altered(path, _own_share(path)))
    for reason in filter(None, reasons):
        raise DamagedCheckpointError(f"checkpoint {path}: {reason}")
    check_same_weights(tensors.keys(), _Reader(path).read_metadata().state_dict_metadata.keys())
    with _raise_on_all_ranks("read"):
        load(dict(tensors), storage_reader=_Reader(path), no_dist=_is_single_process())
    return read_rest(path)


def check_same_weights(own: Collection[str], saved: Collection[str]) -> None:
    """Raise RuntimeError, naming one, where a checkpoint has other weights than the policy."""
    if other := sorted(name for name in {*own} ^ {*saved} if name.startswith(WEIGHTS)):
        raise RuntimeError(
            f"the checkpoint is of another policy: {other[0].removeprefix(WEIGHTS)} is in only one "
            "of the two; resume with the policy settings in the config.yaml of its run folder"
        )


def _own_share(path: Path) -> list[str]:
    """The files that this rank checks: each is checked by one."""
    names = sorted(file.name for file in path.iterdir() if file.name != MANIFEST)
    return names[rank() :: world_size()]


def read_rest(path: Path) -> dict[str, Any]:
    """Everything in a checkpoint that is no tensor of `save_shards`."""
    rest = torch.load(path / REST, map_location="cpu", weights_only=True)
    assert isinstance(rest, dict)
    return rest


def read_tensors(path: Path, prefix: str = "") -> dict[str, Tensor]:
    """The tensors whose names begin with `prefix`, whole and on the CPU, read by this process."""
    reader = _Reader(path)
    tensors = {}
    for name, kind in reader.read_metadata().state_dict_metadata.items():
        if name.startswith(prefix):
            assert isinstance(kind, TensorStorageMetadata)
            tensors[name] = torch.empty(kind.size, dtype=kind.properties.dtype)
    with _raise_on_all_ranks("read"):
        load(dict(tensors), storage_reader=reader, no_dist=True)
    return tensors


def split_tensors(checkpoint: Mapping[str, Any]) -> tuple[dict[str, Tensor], dict[str, Any]]:
    """Tensors by flat names, and the rest, of what Lightning has about a run.

    Names are `state_dict/WEIGHT` and `optimizer/NUMBER/WEIGHT/STATE`; states of the optimisers are
    by the names of the weights.
    """
    rest = {k: v for k, v in checkpoint.items() if k not in ("state_dict", "optimizer_states")}
    tensors = {f"{WEIGHTS}{name}": value for name, value in checkpoint["state_dict"].items()}
    rest["optimizers"] = []
    for number, optimizer in enumerate(checkpoint.get("optimizer_states", [])):
        plain: dict[str, dict[str, Any]] = {}
        for weight, states in optimizer["state"].items():
            plain[weight] = {k: v for k, v in states.items() if not isinstance(v, Tensor)}
            for name, value in states.items():
                if isinstance(value, Tensor):
                    tensors[f"optimizer/{number}/{weight}/{name}"] = value
        rest["optimizers"].append({"state": plain, "param_groups": optimizer["param_groups"]})
    return tensors, rest


def merge_tensors(tensors: Mapping[str, Tensor], rest: dict[str, Any]) -> dict[str, Any]:
    """What `split_tensors` took apart, with the optimisers' weights by number, as single processes
    have it."""
    checkpoint = dict(rest)
    optimizers = checkpoint.pop("optimizers")
    checkpoint["state_dict"] = {
        name.removeprefix(WEIGHTS): value
        for name, value in tensors.items()
        if name.startswith(WEIGHTS)
    }
    for name, value in tensors.items():
        if not name.startswith(WEIGHTS):
            _, number, weight, state = name.split("/")
            optimizers[int(number)]["state"][weight][state] = value
    checkpoint["optimizer_states"] = [number_parameters(optimizer) for optimizer in optimizers]
    return checkpoint


def number_parameters(optimizer: Mapping[str, Any]) -> dict[str, Any]:
    """State of an optimiser with its weights numbered in their order, instead of named."""
    names = [name for group in optimizer["param_groups"] for name in group["params"]]
    number = {name: place for place, name in enumerate(names)}
    return _renamed(optimizer, number)


def name_parameters(optimizer: Mapping[str, Any], names: list[str]) -> dict[str, Any]:
    """State of an optimiser with its weights named, instead of numbered."""
    return _renamed(optimizer, dict(enumerate(names)))


def _renamed(optimizer: Mapping[str, Any], names: Mapping[Any, Any]) -> dict[str, Any]:
    return {
        "state": {names[key]: states for key, states in optimizer["state"].items()},
        "param_groups": [
            {**group, "params": [names[key] for key in group["params"]]}
            for group in optimizer["param_groups"]
        ],
    }


class _Index(pickle.Unpickler):
    """Reads torch's index of tensors, which is pickled, and nothing else."""

    def find_class(self, module: str, name: str) -> Any:
        module = MOVED.get(module, module)
        is_dtype = module == "torch" and isinstance(getattr(torch, name, None), torch.dtype)
        if is_dtype or (module, name) in INDEX_TYPES:
            return super().find_class(module, name)
        raise pickle.UnpicklingError(f"{INDEX} refers to {module}.{name}: no index of tensors does")


class _Reader(FileSystemReader):
    """Torch's reader, but for how it reads the index."""

    def read_metadata(self, *args: Any, **kwargs: Any) -> Metadata:
        with Path(self.path, INDEX).open("rb") as file:
            index = _Index(file).load()
        assert isinstance(index, Metadata)
        index.storage_meta = index.storage_meta or StorageMeta()
        index.storage_meta.load_id = self.load_id
        return index


def _is_single_process() -> bool:
    return world_size() == 1


@contextmanager
def _raise_on_all_ranks(done: str) -> Iterator[None]:
    """Have what fails on some rank be an ordinary error on all of them."""
    try:
        with warnings.catch_warnings():
            warnings.filterwarnings(
                "ignore", ".*assuming the intent is to .* in a single process.*"
            )
            yield
    except CheckpointException as error:
        failures = {at: failure[0] for at, failure in error.failures.items()}
        found = "; ".join(f"rank {at}: {failure!r}" for at, failure in failures.items())
        kind = OSError if any(map(_is_disk_error, failures.values())) else RuntimeError
        raise kind(f"the checkpoint could not be {done}: {found}") from error


def _is_disk_error(error: BaseException) -> bool:
    """Also one of another rank, which comes without what it came from."""
    return find_os_error(error) is not None or any(text in str(error) for text in STREAM_BROKE)


def _run_on_all_ranks(work: Callable[[], Any]) -> list[Any]:
    """What each rank's work comes to; where one raises, all do."""
    own: Any = None
    error: OSError | RuntimeError | None = None
    try:
        with unwrap_os_error():
            own = work()
    except (OSError, RuntimeError) as caught:
        error = caught
    found = all_gather((own, None if error is None else (repr(error), _is_disk_error(error))))
    if error is not None:
        raise error
    for at, (_, failure) in enumerate(found):
        if failure is not None:
            reason, by_the_disk = failure
            kind = OSError if by_the_disk else RuntimeError
            raise kind(f"rank {at} failed at its part of the checkpoint: {reason}")
    return [result for result, _ in found]


def run_on_first_rank(work: Callable[[], None]) -> None:
    """Let rank 0 do something while the others wait for it; where it raises, all do."""
    _run_on_all_ranks(work if rank() == 0 else lambda: None)


def _own_files(folder: Path) -> list[Path]:
    """Those that this rank has written."""
    common = [folder / INDEX, folder / REST] if rank() == 0 else []
    return [*folder.glob(f"__{rank()}_*"), *common]


def _write_rest(rest: Mapping[str, Any], folder: Path) -> None:
    with (folder / REST).open("wb") as file:
        torch.save(dict(rest), file)
        flush_to_disk(file)


def _write_manifest(sums: Mapping[str, str], folder: Path) -> None:
    with (folder / MANIFEST).open("w") as file:
        file.write(manifest(sums))
        flush_to_disk(file)
    sync_folder(folder)
