import contextlib
import itertools
import warnings
from dataclasses import replace

import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st
from lightning.pytorch import Callback, LightningModule, Trainer
from lightning.pytorch.callbacks import ModelCheckpoint

from e3rl.data import loader as loader_file
from e3rl.data.loader import PromptLoader, ValidationLoader, collate, fingerprint
from e3rl.data.problem import Problem

BATCHES, PER_STEP, EPOCHS = 4, 3, 4


def problems(size):
    return [Problem(f"p{i}", f"q{i}", str(i), "sums", i % 3, i / size) for i in range(size)]


def encode(problem):
    return f"<{problem.prompt}>", [1, *map(ord, problem.prompt)]


def training(size=BATCHES * PER_STEP, per_step=PER_STEP, seed=0, **more):
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")
        return PromptLoader(problems(size), encode, per_step, seed, **more)


def drawn(loader, count):
    """(stream, prompt ids) of the next `count` batches, over as many passes as it takes."""
    out = []
    while len(out) < count:
        for batch in loader:
            out.append((batch.stream, batch.prompt_ids))
            if len(out) == count:
                break
    return out


def test_a_batch_carries_everything_that_is_known_about_its_problems():
    batch = collate(problems(4)[1:3], encode, ("train", 5))
    assert batch.prompt_ids == ["p1", "p2"]
    assert batch.prompts == ["<q1>", "<q2>"]
    assert batch.answers == ["1", "2"]
    assert batch.sources == ["sums", "sums"]
    assert batch.prompt_tokens == [[1, 113, 49], [1, 113, 50]]
    assert batch.levels == [1, 2]
    assert batch.priors == [0.25, 0.5]
    assert batch.stream == ("train", 5)


def test_every_pass_shows_each_prompt_once_in_an_order_of_its_own():
    loader = training()
    passes = [[i for batch in loader for i in batch.prompt_ids] for _ in range(3)]
    assert all(sorted(ids) == sorted(p.id for p in loader.problems) for ids in passes)
    assert len({tuple(ids) for ids in passes}) == 3
    assert len(loader) == BATCHES


def test_the_order_depends_on_the_seed_alone():
    assert drawn(training(seed=1), 6) == drawn(training(seed=1), 6)
    assert drawn(training(seed=1), 4) != drawn(training(seed=2), 4)


def test_streams_count_steps_over_all_passes():
    streams = [stream for stream, _ in drawn(training(), 9)]
    assert streams == [("train", step) for step in range(9)]


def test_prompts_that_do_not_fill_a_batch_are_left_out_with_a_warning_and_vary():
    with pytest.warns(UserWarning, match=r"14 training problems .* leaves 2 of them out"):
        loader = PromptLoader(problems(14), encode, 3, seed=0)
    shown = [{i for batch in loader for i in batch.prompt_ids} for _ in range(3)]
    assert [len(ids) for ids in shown] == [12, 12, 12]
    assert len({frozenset(ids) for ids in shown}) == 3


def test_peek_shows_the_next_batch_without_using_it_up_also_past_the_end_of_a_pass():
    loader = training()
    for _ in range(BATCHES + 1):
        peeked = loader.peek()
        assert (peeked.stream, peeked.prompt_ids) == drawn(loader, 1)[0]
    assert loader.step == BATCHES + 1


@settings(deadline=None, max_examples=60)
@given(st.integers(1, 30), st.integers(1, 6), st.integers(0, 40), st.integers(0, 9))
def test_a_restored_loader_goes_on_with_the_same_batches(size, per_step, before, after):
    per_step = min(per_step, size)
    whole = drawn(training(size, per_step), before + after)
    first = training(size, per_step)
    drawn(first, before)
    second = training(size, per_step)
    second.load_state_dict(first.state_dict())
    assert drawn(second, after) == whole[before:]


