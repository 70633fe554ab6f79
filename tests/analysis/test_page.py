"""The report page: complete without a network, true to its runs, and drawn by a real browser."""

import json
import re
from dataclasses import replace
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from matplotlib.colors import to_rgb
from matplotlib.image import imread

from browser import Elements, addresses, browse
from e3rl.analysis.figures.style import arm_colour
from e3rl.analysis.measures.axes import AXES
from e3rl.analysis.measures.comparison import compare_arms
from e3rl.analysis.measures.curves import seed_band
from e3rl.analysis.page.forest import PLOT, forests, ticks, verdict_lines, warning_list
from e3rl.analysis.page.page import render_report
from e3rl.analysis.page.page_figures import far_arms, page_figures
from e3rl.analysis.sources.runs import Run

pytestmark = pytest.mark.end_to_end

Arms = dict[str, list[Run]]

FIGURES = {
    *("entropy", "entropy-t1", "temperature", "accuracy", "all-wrong", "difficulty"),
    *("validation-t1", "validation-greedy", "validation-live", "validation-matched"),
    *("pass-at-k-t1", "pass-at-k-live", "pass-at-k-matched", "frontier"),
}


@pytest.fixture(scope="module")
def page(arms: Arms) -> str:
    rows = compare_arms(arms, "grpo", ks=(1, 8))
    return render_report(arms, rows, "Arms <of> a study", control="grpo")


@pytest.fixture(scope="module")
def many(arms: Arms) -> str:
    """A page of 17 arms, more than there are colours."""
    named = {"grpo": arms["grpo"]} | {
        f"arm {i}": [replace(run, name=f"arm {i}") for run in arms["e3"]] for i in range(16)
    }
    return render_report(named, [], "Many", control="grpo")


