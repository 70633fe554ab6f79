"""Evaluating a policy outside of training, by the slots that validate in it."""

import copy
from collections.abc import Iterator, Sequence
from pathlib import Path
from typing import Any

import pytest
import torch

from e3rl.callbacks.pass_at_k import EvaluationCounts, PassAtK
from e3rl.callbacks.validation_schedule import Evaluation
from e3rl.checkpoints.atomic import AtomicCheckpointIO
from e3rl.checkpoints.files import DamagedCheckpointError
from e3rl.config.differences import differences
from e3rl.data.arithmetic import arithmetic_problems
from e3rl.engines.base import RolloutRequest
from e3rl.engines.transformers import TransformersEngine
from e3rl.evaluation.log import COMPLETIONS, EvaluationLog
from e3rl.evaluation.sampling import (
    evaluate_policy,
    load_weights,
    merge_rows,
    sample_unfinished,
    sampling_settings,
    to_evaluation_result,
    weights_digest,
)
from e3rl.ledger.ledger import read_rows
from e3rl.policy.policy import Policy
from e3rl.rewards.maths import build_math_rewards
from e3rl.rewards.pool import RewardPool
from e3rl.seeds import derive_seed

pytestmark = pytest.mark.end_to_end


PROBLEMS = list(arithmetic_problems("validation", size=6, seed=0))
T1, GREEDY = Evaluation("t1", n=3, temperature=1.0), Evaluation("greedy", n=1, temperature=0.0)


@pytest.fixture(autouse=True)
def _no_workers(monkeypatch: pytest.MonkeyPatch) -> None:
    """Integers are judged in this process; only the self-test would start workers."""
    monkeypatch.setattr(RewardPool, "self_test", lambda _: None)


class ListeningEngine(TransformersEngine):
    def __init__(self) -> None:
        super().__init__(progress=False)
        self.requests: list[RolloutRequest] = []
        self.closed = 0

    def generate(self, requests: Sequence[RolloutRequest]) -> Iterator[Any]:
        self.requests += requests
        return super().generate(requests)

    def close(self) -> None:
        self.closed += 1
        super().close()


def evaluate(
    policy: Policy, evaluations: Sequence[Evaluation], engine: Any = None, per_batch: int = 4
) -> list[EvaluationCounts]:
    return evaluate_policy(
        policy,
        PROBLEMS,
        evaluations,
        engine or ListeningEngine(),
        build_math_rewards("integer_box"),
        max_new_tokens=24,
        ks=[1, 2],
        prompts_per_batch=per_batch,
        progress=False,
    )


def test_every_problem_is_counted_once_in_order(policy: Policy) -> None:
    t1, greedy = evaluate(policy, [T1, GREEDY])
    assert t1.problem_id == greedy.problem_id == [p.id for p in PROBLEMS]
    assert t1.source == [p.source for p in PROBLEMS]
    assert (t1.n, greedy.n) == ([3] * 6, [1] * 6)
    assert all(0 <= c <= 3 for c in t1.correct)
    assert 0.05 < t1.entropy_sum / t1.tokens < 1.5
    assert (greedy.temperature, greedy.entropy_sum) == (0.0, 0.0)


def test_counts_do_not_depend_on_how_problems_are_batched(policy: Policy) -> None:
    (first,) = evaluate(policy, [T1], per_batch=6)
    (second,) = evaluate(policy, [T1], per_batch=1)
    assert first.correct == second.correct
    assert first.tokens == second.tokens
    assert first.entropy_sum == pytest.approx(second.entropy_sum, rel=1e-4)


def test_seeds_are_those_of_validation_in_training(policy: Policy) -> None:
    engine = ListeningEngine()
    evaluate(policy, [T1], engine)
    assert {r.seed for r in engine.requests} == {
        derive_seed(PassAtK([T1]).seed, "validation", p.id, j) for p in PROBLEMS for j in range(3)
    }


@pytest.mark.end_to_end
def test_a_policy_is_matched_to_an_entropy_by_evaluations_of_all_problems(policy: Policy) -> None:
    engine = ListeningEngine()
    (matched,) = evaluate(policy, [Evaluation("matched", n=64, entropy=0.7)], engine, per_batch=2)
    assert matched.n == [64] * 6
    assert matched.temperature > 1.2
    assert matched.entropy_sum / matched.tokens == pytest.approx(0.7, rel=0.1)  # few problems
    pilots: dict[float, set[tuple[tuple[int, ...], int]]] = {}
    for each in engine.requests:
        pilots.setdefault(each.temperature, set()).add((tuple(each.prompt_tokens), each.sample))
    *searched, last = pilots.values()
    assert len(searched) >= 2
    assert all(len(requests) == 6 * 32 for requests in searched)
    assert len(last) == 6 * 64