@settings(deadline=None, max_examples=40)
@given(st.integers(1, 4), st.integers(1, 3), st.integers(0, 11))
def test_ranks_share_the_batch_of_a_single_process_equally(world_size, share, extra):
    per_step = world_size * share
    size = per_step + extra
    whole = drawn(training(size, per_step), 5)
    shards = [
        drawn(training(size, per_step, rank=rank, world_size=world_size), 5)
        for rank in range(world_size)
    ]
    for step, (stream, ids) in enumerate(whole):
        assert all(shard[step][0] == stream for shard in shards)
        assert all(len(shard[step][1]) == share for shard in shards)
        assert [ids[r::world_size] for r in range(world_size)] == [s[step][1] for s in shards]


def test_state_is_plain_and_independent_of_the_number_of_ranks():
    loader = training(12, 4)
    drawn(loader, 2)
    state = loader.state_dict()
    assert state["order"] == {"taken": 8, "waiting": []}
    assert state["left"] == []
    assert state["upcoming"] == []
    plain = ("order", "left", "upcoming")
    assert {type(value) for name, value in state.items() if name not in plain} <= {int, str}
    shard = training(12, 4, rank=1, world_size=2)
    shard.load_state_dict(state)
    assert drawn(shard, 1)[0][1] == drawn(loader, 1)[0][1][1::2]


def sample(batch, first):
    """As if the first `first` prompts of a batch had been sampled, one rollout each."""
    batch.requeue = True
    batch.group = torch.arange(min(first, batch.n_prompts))


def played(loader, steps, kept):
    """Prompt ids of steps of which only some prompts are sampled, upcoming ones ahead of time."""
    out = []
    batches = (batch for _ in itertools.count() for batch in loader)
    for batch in itertools.islice(batches, steps):
        for each in (batch, *batch.upcoming.values()):
            if each.group is None:
                sample(each, kept[each.stream[1] % len(kept)])
        out.append(batch.prompt_ids)
    return out


def test_prompts_that_were_not_sampled_come_first_in_the_next_batch_of_the_same_pass():
    a, b, *_ = (ids for _, ids in drawn(training(), 2))
    first, second, third = played(training(), 3, [1, 2, 3])
    assert first == a
    assert second == [*a[1:], b[0]]
    assert third == [b[0], *b[1:]]


def test_with_look_ahead_they_come_in_the_first_batch_made_after_they_are_known():
    a, b, c = (ids for _, ids in drawn(training(), 3))
    batches = played(training(lookahead=1), 3, [1, 2, 3])
    # The second is made before the first is sampled, the third after both.
    assert batches == [a, b, [*a[1:], b[2]]]
    assert played(training(lookahead=1), 4, [1, 2, 3])[3] == c


@pytest.mark.parametrize("lookahead", [0, 1, 2, 5, 20])
def test_each_batch_brings_those_along_that_none_before_did(lookahead):
    loader, seen = training(lookahead=lookahead), [0]
    for step, batch in enumerate(itertools.islice(loader, 4)):
        assert batch.stream == ("train", step)
        assert {step + n for n in batch.upcoming} == {x.stream[1] for x in batch.upcoming.values()}
        seen += [step + n for n in batch.upcoming]
        for each in (batch, *batch.upcoming.values()):
            sample(each, 3)
    assert seen == (list(range(4 + lookahead)) if lookahead else [0])


def test_batches_that_were_made_are_state_whether_they_are_sampled_or_not():
    whole = drawn(training(lookahead=2), 6)
    first = training(lookahead=2)
    assert drawn(first, 2) == whole[:2]
    state = first.state_dict()
    assert [each["shards"] for each in state["upcoming"]] == [None, None]
    for lookahead in (0, 1, 2, 3):
        second = training(lookahead=lookahead)
        second.load_state_dict(state)
        assert second.peek().prompt_ids == whole[2][1]
        assert drawn(second, 4) == whole[2:]


def test_epochs_keep_their_length_whatever_is_handed_back():
    loader = training()
    for _ in range(2):
        batches = []
        for batch in loader:
            sample(batch, 1)
            batches.append(batch)
        assert len(batches) == BATCHES
    assert loader.step == 2 * BATCHES


