import json
import warnings
from dataclasses import replace

import pytest
import torch
from hydra.utils import instantiate
from lightning.pytorch import LightningModule, Trainer
from lightning.pytorch.callbacks import ModelCheckpoint

from e3rl.data.bad_rows import BadRowsError
from e3rl.data.datamodule import PromptDataModule
from e3rl.data.loader import fingerprint
from e3rl.data.problem import Problem
from e3rl.data.problems import load_problems


def problems(name, size):
    return [Problem(f"{name}:{i}", f"{name} {i}?", str(i), name) for i in range(size)]


def encode(problem):
    return str(problem.prompt), list(range(len(problem.prompt)))


def datamodule(train=None, validation=None, **more):
    return PromptDataModule(
        problems("train", 6) if train is None else train,
        problems("check", 3) if validation is None else validation,
        **{"prompts_per_step": 2, **more},
    )


class Counter(LightningModule):
    def __init__(self):
        super().__init__()
        self.automatic_optimization = False
        self.weight = torch.nn.Parameter(torch.zeros(1))
        self.shown = []

    def training_step(self, batch, batch_index):
        self.optimizers().step()
        self.shown.append(batch.stream)

    def validation_step(self, batch, batch_index):
        self.shown.append(batch.stream)

    def configure_optimizers(self):
        return torch.optim.SGD(self.parameters(), lr=0.1)


def test_the_longest_prompt_of_both_sets_is_known_once_lengths_are():
    data = datamodule()
    assert data.longest_prompt == 0
    data.bind(lambda p: (p.prompt, [0] * (7 if p in data.validation_problems else 3)))
    assert data.longest_prompt == 7


def test_bound_and_set_up_it_gives_the_same_loaders_every_time():
    data = datamodule(validation_prompts_per_batch=2)
    data.bind(encode)
    data.setup("fit")
    assert data.steps_per_epoch == 3
    assert [len(b.prompt_ids) for b in data.val_dataloader()] == [2, 1]
    loader = data.train_dataloader()
    next(iter(loader))
    data.setup("validate")
    assert data.train_dataloader() is loader
    assert data.train_dataloader().step == 1
    assert data.val_dataloader() is data.val_dataloader()


def test_what_needs_the_encoder_or_the_loaders_says_so():
    data = datamodule()
    with pytest.raises(RuntimeError, match=r"call bind\(policy.encode\) first"):
        data.setup("fit")
    with pytest.raises(RuntimeError, match="call bind"):
        _ = data.steps_per_epoch
    data.bind(encode)
    with pytest.raises(RuntimeError, match="call setup first"):
        data.train_dataloader()


def test_rank_and_world_size_come_from_the_trainer():
    class OneOfTwo:
        global_rank, world_size = 1, 2

    data = datamodule()
    data.bind(encode)
    data.trainer = OneOfTwo()
    data.setup("fit")
    loader = data.train_dataloader()
    assert (loader.rank, loader.world_size, loader.peek().n_prompts) == (1, 2, 1)
    assert (data.val_dataloader().rank, data.val_dataloader().world_size) == (1, 2)


def test_a_question_in_both_sets_is_refused_whatever_its_form():
    chat = ({"role": "system", "content": "s"}, {"role": "user", "content": "train  4?"})
    validation = [*problems("check", 2), Problem("leak", chat, "4", "check")]
    with pytest.raises(ValueError, match=r"1 problems of validation .* e\.g\. leak = train:4"):
        datamodule(validation=validation)


def test_a_question_in_both_sets_can_be_dropped_from_the_validation_set():
    leak = Problem("leak", "Train 4", "1", "check")
    validation = [leak, *problems("check", 2)]
    with pytest.warns(UserWarning, match=r"1 problems of validation .* leak = train:4: not val"):
        data = datamodule(validation=validation, on_overlap="drop")
    assert [p.id for p in data.validation_problems] == ["check:0", "check:1"]
    assert data.validation_problems.dropped == {"also trained on": 1}
    assert len(data.train_problems) == 6
    with (
        pytest.warns(UserWarning, match="not validated on"),
        pytest.raises(ValueError, match="no problem is left"),
    ):
        datamodule(validation=[leak], on_overlap="drop")
    with pytest.raises(ValueError, match="on_overlap is 'keep'"):
        datamodule(on_overlap="keep")


