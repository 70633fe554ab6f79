from pathlib import Path

import numpy as np
import pytest
import yaml

from e3rl.ledger.ledger import Ledger
from e3rl.simulator.table import PassRateTable, generate_table, load_table


def test_a_generated_table_has_its_shares_and_depends_on_the_seed_alone() -> None:
    table = generate_table(20_000, impossible=0.2, trivial=0.1, shape=(2.0, 2.0), seed=3)
    assert (table.rates == 0).mean() == pytest.approx(0.2, abs=0.01)
    assert (table.rates == 1).mean() == pytest.approx(0.1, abs=0.01)
    middle = table.rates[(table.rates > 0) & (table.rates < 1)]
    assert middle.mean() == pytest.approx(0.5, abs=0.01)
    assert middle.var() == pytest.approx(1 / 20, abs=0.003)  # of Beta(2, 2)
    assert len(set(table.prompt_ids)) == 20_000
    again = generate_table(20_000, impossible=0.2, trivial=0.1, shape=(2.0, 2.0), seed=3)
    assert (again.rates == table.rates).all()
    assert (generate_table(20_000, seed=4).rates != table.rates).any()


def test_learning_moves_log_odds_by_the_same_amount_and_leaves_the_ends() -> None:
    table = PassRateTable(["a", "b", "c", "d"], np.array([0.0, 0.2, 0.5, 1.0]), learning=np.log(2))
    assert table.rates_at(0).tolist() == [0, 0.2, 0.5, 1]
    # Odds 1/4 and 1 double at every pass.
    assert table.rates_at(1).tolist() == pytest.approx([0, 1 / 3, 2 / 3, 1])
    assert table.rates_at(2).tolist() == pytest.approx([0, 1 / 2, 4 / 5, 1])


@pytest.mark.parametrize(("learning", "between"), [(400.0, 1.0), (-400.0, 0.0)])
def test_log_odds_beyond_what_numbers_hold_are_certainty(learning: float, between: float) -> None:
    table = PassRateTable(["a", "b", "c"], np.array([0.0, 0.2, 1.0]), learning)
    assert table.rates_at(3).tolist() == pytest.approx([0.0, between, 1.0])


def write_run(folder: Path, rows: list[tuple[list[str], list[int], list[int]]]) -> Path:
    folder.mkdir(parents=True)
    (folder / "config.yaml").write_text(yaml.safe_dump({"name": "grpo", "seed": 1}))
    (folder / "metrics.jsonl").write_text('{"kind":"train","rollout_step":0}\n')
    with Ledger(folder / "prompts.jsonl") as ledger:
        for step, (ids, n, correct) in enumerate(rows):
            head = {"rollout_step": step, "epoch": 0, "source": ["s"] * len(ids)}
            row = {"prompt_id": ids, "n": n, "correct": correct, "rank": [0.5] * len(ids)}
            ledger.append(head | row)
    return folder


def test_recorded_rates_pool_the_rollouts_of_all_runs_and_passes(tmp_path: Path) -> None:
    one = write_run(tmp_path / "1", [(["b", "a"], [8, 4], [2, 0]), (["a", "c"], [4, 0], [1, 0])])
    two = write_run(tmp_path / "2", [(["b"], [4], [4])])
    table = load_table([one, two])
    assert table.prompt_ids == ["a", "b"]  # c was never sampled
    assert table.rates.tolist() == [1 / 8, 6 / 12]


def test_runs_without_prompts_are_named(tmp_path: Path) -> None:
    folder = write_run(tmp_path / "1", [])
    (folder / "prompts.jsonl").unlink()
    with pytest.raises(FileNotFoundError, match=r"no prompts.jsonl in .*1"):
        load_table([folder])


@pytest.mark.parametrize(
    "settings",
    [{"prompts": 0}, {"prompts": 4, "impossible": -0.1}, {"prompts": 4, "impossible": 0.95}],
)
def test_shares_that_are_none_are_refused(settings: dict[str, float]) -> None:
    with pytest.raises(ValueError, match="shares that add up to at most 1"):
        generate_table(**settings)  # type: ignore[arg-type]


@pytest.mark.parametrize("shape", [(0.7,), (0.7, 0.0), (1.0, 2.0, 3.0)])
def test_a_shape_that_is_none_is_refused(shape: tuple[float, float]) -> None:
    with pytest.raises(ValueError, match="give a and b of a Beta distribution, both above 0"):
        generate_table(4, shape=shape)


def test_a_table_needs_one_rate_in_the_unit_interval_per_prompt() -> None:
    with pytest.raises(ValueError, match="2 prompts with 1 pass rates"):
        PassRateTable(["a", "b"], np.array([0.5]))
    with pytest.raises(ValueError, match=r"\[0, 1\]"):
        PassRateTable(["a"], np.array([1.5]))