@pytest.mark.parametrize("lookahead", [0, 1, 3])
@settings(deadline=None, max_examples=40)
@given(st.integers(3, 10), st.lists(st.integers(1, 3), min_size=1, max_size=5), st.integers(1, 8))
def test_a_loader_restored_after_any_step_hands_back_the_same(lookahead, size, kept, cut):
    whole = training(size, lookahead=lookahead)
    batches = played(whole, 12, kept)
    first = training(size, lookahead=lookahead)
    assert played(first, cut, kept) == batches[:cut]
    second = training(size, lookahead=lookahead)
    second.load_state_dict(first.state_dict())
    assert played(second, 12 - cut, kept) == batches[cut:]


def test_prompts_that_any_rank_holds_without_rollouts_are_handed_back_to_all(monkeypatch):
    shards = [training(12, 4, rank=rank, world_size=2) for rank in range(2)]
    iterators = [iter(shard) for shard in shards]
    batches = [next(iterator) for iterator in iterators]
    ids = drawn(training(12, 4), 1)[0][1]
    # Groups were moved between ranks before they were sampled.
    batches[0].prompt_ids, batches[1].prompt_ids = ids[:2], ids[2:]
    for batch in batches:
        sample(batch, 1)
    monkeypatch.setattr(loader_file, "all_gather", lambda _: [[ids[1]], [ids[3]]])
    after = [next(iterator).prompt_ids for iterator in iterators]
    assert [after[0][0], after[1][0]] == [ids[1], ids[3]]


def test_a_batch_that_does_not_say_so_hands_nothing_back():
    loader = training()
    batches = iter(loader)
    sample(first := next(batches), 1)
    first.requeue = False
    assert next(batches).prompt_ids == drawn(training(), 2)[1][1]


@pytest.mark.parametrize(
    ("other", "named"),
    [
        (training(seed=5), "seed: 0 in the checkpoint, 5 now"),
        (training(per_step=4), "prompts_per_step: 3 in the checkpoint, 4 now"),
        (training(size=13), "problems: "),
    ],
)
def test_a_state_of_other_training_prompts_is_refused(other, named):
    with pytest.raises(ValueError, match="other training prompts") as error:
        other.load_state_dict(training().state_dict())
    assert named in str(error.value)


@pytest.mark.parametrize(
    "edited", [{"source": "other"}, {"level": 9}, {"level": None}, {"prior": 0.99}]
)
def test_problems_that_are_counted_or_ranked_otherwise_are_other_ones(edited):
    loader = training()
    loader.problems = [replace(loader.problems[0], **edited), *loader.problems[1:]]
    with pytest.raises(ValueError, match="other training prompts"):
        loader.load_state_dict(training().state_dict())


def test_a_checkpoint_from_before_these_were_digested_goes_on():
    before, same, other = training(), training(), training()
    drawn(before, 2)
    older = {**before.state_dict(), "problems": fingerprint(before.problems)}
    same.load_state_dict(older)
    assert drawn(same, 3) == drawn(before, 3)
    other.problems = [replace(other.problems[0], answer="9"), *other.problems[1:]]
    with pytest.raises(ValueError, match="other training prompts"):
        other.load_state_dict(older)


def test_a_state_with_other_keys_or_no_count_is_refused():
    loader = training()
    with pytest.raises(ValueError, match="has keys"):
        loader.load_state_dict({"step": 3})
    with pytest.raises(ValueError, match="step=-1"):
        loader.load_state_dict({**loader.state_dict(), "step": -1})


@pytest.mark.parametrize(
    ("per_step", "rank", "world_size", "message"),
    [
        (0, 0, 1, "prompts_per_step=0"),
        (13, 0, 1, "prompts_per_step=13 is more than the 12 training problems"),
        (4, 0, 3, "make it a multiple of 3"),
        (4, 2, 2, "rank 2 does not exist among 2 ranks"),
    ],
)
def test_sizes_that_cannot_work_are_refused(per_step, rank, world_size, message):
    with pytest.raises(ValueError, match=message):
        PromptLoader(problems(12), encode, per_step, 0, rank, world_size)