@pytest.fixture(scope="module")
def profile(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return tmp_path_factory.mktemp("browser")


def saved(page: str, folder: Path, script: str = "") -> Path:
    """The page as a file, with a script at its end that plays the reader."""
    path = folder / "page.html"
    path.write_text(page.replace("</body>", f"<script>{script}</script></body>"))
    return path


def test_figures_hold_the_bands_of_the_runs(arms: Arms) -> None:
    figures = {figure["id"]: figure for figure in page_figures(arms)}
    assert set(figures) == FIGURES
    curve = figures["temperature"]["curves"]["tokens"][2]
    band = seed_band([run.train for run in arms["e3"]], "rollout/temperature", axis="tokens")
    assert band is not None
    assert curve["arm"] == 2
    for name in ("x", "mean", "low", "high"):
        np.testing.assert_allclose(curve[name], getattr(band, name), rtol=1e-4)
    assert [c["dashed"] for c in figures["entropy"]["curves"]["steps"]] == [False] * 3 + [True] * 2
    assert figures["entropy"]["marks"]["steps"] == {1: [15], 2: [15]}  # of those that anneal
    spent = sorted({run.train["cost/seconds"][14] for run in arms["e3"]})
    assert figures["entropy"]["marks"]["seconds"][2] == spent
    (by_k,) = figures["pass-at-k-t1"]["curves"].values()
    assert [curve["x"] for curve in by_k] == [[1, 2, 4, 8, 16]] * 3


def test_a_figure_of_what_nobody_recorded_is_left_out(run: Run) -> None:
    bare = replace(run, prompts=run.prompts.head(0))
    assert "difficulty" not in {figure["id"] for figure in page_figures({"e3": [bare]})}


def test_a_frontier_of_one_temperature_an_arm_is_none(arms: Arms) -> None:
    def without(run: Run, *left: str) -> Run:
        """Without these evaluations at the end; the policy before training has them all."""
        tables = {name: getattr(run, name) for name in ("evaluations", "problems")}
        keeps = {k: t[~t["name"].isin(left) | (t["rollout_step"] == 0)] for k, t in tables.items()}
        return replace(run, **keeps)

    def drawn(*left: str) -> bool:
        found = page_figures({arm: [without(run, *left) for run in arms[arm]] for arm in arms})
        return "frontier" in {figure["id"] for figure in found}

    assert drawn("live")
    assert not drawn("live", "matched")


def test_a_name_of_an_evaluation_with_a_space_is_a_valid_identifier(run: Run) -> None:
    named = {
        table: getattr(run, table).assign(name=getattr(run, table)["name"].replace("live", "at ts"))
        for table in ("evaluations", "problems")
    }
    figures = page_figures({"e3": [replace(run, **named)]})
    assert {"validation-at-ts", "pass-at-k-at-ts"} <= {figure["id"] for figure in figures}


def test_long_curves_are_thinned_to_what_a_screen_shows(run: Run) -> None:
    rows = 2000
    train = run.train.iloc[[0] * rows].assign(rollout_step=range(rows))
    train["policy/entropy"] = np.linspace(1, 0, rows)
    (figure, *_) = page_figures({"e3": [replace(run, train=train)]})
    curve = figure["curves"]["steps"][0]
    assert 200 <= len(curve["x"]) <= 240
    assert (curve["x"][0], curve["x"][-1]) == (0, rows - 1)


def test_the_page_fetches_nothing(page: str) -> None:
    assert addresses(page) == []
    assert not any(
        attributes.get("src") or attributes.get("href") for _, attributes in Elements(page).found
    )
    assert '<meta name="color-scheme" content="only light">' in page  # no browser turns it dark
    policy = Elements(page).of("meta")[1]["content"]
    assert policy is not None
    assert policy.startswith("default-src 'none'")


def test_names_in_the_data_are_no_markup(arms: Arms) -> None:
    evil = "</script><script>alert(1)</script>"
    runs = [replace(run, name=evil, config={"x": {evil: run.seed}}) for run in arms["e3"]]
    page = render_report({"grpo": arms["grpo"], evil: runs}, [], evil)
    assert page.count("<script") == 2
    assert "alert(1)&lt;/script&gt;" in page
    data = re.search(r'id="data">(.*?)</script>', page, re.S)
    assert data
    assert json.loads(data[1])["arms"][1]["label"] == evil


def test_tables_name_arms_verdicts_and_differences(arms: Arms, page: str) -> None:
    cells = [text for tag, text in Elements(page).texts if tag == "td"]
    assert "GRPO + TS + AN" in cells
    assert any(text.startswith("not distinguishable (2 seeds") for text in cells)
    assert any(text.startswith("none: the control has no evaluation of 32") for text in cells)
    classes = {attributes.get("class") for attributes in Elements(page).of("td")}
    assert "word not" in classes  # which may wrap
    assert "word" in classes  # coloured where a verdict is given, which two seeds do not bear
    assert not {"word better", "word worse"} & classes
    # The recorded arms differ in nothing but their names.
    assert '<p class="note">Nothing.</p>' in page
    assert "Arms &lt;of&gt; a study" in page


def test_runs_without_validation_have_a_page_too(arms: Arms) -> None:
    bare = [
        replace(run, problems=run.problems.head(0), evaluations=run.evaluations.head(0))
        for run in arms["grpo"]
    ]
    page = render_report({"grpo": bare}, [], "bare")
    assert "No run was validated." in page
    assert 'id="entropy"' in page
    assert 'id="validation-t1"' not in page


def test_a_browser_draws_every_figure_on_the_axis_of_the_address_without_an_error(
    page: str, tmp_path: Path, profile: Path
) -> None:
    shown = Elements(browse(saved(page, tmp_path), profile, "--dump-dom", fragment="#x=tokens"))
    (body,) = shown.of("body")
    assert body["data-errors"] == ""
    assert body["data-axis"] == "tokens"
    assert [option["value"] for option in shown.of("option")] == list(AXES)
    apart = [each for each in shown.of("div") if each.get("class") == "multiples"]
    assert apart == []  # three arms stand together
    texts = [text for tag, text in shown.texts if tag == "text"]
    assert texts.count("tokens generated") == 9  # every figure but those over k and difficulty
    assert body["data-figures"] == str(len(FIGURES))  # those of forests are no <figure>
    figures = {attributes["id"]: attributes for attributes in shown.of("figure")}
    assert set(figures) == FIGURES
    assert figures["entropy"]["data-curves"] == "5"
    assert all(int(attributes["data-curves"] or 0) >= 1 for attributes in figures.values())
    # An axis line or label that came out as NaN would be drawn nowhere.
    assert not [a for _, a in shown.found if any("NaN" in str(value) for value in a.values())]
    assert len(shown.of("polyline")) > 3 * len(FIGURES)


def test_the_page_opens_with_verdicts_warnings_and_differences(arms: Arms, page: str) -> None:
    parts = ('class="verdict"', '<ul class="w', 'class="forest"', "<h2>")
    order = [page.index(part) for part in parts]
    assert order == sorted(order)
    verdicts = [text for tag, text in Elements(page).texts if tag in ("span", "b")]
    assert verdicts[0] == "pass@1 at T = 1"
    warnings = [text for tag, text in Elements(page).texts if tag == "li"]
    assert any("Fewer than 5 seeds (2 each)" in text for text in warnings)
    assert any("at their own temperature" in text for text in warnings)
    rows = compare_arms(arms, "grpo", ks=(1, 8))
    row = next(
        r for r in rows if (r["arm"], r["evaluation"], r["measure"]) == ("e3", "t1", "pass@1")
    )
    drawn = [text for tag, text in Elements(page).texts if tag == "text"]
    assert any(text.startswith(f"{100 * row['difference']:+.1f} [") for text in drawn)


def endpoint(arm: str, measure: str = "pass@16", **more: Any) -> dict[str, Any]:
    """A row of a comparison, at 1,000 tokens unless it says what was spent."""
    row = {"arm": arm, "evaluation": "t1", "measure": measure, "against": "grpo t1"}
    row |= {"axis": "tokens", "cost": 1000.0, "spent": None, "against_spent": None, "level": 0.95}
    low_high = {"difference_low": -0.02, "difference_high": 0.04}
    return row | {"difference": 0.01, "verdict": None, "unmatched": None} | low_high | more


def test_every_endpoint_says_at_which_cost_it_is_read() -> None:
    late = {"spent": 1400.0, "against_spent": 1300.0}
    rows = [
        *(endpoint("dapo", "pass@1"), endpoint("dapo", **late)),
        endpoint("hot", **late | {"spent": 1200.0}),
        *(endpoint("dapo", "pass@4", **late), endpoint("hot", "pass@4")),
        endpoint("dapo", "pass@2", spent=1000.2, against_spent=999.8),
        endpoint("dapo", evaluation="live", entropy_gap=0.001, **late),
    ]
    assert re.findall(r"less GRPO[^:]*", verdict_lines(rows)) == [
        "less GRPO at 1,000 tokens generated",
        "less GRPO after the last validation (1,200 to 1,400 tokens generated, GRPO 1,300)",
        "less GRPO at 1,000 tokens generated, but dapo after the last validation (1,400 tokens "
        "generated, GRPO 1,300)",
        "less GRPO at 1,000 tokens generated",
        "less GRPO at each arm&#x27;s entropy, by its last validation, after the last validation "
        "(1,400 tokens generated, GRPO 1,300)",
    ]


def test_arms_without_an_evaluation_in_common_are_said_to_be_none(arms: Arms) -> None:
    def kept(runs: list[Run], name: str) -> list[Run]:
        return [replace(r, problems=r.problems[r.problems["name"] == name]) for r in runs]

    apart = {"grpo": kept(arms["grpo"], "t1"), "e3": kept(arms["e3"], "greedy")}
    rows = compare_arms(apart, "grpo")
    assert {(row["arm"], row["evaluation"]) for row in rows} == {("grpo", "t1"), ("e3", "greedy")}
    assert (
        "No evaluation of GRPO (t1) is one of another arm (greedy): none is compared."
        in verdict_lines(rows, "grpo")
    )
    assert "No control to compare with." in verdict_lines(compare_arms(apart, None))


def test_verdicts_that_hang_on_the_problems_have_a_dagger_wherever_they_stand() -> None:
    """t = 4 of five seeds is p .016 with their four degrees; times 4 .065, times 3 .048."""
    sure = {"difference": 0.1, "difference_error": 0.025, "seeds": 5, "p": 0.001}
    rows = [
        endpoint("dapo", **sure, verdict="better", p_adjusted=0.004),
        endpoint("hot", **sure, verdict="better", p_adjusted=0.003),
    ]
    assert "dapo (+10.0)†, hot (+10.0)." in verdict_lines(rows)
    assert re.findall(r">(better†?)</text>", forests(rows, ["dapo", "hot"])) == [
        *("better†", "better")
    ]


def test_of_many_warnings_those_after_the_first_unfold() -> None:
    assert "<details" not in warning_list([f"one {i}" for i in range(7)])
    shown, folded = warning_list([f"one {i}" for i in range(8)]).split("<details>")
    assert (shown.count("<li>one"), folded.count("<li>one")) == (6, 2)
    assert "<summary>2 more</summary>" in folded


def test_an_arm_far_off_leaves_the_scale_to_the_others() -> None:
    def circles(*more: dict[str, Any]) -> tuple[list[float], int]:
        drawn = forests([*near, *more], [str(i) for i in range(9)])
        assert ("arrows: off the scale" in drawn) == (drawn.count("<path") > 0)
        return [float(x) for x in re.findall(r'circle cx="([\d.]+)"', drawn)], drawn.count("<path")

    near = [endpoint(str(i), difference=i / 100, difference_high=0.08) for i in range(7)]
    alone, arrows = circles()
    assert (len(alone), arrows) == (7, 0)
    gone = {"difference": -0.3, "difference_low": -0.66}
    assert circles(endpoint("8", **gone, difference_high=-0.25)) == (alone, 1)
    assert circles(endpoint("8", **gone, difference_high=0.35)) == (alone, 2)  # to both sides
    beside, arrows = circles(endpoint("8", difference=-0.05, difference_low=-0.06))
    assert (len(beside), arrows) == (8, 0)  # not so far
    for sign in (-1, 1):  # all of its interval: no line through names or numbers
        ends = {"difference_low": sign * 0.5 - 0.1, "difference_high": sign * 0.5 + 0.1}
        drawn = forests([*near, endpoint("8", difference=sign * 0.5, **ends)], list("012345678"))
        places = [float(x) for x in re.findall(r'x[12]="([-\d.]+)"', drawn)]
        assert PLOT[0] <= min(places) <= max(places) <= PLOT[1]


def test_a_scale_has_round_numbers() -> None:
    assert ticks(-1.2, 2.4) == [-1, 0, 1, 2]
    assert ticks(-13, 8) == [-10, -5, 0, 5]


def test_a_reader_switches_axis_picks_arms_and_reads_values(
    page: str, tmp_path: Path, profile: Path
) -> None:
    script = """{
      const select = document.getElementById("axis");
      select.value = "seconds";
      select.dispatchEvent(new Event("change"));
      for (const i of [0, 1, 0]) document.querySelectorAll(".bar button")[i].click();
      const svg = document.querySelector("#temperature svg");
      const box = svg.getBoundingClientRect();
      const place = { clientX: box.left + box.width / 2, clientY: box.top + 1, bubbles: true };
      svg.dispatchEvent(new MouseEvent("mousemove", place));
    }"""
    shown = Elements(browse(saved(page, tmp_path, script), profile, "--dump-dom"))
    (body,) = shown.of("body")
    assert (body["data-axis"], body["data-errors"]) == ("seconds", "")
    assert [button["aria-pressed"] for button in shown.of("button")] == ["false", "true", "false"]
    assert "GRPO + TS + AN" in str(body["data-out"])
    classes = [str(each.get("class")) for each in shown.of("g") if each.get("data-arm") == "0"]
    assert classes
    assert all("faded" in each for each in classes)
    chosen = [str(each.get("class")) for each in shown.of("g") if each.get("data-arm") == "1"]
    assert all("strong" in each for each in chosen)
    tips = [text for tag, text in shown.texts if tag == "div" and " at " in text]
    assert len(tips) == 1
    assert re.search(r"GRPO \+ TS \+ AN at [\d.]+: 1\.\d+ \[.+\]\nE3 at .+", tips[0])


def test_many_arms_have_a_panel_each_in_a_browser(many: str, tmp_path: Path, profile: Path) -> None:
    shown = Elements(browse(saved(many, tmp_path), profile, "--dump-dom"))
    (body,) = shown.of("body")
    assert body["data-errors"] == ""
    panels = [each for each in shown.of("svg") if "mini" in str(each.get("class"))]
    assert {each["data-arm"] for each in panels} == {str(i) for i in range(17)}
    titles = {each.get("aria-label") for each in panels}
    assert "Validation pass@1 at T = 1, arm 15" in titles
    assert not [a for _, a in shown.found if any("NaN" in str(value) for value in a.values())]


def test_panels_have_two_numbers_a_side_and_marks_and_axes_of_their_own(
    many: str, tmp_path: Path, profile: Path
) -> None:
    script = """{
      const frontier = data.figures.find((figure) => figure.id === "frontier");
      const before = Object.values(frontier.curves)[0].find((curve) => curve.arm === null);
      for (const key of ["x", "mean", "low", "high"]) before[key] = [before[key][0]];
      before.x = [-5];
      drawAll();
      const panels = [...document.querySelectorAll("#entropy svg.mini")];
      const marked = panels.filter((svg) => svg.querySelector(".mark"));
      const dots = [...document.querySelectorAll("#frontier svg.mini circle")];
      const told = document.body.dataset;
      told.ticks = [ticks(0.55, 1.22, 3), ticks(0.91, 1.09, 3), ticks(-1, 2.4, 3)].join("; ");
      told.unmarked = panels.filter((svg) => !marked.includes(svg)).map((svg) => svg.dataset.arm);
      told.marked = marked.length;
      told.left = Math.min(...dots.map((dot) => dot.cx.baseVal.value));
    }"""
    (body,) = Elements(browse(saved(many, tmp_path, script), profile, "--dump-dom")).of("body")
    assert body["data-errors"] == ""
    numbers = [[float(x) for x in part.split(",")] for part in str(body["data-ticks"]).split(";")]
    assert numbers[2] == [0, 2]
    assert [len(each) for each in numbers[:2]] == [4, 3]
    assert (body["data-unmarked"], body["data-marked"]) == ("0", "16")  # GRPO anneals nothing
    assert float(str(body["data-left"])) < 100  # not squeezed by a dot that no panel draws


def made_up_curves(*ends: tuple[float, float]) -> list[dict[str, Any]]:
    """A curve per arm from one value to another."""
    parts = ("mean", "low", "high")
    return [{"arm": i, **{part: [*pair, None] for part in parts}} for i, pair in enumerate(ends)]


def test_an_arm_is_far_that_would_more_than_halve_the_height_of_the_others() -> None:
    bulk = [(0.2, 0.4 + i / 100) for i in range(6)]  # .25 high
    assert far_arms(made_up_curves(*bulk, (0.2, 0.69)), 0) == []
    assert far_arms(made_up_curves(*bulk, (0.2, 0.71)), 0) == [6]
    assert far_arms(made_up_curves((-9, 0.4), *bulk, (0.2, 9.0)), 1) == [0, 7]  # to both sides
    named = [curve | {"arm": None} for curve in made_up_curves((-9, 9))]
    assert far_arms([*made_up_curves(*bulk), *named], 0) == []  # the policy before training


def test_neither_the_control_nor_one_of_few_arms_nor_a_second_group_is_far() -> None:
    bulk = [(0.2, 0.4 + i / 100) for i in range(6)]
    assert far_arms(made_up_curves(*bulk, (0.2, 9.0)), 6) == []
    assert far_arms(made_up_curves(*bulk[:3], (0.2, 9.0)), 0) == []
    assert far_arms(made_up_curves(*bulk[:4], (0.2, 9.0)), 0) == [4]
    assert far_arms(made_up_curves(*bulk, *[(0.2, 9.0)] * 2), 0) == [6, 7]
    assert far_arms(made_up_curves(*bulk, *[(0.2, 9.0)] * 3), 0) == []
    assert far_arms(made_up_curves(*[(1.0, 1.0)] * 6, (0.8, 0.8)), 0) == []  # nothing to flatten


@pytest.mark.parametrize("count", [2, 8])
def test_an_arm_far_off_has_a_scale_of_its_own_and_says_so(
    count: int, arms: Arms, tmp_path: Path, profile: Path
) -> None:
    def hot(run: Run) -> Run:
        entropy = run.train["policy/entropy"] * np.linspace(1, 20, len(run.train))
        return replace(run, name="hot", train=run.train.assign(**{"policy/entropy": entropy}))

    alike = {f"arm {i}": arms["e3"] for i in range(count - 2)}
    shown = {"grpo": arms["grpo"], "hot": [hot(run) for run in arms["e3"]], **alike}
    page = render_report(shown, [], "One far off", control="grpo")
    script = """{
      if (!apart) document.getElementById("apart").click();
      const panels = [...document.querySelectorAll("#entropy svg.mini")];
      const highest = (svg) => Math.max(...[...svg.querySelectorAll("text[text-anchor=end]")]
        .map((text) => Number(text.textContent)).filter((value) => !Number.isNaN(value)));
      const told = document.body.dataset;
      told.panels = panels.length;
      const armsOf = (found) => found.map((svg) => svg.dataset.arm);
      told.own = armsOf(panels.filter((svg) => svg.textContent.includes("own scale")));
      told.far = armsOf(panels.filter((svg) => highest(svg) > 2));
      told.edged = panels.filter((svg) => svg.querySelector("g[clip-path] .ghost")).length;
      told.said = document.querySelector("#entropy p.note").textContent;
      told.elsewhere = document.querySelectorAll("#temperature :is([clip-path], .own)").length;
    }"""
    dom = browse(saved(page, tmp_path, script), profile, "--dump-dom")
    (body,) = Elements(dom).of("body")
    assert body["data-errors"] == ""
    assert (body["data-panels"], body["data-elsewhere"]) == (str(count), "0")
    said = "x: rollout step, y: entropy, nats per token; dark: GRPO"
    if count == 2:  # which have one scale
        assert (body["data-own"], body["data-far"], body["data-edged"]) == ("", "0,1", "0")
        assert body["data-said"] == said
    else:
        assert (body["data-own"], body["data-far"], body["data-edged"]) == ("1", "1", "8")
        assert body["data-said"] == f"{said}; own scale: hot"


def test_together_an_arm_that_is_picked_stands_out_of_many(
    many: str, tmp_path: Path, profile: Path
) -> None:
    script = """{
      document.getElementById("apart").click();
      document.querySelectorAll(".bar button")[16].click();
    }"""
    shown = Elements(browse(saved(many, tmp_path, script), profile, "--dump-dom"))
    assert shown.of("body")[0]["data-out"] == "arm 15"
    assert not [each for each in shown.of("svg") if "mini" in str(each.get("class"))]
    curves = [each for each in shown.of("g") if each.get("data-arm")]
    strong = {each["data-arm"] for each in curves if "strong" in str(each["class"])}
    faded = {each["data-arm"] for each in curves if "faded" in str(each["class"])}
    assert (strong, faded) == ({"16"}, {str(i) for i in range(16)})
    names = [text for tag, text in shown.texts if tag == "text"]
    assert names.count("arm 15") > 5  # beside its curves: it has no colour of its own


@pytest.mark.slow
def test_an_error_of_the_script_would_be_seen(page: str, tmp_path: Path, profile: Path) -> None:
    broken = saved(page, tmp_path, "document.nothing.here()")
    (body,) = Elements(browse(broken, profile, "--dump-dom")).of("body")
    assert "TypeError" in str(body["data-errors"])


@pytest.mark.slow
def test_a_picture_of_the_page_shows_every_arm(page: str, tmp_path: Path, profile: Path) -> None:
    picture = tmp_path / "page.png"
    browse(saved(page, tmp_path), profile, f"--screenshot={picture}", "--window-size=1200,1600")
    pixels = imread(picture)[..., :3]
    assert pixels.shape == (1600, 1200, 3)
    for arm in ("grpo", "ts_an", "e3"):
        near = np.abs(pixels - np.array(to_rgb(arm_colour(arm)))).max(axis=2) < 0.02
        assert near.sum() > 300


def test_a_seed_that_has_just_begun_changes_no_figure(arms: Arms) -> None:
    run = arms["e3"][0]
    tables = {name: getattr(run, name) for name in ("evaluations", "problems", "train")}
    start = {name: table[table["rollout_step"] < 1] for name, table in tables.items()}
    begun = {**arms, "e3": [*arms["e3"], replace(run, seed=9, **start)]}
    for figure, other in zip(page_figures(begun), page_figures(arms), strict=True):
        if figure["id"] != "difficulty":  # of the last epoch of each seed
            assert figure["curves"] == other["curves"], figure["id"]
