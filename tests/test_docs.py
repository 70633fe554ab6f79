"""What the documentation shows is true: commands, links, the example, what repeats the code."""

import importlib.util
import re
from pathlib import Path
from types import ModuleType

import numpy as np
import pytest
import yaml
from hydra.utils import get_class
from matplotlib.colors import to_rgb
from PIL import Image

from compositions import composed
from e3rl.analysis.figures.style import arm_colour
from e3rl.callbacks.slot import Slot
from e3rl.config.composition import conf_dir
from e3rl.rewards.functions import build_function_rewards
from e3rl.rewards.scorer import Question
from e3rl.simulate import simulate
from pages import (
    DOCS,
    ROOT,
    anchors,
    blocks,
    check_example_of_a_rule,
    code,
    commands,
    dead_links,
    own_command,
    put_in_place,
    rows,
    unproven,
)
from test_architecture import COMMANDS, ROOMS

pytestmark = pytest.mark.end_to_end


# Groups that the page of axes leaves out: experiments and sweeps have pages of their own, and of
# the others there is one choice for every run.
NO_AXES = {"callbacks", "experiment", "hydra", "module", "paths", "sweep"}
STAGES = {
    "pass@k in validation": "pass_at_k",
    "reward scorer": "reward",
    "rollout rounds": "rollout",
}


def page(name: str) -> str:
    return (ROOT / "docs" / f"{name}.md").read_text(encoding="utf-8")


def pipeline() -> dict[str, dict[str, str]]:
    found: dict[str, dict[str, str]] = yaml.safe_load(
        (conf_dir() / "callbacks" / "default.yaml").read_text()
    )
    return found