def test_validation_shows_all_problems_in_order_every_time():
    loader = ValidationLoader(problems(7), encode, 3)
    for _ in range(2):
        batches = list(loader)
        assert [b.prompt_ids for b in batches] == [
            ["p0", "p1", "p2"],
            ["p3", "p4", "p5"],
            ["p6"],
        ]
        assert {b.stream for b in batches} == {("validation",)}
    assert len(loader) == 3


@settings(deadline=None, max_examples=40)
@given(st.integers(1, 20), st.integers(1, 7), st.integers(1, 5))
def test_validation_ranks_get_equally_many_and_together_everything(size, per_batch, world_size):
    ranks = [
        list(ValidationLoader(problems(size), encode, per_batch, rank, world_size))
        for rank in range(world_size)
    ]
    for batches in zip(*ranks, strict=True):
        assert len({batch.n_prompts for batch in batches}) == 1
        assert batches[0].n_prompts == -(
            -len({i for b in batches for i in b.prompt_ids}) // world_size
        )
    shown = {i for batches in ranks for batch in batches for i in batch.prompt_ids}
    assert shown == {p.id for p in problems(size)}


def test_a_validation_batch_of_nothing_is_refused():
    with pytest.raises(ValueError, match="prompts_per_batch=0"):
        ValidationLoader(problems(3), encode, 0)


class Reader(LightningModule):
    """Learns nothing and notes which prompts it was shown."""

    def __init__(self):
        super().__init__()
        self.automatic_optimization = False
        self.weight = torch.nn.Parameter(torch.zeros(1))
        self.seen = []

    def training_step(self, batch, batch_index):
        optimizer = self.optimizers()
        optimizer.step()
        self.seen.append((self.current_epoch, batch_index, batch.stream, batch.prompt_ids))

    def configure_optimizers(self):
        return torch.optim.SGD(self.parameters(), lr=0.1)

    def validation_step(self, batch, batch_index):
        assert batch.n_prompts > 0


class Interrupted(Exception):
    pass


class Interrupt(Callback):
    """Fails in the batch after the checkpoint, as a killed run would."""

    def __init__(self, at):
        self.at = at

    def on_train_batch_start(self, trainer, module, batch, batch_index):
        if trainer.fit_loop.total_batch_idx == self.at:
            raise Interrupted


def fit(folder, callbacks=(), ckpt_path=None, **more):
    module = Reader()
    trainer = Trainer(
        **{"max_epochs": EPOCHS, **more},
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
    loaders = training(), ValidationLoader(problems(3), encode, 2)
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")
        with contextlib.suppress(Interrupted):
            trainer.fit(module, *loaders, ckpt_path=ckpt_path)
    return module.seen


@pytest.mark.end_to_end
@pytest.mark.parametrize(
    "limits",
    [
        {"limit_val_batches": 0},
        {"check_val_every_n_epoch": 1},
        {"check_val_every_n_epoch": None, "val_check_interval": 2},
        {"limit_val_batches": 0, "max_epochs": -1, "max_steps": BATCHES * EPOCHS},
    ],
)
@pytest.mark.parametrize("saved", [1, BATCHES - 1, BATCHES, BATCHES + 2, 2 * BATCHES])
def test_lightning_resumes_with_exactly_the_remaining_prompts(tmp_path, saved, limits):
    whole = fit(tmp_path, **limits)
    assert len(whole) == BATCHES * EPOCHS
    assert [stream for _, _, stream, _ in whole] == [("train", s) for s in range(len(whole))]
    checkpoint = ModelCheckpoint(
        tmp_path, "last", every_n_train_steps=saved, save_top_k=1, monitor=None
    )
    seen = fit(tmp_path, [checkpoint, Interrupt(saved)], **limits)
    assert seen == whole[:saved]
    resumed = fit(tmp_path, ckpt_path=checkpoint.best_model_path, **limits)
    assert resumed == whole[saved:]


def test_epochs_shorter_than_a_pass_go_on_where_the_last_one_stopped(tmp_path):
    seen = fit(tmp_path, limit_train_batches=BATCHES - 1, limit_val_batches=0)
    expected = drawn(training(), (BATCHES - 1) * EPOCHS)
    assert [(stream, ids) for _, _, stream, ids in seen] == expected