@pytest.mark.parametrize("fails", [True, False])
def test_engine_and_pool_are_closed_also_after_an_error(policy: Policy, fails: bool) -> None:
    class Failing(ListeningEngine):
        def generate(self, requests: Sequence[RolloutRequest]) -> Iterator[Any]:
            raise FloatingPointError("no rollouts today")

    engine = Failing() if fails else ListeningEngine()
    if fails:
        with pytest.raises(FloatingPointError, match="today"):
            evaluate(policy, [GREEDY], engine)
    else:
        evaluate(policy, [GREEDY], engine)
    assert engine.closed >= 1


def test_a_policy_is_left_in_the_mode_and_with_the_weights_it_had(policy: Policy) -> None:
    own = copy.deepcopy(policy).train()
    before = {name: value.clone() for name, value in own.state_dict().items()}
    evaluate(own, [GREEDY])
    assert own.training
    assert all(torch.equal(value, before[name]) for name, value in own.state_dict().items())


def saved(policy: Policy, path: Path, prefix: str = "policy.") -> Path:
    state = {f"{prefix}{name}": value for name, value in policy.state_dict().items()}
    AtomicCheckpointIO().save_checkpoint({"state_dict": state | {"other": torch.ones(1)}}, path)
    return path


def test_weights_of_a_checkpoint_are_put_into_the_policy(policy: Policy, tmp_path: Path) -> None:
    trained, fresh = copy.deepcopy(policy), copy.deepcopy(policy)
    with torch.no_grad():
        for parameter in trained.parameters():
            parameter.mul_(0.5)
    load_weights(fresh, saved(trained, tmp_path / "step-000001.ckpt"))
    expected = trained.state_dict()
    assert all(torch.equal(value, expected[name]) for name, value in fresh.state_dict().items())


def test_weights_that_do_not_fit_are_named(policy: Policy, tmp_path: Path) -> None:
    path = saved(policy, tmp_path / "step-000001.ckpt", prefix="elsewhere.")
    with pytest.raises(RuntimeError, match=r"Missing key.*model\."):
        load_weights(copy.deepcopy(policy), path)


def test_a_damaged_checkpoint_is_not_read(policy: Policy, tmp_path: Path) -> None:
    path = saved(policy, tmp_path / "step-000001.ckpt")
    path.write_bytes(path.read_bytes()[:-1])
    with pytest.raises(DamagedCheckpointError, match="does not match"):
        load_weights(copy.deepcopy(policy), path)


def test_counts_become_what_tables_and_figures_take() -> None:
    counts = EvaluationCounts("t1", 0.8, ["a", "b"], ["x", "y"], [4, 4], [1, 3], 6.0, 24, 0)
    evaluation = to_evaluation_result("arm", counts)
    assert (evaluation.arm, evaluation.name, evaluation.temperature) == ("arm", "t1", 0.8)
    assert evaluation.entropy == 0.25
    assert evaluation.pass_at_k([1])[0].mean == pytest.approx(0.5)


class Killed(BaseException):
    """The end of a process, as far as one process can play it."""


class DyingEngine(ListeningEngine):
    """Dies after so many rollouts."""

    def __init__(self, rollouts: int) -> None:
        super().__init__()
        self.left = rollouts

    def generate(self, requests: Sequence[RolloutRequest]) -> Iterator[Any]:
        for rollout in super().generate(requests):
            if self.left == 0:
                raise Killed
            self.left -= 1
            yield rollout


def logged(
    folder: Path, policy: Policy, evaluations: Sequence[Evaluation], engine: ListeningEngine
) -> list[dict[str, Any]]:
    """The rows of a log after an evaluation in batches of two, which may die."""
    settings = sampling_settings(policy, PROBLEMS, evaluations, 24)
    with EvaluationLog(folder, settings) as log, build_math_rewards("integer_box") as pool:
        sample_unfinished(log, policy, PROBLEMS, evaluations, engine, pool, 24, 2, progress=False)
        return log.rows