def test_an_id_in_both_sets_is_refused():
    validation = [Problem(f"train:{i}", f"other {i}", "1", "s") for i in range(5)]
    with pytest.raises(
        ValueError, match=r"5 ids are in .*, e\.g\. train:0, train:1, train:2: give"
    ):
        datamodule(validation=validation)


def test_empty_sets_and_sizes_out_of_range_are_refused():
    with pytest.raises(ValueError, match="training problems: no problem is left"):
        datamodule(train=[])
    with pytest.raises(ValueError, match="validation problems: no problem is left"):
        datamodule(validation=[])
    with pytest.raises(ValueError, match="prompts_per_step=7 must lie between 1 and the 6"):
        datamodule(prompts_per_step=7)
    with pytest.raises(ValueError, match="prompts_per_step=0"):
        datamodule(prompts_per_step=0)
    with pytest.raises(ValueError, match="validation_prompts_per_batch=0"):
        datamodule(validation_prompts_per_batch=0)


def test_over_long_prompts_are_an_error_or_are_dropped_and_counted():
    long = Problem("long", "x" * 50, "1", "train")
    train = [*problems("train", 6), long]
    with pytest.raises(BadRowsError, match="row 6: over-long prompt: 'long' has 50 tokens"):
        datamodule(train=train, max_prompt_tokens=20).bind(encode)
    data = datamodule(train=train, max_prompt_tokens=20, on_bad_row="skip")
    with pytest.warns(UserWarning, match="dropped 1 of 7 rows"):
        data.bind(encode)
    assert data.train_problems.dropped == {"over-long prompt": 1}
    assert data.steps_per_epoch == 3


def test_too_few_prompts_left_after_the_length_check_is_an_error():
    train = [*problems("train", 1), Problem("long", "x" * 50, "1", "train")]
    data = datamodule(train=train, max_prompt_tokens=20, on_bad_row="skip")
    with (
        pytest.warns(UserWarning, match="dropped 1 of 2 rows"),
        pytest.raises(ValueError, match="prompts_per_step=2 must lie between 1 and the 1"),
    ):
        data.bind(encode)


def trainer_of(folder, callbacks=()):
    return Trainer(
        max_epochs=2,
        accelerator="cpu",
        logger=False,
        callbacks=list(callbacks),
        enable_checkpointing=bool(callbacks),
        enable_progress_bar=False,
        enable_model_summary=False,
        num_sanity_val_steps=0,
        use_distributed_sampler=False,
        default_root_dir=folder,
    )


def test_training_starts_at_the_first_step_after_a_validation_before_it(tmp_path):
    data = datamodule(validation_prompts_per_batch=2)
    data.bind(encode)
    module, trainer = Counter(), trainer_of(tmp_path)
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")
        trainer.validate(module, data, verbose=False)
        trainer.fit(module, datamodule=data)
    check = [("validation",)] * 2
    assert module.shown == [
        *check,
        *(("train", step) for step in range(3)),
        *check,
        *(("train", step) for step in range(3, 6)),
        *check,
    ]


def test_a_checkpoint_of_an_epochs_end_resumes_at_the_next_step(tmp_path):
    def fit(callbacks, ckpt_path=None):
        data = datamodule()
        data.bind(encode)
        module = Counter()
        with warnings.catch_warnings():
            warnings.simplefilter("ignore")
            trainer = trainer_of(tmp_path, callbacks)
            trainer.fit(module, datamodule=data, ckpt_path=ckpt_path)
        return [stream for stream in module.shown if stream[0] == "train"]

    every_epoch = ModelCheckpoint(
        tmp_path, "{epoch}", save_top_k=-1, save_on_train_epoch_end=True, monitor=None
    )
    assert fit([every_epoch]) == [("train", step) for step in range(6)]
    resumed = fit([], ckpt_path=tmp_path / "epoch=0.ckpt")
    assert resumed == [("train", step) for step in range(3, 6)]

    other = datamodule(train=problems("other", 6))
    other.bind(encode)
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")
        trainer_of(tmp_path).validate(
            Counter(), other, ckpt_path=tmp_path / "epoch=0.ckpt", verbose=False
        )
    assert other.train_dataloader().step == 0