@pytest.mark.parametrize("path", DOCS, ids=lambda path: path.stem)
def test_every_command_is_checked_or_said_not_to_be_run(
    path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    put_in_place(page("own_rule"), monkeypatch)
    assert unproven(path.read_text(encoding="utf-8")) == []


def test_wrong_and_unknown_commands_are_found() -> None:
    def found(line: str, info: str = "") -> list[str]:
        return unproven(f"```bash {info}\n{line}\n```")

    assert found("e3rl train budget=uniform seed=2 # a comment") == []
    assert found("e3rl train -m seed=1,2 sweep.name=x") == []
    assert found(".venv/bin/python -m e3rl.report runs --control grpo") == []
    assert "budgit" in found("e3rl train budgit=uniform")[0]
    assert "--controls" in found("e3rl report runs --controls=grpo")[0]
    assert "no command tarin" in found("e3rl tarin seed=1")[0]
    assert "no such target" in found("make trian")[0]
    assert "no test knows" in found("wandb sync FOLDER")[0]
    assert found("wandb sync FOLDER", 'title="not run here: needs a login"') == []
    assert "epoch" in found("srun e3rl train epoch=2", 'title="not run here: needs Slurm"')[0]


@pytest.mark.parametrize("path", [*DOCS, ROOT / "README.md"], ids=lambda path: path.stem)
def test_every_link_leads_somewhere(path: Path) -> None:
    assert dead_links(path) == []


def test_dead_links_and_anchors_are_found(tmp_path: Path) -> None:
    path = tmp_path / "page.md"
    path.write_text(
        "# Pass@k & more\n[a](#passk-more) [b](#more) [c](page.md) [d](other.md) "
        "[e](https://arxiv.org/abs/2505.18573) [f](http//x) [g](http:x) `[h](i)`\n"
        "```text\n[j](k)\n```\n"
    )
    assert anchors(path.read_text()) == {"passk-more"}
    assert dead_links(path) == ["#more", "other.md", "http//x", "http:x"]


def test_the_rule_of_the_page_is_one_passes_its_test_and_can_be_simulated(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture
) -> None:
    check_example_of_a_rule(page("own_rule"), tmp_path, monkeypatch)
    (block,) = blocks(page("own_rule"), "bash")
    ((name, arguments),) = map(own_command, commands(block.text))
    assert name == "simulate"
    small = ("rules=[first_hit]", "table.prompts=128", f"out={tmp_path}")
    simulate(composed(*arguments, *small, root="simulate"))
    assert "first_hit" in capsys.readouterr().out


def test_the_rewards_of_the_page_pay_what_it_says(tmp_path: Path) -> None:
    question = Question("p", "", "46", {"level": 1})
    plain, scored = (block.text for block in blocks(page("rewards"), "python"))
    for text, wanted in ((plain, [(1.0, "correct")]), (scored, [(0.995, "correct")])):
        (tmp_path / "own.py").write_text(text)
        with build_function_rewards(f"{tmp_path}/own.py:score", workers=1, deadline_s=60) as pool:
            pool.check([question])
            pool.submit("is 46", question)
            pool.submit("is 47", question)
            right, wrong = pool.collect()
        assert [(right.reward, right.status)] == wanted
        assert wrong.status == "wrong"


def test_the_simulation_of_the_page_runs(tmp_path: Path, capsys: pytest.CaptureFixture) -> None:
    shown = [own_command(words) for b in blocks(page("axes"), "bash") for words in commands(b.text)]
    assert ("simulate", []) in shown
    simulate(composed(f"out={tmp_path}", "table.prompts=128", "epochs=2", root="simulate"))
    assert "knapsack" in capsys.readouterr().out


def test_axes_have_the_choices_of_conf() -> None:
    told = {group: code(choices) for _, group, choices in rows(page("axes"), "All of them")}
    files = [path.relative_to(conf_dir()) for path in conf_dir().rglob("*.yaml")]
    groups: dict[str, set[str]] = {}
    for path in files:
        if len(path.parts) > 1 and path.parts[0] not in NO_AXES:
            groups.setdefault(f"`{path.parent.as_posix()}`", set()).add(path.stem)
    for chosen_by_others in ("debug/few", "debug/stand_in"):  # debug, data and policy
        del groups[f"`{chosen_by_others}`"]
    assert {group: set(choices) for group, choices in told.items()} == groups
    budgets = [name for row in rows(page("axes"), "Budgets") for name in code(row[0])]
    assert set(budgets) == groups["`budget`"]
    temperatures = [name for row in rows(page("axes"), "Temperatures") for name in code(row[0])]
    assert set(temperatures) == groups["`temperature`"]


def test_the_line_of_the_pipeline_is_the_order_of_the_callbacks() -> None:
    lines = lines_of_the_pipeline(page("architecture"))
    assert len(lines) == 1
    for line in lines + lines_of_the_pipeline((ROOT / "README.md").read_text(encoding="utf-8")):
        stages = [stage.strip("() ") for stage in line.split("→")]
        assert stages.pop(0) == "prompts"
        stages.remove("GRPO update")  # the module, which is no slot
        assert [STAGES.get(stage, stage) for stage in stages] == list(pipeline())


def lines_of_the_pipeline(text: str) -> list[str]:
    return [" ".join(line.split()) for line in re.findall(r"\*\*(prompts → [^*]*)\*\*", text)]


def test_the_picture_shows_the_same_stages() -> None:
    picture = (ROOT / "docs" / "images" / "pipeline.svg").read_text(encoding="utf-8")
    (line,) = lines_of_the_pipeline(page("architecture"))
    words = re.sub(r"[→()]|in validation", "", line).split()
    assert " ".join(re.findall(r'class="stage"[^>]*>([^<]+)<', picture)).split() == words


def test_slots_write_what_the_page_says() -> None:
    told = {
        code(slot)[0]: code(writes) for slot, writes, *_ in rows(page("architecture"), "The slots")
    }
    assert list(told) == list(pipeline())
    for name, node in pipeline().items():
        slot = get_class(node["_target_"])
        if issubclass(slot, Slot):
            assert set(told[name]) <= {*slot.writes, *slot.validation_writes}, name
            assert bool(told[name]) == bool(slot.writes or slot.validation_writes), name


def hooks() -> ModuleType:
    spec = importlib.util.spec_from_file_location("docs_hooks", ROOT / "docs" / "hooks.py")
    assert spec is not None
    assert spec.loader is not None
    module = importlib.util.module_from_spec(spec)
    spec.loader.exec_module(module)
    return module


def test_every_room_and_command_has_its_place() -> None:
    told = {code(room)[0]: words for room, words in rows(page("architecture"), "Rooms")}
    assert list(told.items()) == list(ROOMS.items())
    reference = hooks().reference_pages()
    assert set(ROOMS) <= set(reference)
    assert {f"e3rl.{name}" for name in COMMANDS} <= set(reference["commands"])


def test_a_word_of_the_glossary_has_one_meaning() -> None:
    text = page("glossary")
    headings = re.findall(r"^## (.+)$", text, flags=re.M)
    words = [row[0] for heading in headings for row in rows(text, heading)]
    assert len(words) > 60
    assert sorted(words) == sorted(set(words))


def test_every_study_that_has_been_judged_stands_in_the_index_once() -> None:
    """A declared one has no results/ until its runs are there."""
    folders = (path.parent for path in (ROOT / "experiments").glob("*/README.md"))
    judged = {
        folder.name
        for folder in folders
        if not (folder / "study.declared.yaml").is_file() or (folder / "study.yaml").is_file()
    }
    linked = re.findall(r"(?m)^\| \[[^]]+\]\(\.\./experiments/(\w+)/README\.md\)", page("studies"))
    assert sorted(linked) == sorted(judged)


def test_the_picture_of_a_report_page_keeps_the_colours_of_all_arms() -> None:
    """Few colours make a small file, and may take two arms for one."""
    folder = ROOT / "experiments" / "carries_core"
    arms = yaml.safe_load((folder / "study.yaml").read_text(encoding="utf-8"))["arms"]
    arms = [arm for arm in arms if arm not in ("hot", "dapo")] + ["dapo", "hot"]  # as the page
    picture = Image.open(folder / "figures" / "report.png").convert("RGB")
    shown = np.unique(np.asarray(picture).reshape(-1, 3), axis=0).astype(int)
    for arm in arms:
        wanted = 255 * np.array(to_rgb(arm_colour(arm, arms)))
        assert np.abs(shown - wanted).max(axis=1).min() < 6, arm