def rounded(rows: Sequence[dict[str, Any]]) -> list[dict[str, Any]]:
    """Log-probs depend on the batch in their last digits."""
    return [
        {**row, "evaluations": [e | {"entropy_sum": round(e["entropy_sum"], 3)} for e in each]}
        for row in rows
        for each in [row["evaluations"]]
    ]


def test_a_log_has_what_validation_counts(policy: Policy, tmp_path: Path) -> None:
    rows = logged(tmp_path, policy, [T1, GREEDY], ListeningEngine())
    counted = evaluate(policy, [T1, GREEDY], per_batch=2)
    assert merge_rows(rows) == counted
    assert [row["problem_id"] for row in rows] == [problem.id for problem in PROBLEMS]
    for row in rows:
        t1, greedy = row["evaluations"]
        assert (sum(t1["right"]), sum(t1["lengths"])) == (t1["correct"], t1["tokens"])
        assert (len(t1["classes"]), len(greedy["classes"])) == (3, 1)
    completions = read_rows(tmp_path / COMPLETIONS)
    assert len(completions) == 6 * (3 + 1) == rows[-1]["completions"]
    first = completions[:4]
    assert [(each["evaluation"], each["sample"]) for each in first] == [
        *(("t1", 0), ("t1", 1), ("t1", 2), ("greedy", 0))
    ]
    assert [each["correct"] for each in first[:3]] == rows[0]["evaluations"][0]["right"]
    assert [each["tokens"] for each in first[:3]] == rows[0]["evaluations"][0]["lengths"]
    for each in completions:
        boxed = rf"\boxed{{{each['given_answer']}}}" in each["completion"]
        assert boxed == (each["given_answer"] is not None) == (each["class"] is not None)
    assert any(each["correct"] for each in completions)


@pytest.mark.end_to_end
@pytest.mark.parametrize("rollouts", [3, 9, 21])
def test_a_killed_evaluation_ends_like_a_whole_one_and_repeats_no_problem(
    policy: Policy, tmp_path: Path, rollouts: int
) -> None:
    whole = logged(tmp_path / "whole", policy, [T1, GREEDY], ListeningEngine())
    with pytest.raises(Killed):
        logged(tmp_path / "torn", policy, [T1, GREEDY], DyingEngine(rollouts))
    engine = ListeningEngine()
    rest = logged(tmp_path / "torn", policy, [T1, GREEDY], engine)
    assert rounded(rest) == rounded(whole)
    finished = rollouts // 8 * 2  # batches of two problems with four rollouts each
    assert len(engine.requests) == (6 - finished) * 4
    texts = [(tmp_path / name / COMPLETIONS).read_text() for name in ("torn", "whole")]
    assert texts[0] == texts[1]
    again = ListeningEngine()
    assert logged(tmp_path / "torn", policy, [T1, GREEDY], again) == rest
    assert again.requests == []


@pytest.mark.end_to_end
def test_a_matched_temperature_is_kept_over_a_kill(policy: Policy, tmp_path: Path) -> None:
    wanted = [T1, Evaluation("matched", n=3, entropy=0.7)]
    searching, engine = ListeningEngine(), ListeningEngine()
    whole = logged(tmp_path / "whole", policy, wanted, searching)
    assert len(searching.requests) >= 6 * (2 * 32 + 6)  # at two temperatures, then what is wanted
    assert len(read_rows(tmp_path / "whole" / COMPLETIONS)) == 6 * 6
    with pytest.raises(Killed):
        logged(tmp_path / "torn", policy, wanted, DyingEngine(len(searching.requests) - 1))
    rest = logged(tmp_path / "torn", policy, wanted, engine)
    assert len(engine.requests) == 2 * 6
    assert rounded(rest) == rounded(whole)
    assert len({row["evaluations"][1]["temperature"] for row in rest}) == 1


def test_other_weights_or_prompts_are_other_settings(policy: Policy) -> None:
    def settings(each: Policy) -> dict[str, Any]:
        return sampling_settings(each, PROBLEMS, [T1], 24)

    own = settings(policy)
    assert settings(copy.deepcopy(policy)) == own
    altered, told = copy.deepcopy(policy), copy.deepcopy(policy)
    with torch.no_grad():
        next(altered.parameters()).view(-1)[0] += 1e-3
    told.instruction = "+1"
    assert [path for path, *_ in differences(own, settings(altered))] == ["model.weights"]
    assert next(differences(own, settings(told)))[0] == "prompts"
    assert weights_digest(copy.deepcopy(policy).bfloat16()) != own["model"]["weights"]