def test_a_foreign_state_is_refused():
    data = datamodule()
    data.bind(encode)
    data.setup("fit")
    with pytest.raises(ValueError, match="data state has keys"):
        data.load_state_dict({"loader": {}})
    with pytest.raises(ValueError, match="other training prompts"):
        data.load_state_dict(
            {**data.state_dict(), "train": {**data.state_dict()["train"], "seed": 9}}
        )


@pytest.mark.parametrize("name", ["train", "validation"])
def test_problems_that_changed_since_the_checkpoint_are_told(name):
    data = datamodule()
    data.bind(encode)
    data.setup("fit")
    now = problems("train", 6) if name == "train" else problems("check", 3)
    now[1] = Problem(now[1].id, now[1].prompt, "another answer", now[1].source)
    changed = datamodule(**{name: now})
    changed.bind(encode)
    changed.setup("fit")
    with pytest.raises(ValueError, match=r"other (training prompts|validation problems)"):
        changed.load_state_dict(data.state_dict())


def test_hydra_builds_it_from_two_files(tmp_path):
    columns = {
        "_target_": "e3rl.data.problems.Columns",
        "answer": "reward_model.ground_truth",
        "source": "data_source",
        "prior": "rank",
    }
    config = {"_target_": "e3rl.data.datamodule.PromptDataModule", "prompts_per_step": 2}
    for name in ("train", "validation"):
        path = tmp_path / f"{name}.jsonl"
        rows = (
            {
                "data_source": "math",
                "prompt": [{"role": "user", "content": f"{name} {i}"}],
                "rank": i / 4,
                "reward_model": {"ground_truth": str(i)},
            }
            for i in range(4)
        )
        path.write_text("\n".join(map(json.dumps, rows)))
        config[name] = {
            "_target_": "e3rl.data.problems.load_problems",
            "path": str(path),
            "columns": columns,
        }
    data = instantiate(config)
    assert [p.prior for p in data.train_problems] == [0.0, 0.25, 0.5, 0.75]
    assert data.validation_problems[3].id == "validation:3"
    assert data.validation_problems.origin.endswith("validation.jsonl")


def test_files_that_vanish_or_change_during_a_run_change_nothing_of_it(tmp_path):
    paths = [tmp_path / "train.jsonl", tmp_path / "validation.jsonl"]
    for path in paths:
        rows = ({"prompt": f"{path.stem} {i}?", "answer": str(i)} for i in range(4))
        path.write_text("\n".join(map(json.dumps, rows)))
    data = PromptDataModule(*map(load_problems, paths), prompts_per_step=2)
    paths[0].unlink()
    paths[1].write_text("no JSON any more")
    assert [problem.prompt for problem in data.train_problems] == [f"train {i}?" for i in range(4)]
    assert [problem.answer for problem in data.validation_problems] == list("0123")
    with pytest.raises(FileNotFoundError, match=r"train\.jsonl"):
        load_problems(paths[0])


def ready(**given):
    data = datamodule(**given)
    data.bind(encode)
    data.setup("fit")
    return data


def test_validation_problems_that_are_counted_otherwise_are_other_ones():
    sourced = [replace(each, source="else") for each in problems("check", 3)]
    with pytest.raises(ValueError, match="other validation problems"):
        ready(validation=sourced).load_state_dict(ready().state_dict())


def test_a_checkpoint_whose_digest_knew_no_sources_goes_on():
    first, data = ready(), ready()
    next(iter(first.train_dataloader()))
    earlier = first.state_dict() | {"validation": fingerprint(first.validation_problems)}
    assert earlier["validation"] != first.state_dict()["validation"]
    assert earlier["train"] != data.state_dict()["train"]
    data.load_state_dict(earlier)
    assert data.state_dict()["train"] == earlier["train"]
