"""The project's own house: its text, its settings files, its commands and its setup."""

import importlib.util
import re
import subprocess
import sys
import tarfile
import tomllib
from pathlib import Path
from types import ModuleType

import pytest
import yaml
from omegaconf import OmegaConf

from e3rl import __version__

ROOT = Path(__file__).parents[1]
CONF = sorted((ROOT / "conf").rglob("*.yaml"))
MAX_BYTES = 4 * 2**20  # as in .pre-commit-config.yaml

# In pieces, so that this file does not hold what it looks for.
FOLDERS = ("work", "root", "tmp", "home", "Users", "farm", "opt")
HOSTS = ("py" + "pi.org", "python" + "hosted", "download.pytorch" + ".org", "npm" + "js.org")
FOREIGN = re.compile(
    rf"(?<![\w.~$}})\]/-])/(?:{'|'.join(FOLDERS)})/[\w.]" + "|" + "|".join(map(re.escape, HOSTS))
)


def project_files() -> list[Path]:
    """What git holds or would take."""
    command = ["git", "ls-files", "-z", "--cached", "--others", "--exclude-standard"]
    if not (ROOT / ".git").exists():
        pytest.skip("not a git checkout")
    names = subprocess.run(command, cwd=ROOT, capture_output=True, check=True, text=True).stdout
    return [path for name in names.split("\0") if name and (path := ROOT / name).is_file()]


def foreign_mentions(text: str) -> list[str]:
    return [match.group() for match in FOREIGN.finditer(text)]


def test_project_text_names_no_machine() -> None:
    found = []
    for path in project_files():
        content = path.read_bytes()
        text = "" if b"\0" in content else content.decode("utf-8")
        found += [f"{path.relative_to(ROOT)}: {mention}" for mention in foreign_mentions(text)]
    assert not found, "\n".join(found)


@pytest.mark.parametrize("folder", FOLDERS)
def test_absolute_paths_of_one_machine_are_found(folder: str) -> None:
    assert foreign_mentions(f"see '/{folder}/data.json'") == [f"/{folder}/d"]
    assert foreign_mentions(f"see ../{folder}/data and ${{x}}/{folder}/data") == []


def test_no_file_is_larger_than_a_clone_should_carry() -> None:
    assert [path for path in project_files() if path.stat().st_size > MAX_BYTES] == []


def test_the_tree_is_light_beside_final_policies_that_are_kept() -> None:
    sizes = {path.relative_to(ROOT): path.stat().st_size for path in project_files()}
    kept = {path: size for path, size in sizes.items() if path.match("experiments/*/policies/*/*")}
    assert sum(sizes.values()) - sum(kept.values()) < 19 * 2**20
    assert sum(kept.values()) < 32 * 2**20
    assert sizes[Path("experiments/runs.tar.xz")] < 2 * 2**20


def test_a_study_that_keeps_policies_keeps_that_of_every_recorded_run() -> None:
    kept: dict[Path, set[str]] = {}
    for path in project_files():
        if path.match("experiments/*/policies/*/model.safetensors"):
            kept.setdefault(path.parents[2], set()).add(path.parent.name)
    assert kept
    for study, names in kept.items():
        with tarfile.open(study / "runs.tar.xz") as archive:
            runs = {Path(name).parts[0] for name in archive.getnames()}
        assert names == runs, study


def test_conf_files_parse() -> None:
    assert [path for path in CONF if not OmegaConf.is_config(OmegaConf.load(path))] == []


def test_licence_is_mit_of_the_authors() -> None:
    text = (ROOT / "LICENSE").read_text(encoding="utf-8")
    assert text.startswith("MIT License\n\nCopyright (c) 2026 The e3rl authors\n")


def test_changelog_tells_of_this_version_in_the_three_groups() -> None:
    text = (ROOT / "CHANGELOG.md").read_text(encoding="utf-8")
    assert f"\n## {__version__}" in text
    assert set(re.findall(r"^### (\w+)$", text, re.M)) <= {"Added", "Changed", "Fixed"}


def test_a_version_stands_in_one_place_alone() -> None:
    project = tomllib.loads((ROOT / "pyproject.toml").read_text())
    assert "version" in project["project"]["dynamic"]
    assert project["tool"]["hatch"]["version"] == {"path": "src/e3rl/__init__.py"}
    citation = yaml.safe_load((ROOT / "CITATION.cff").read_text(encoding="utf-8"))
    assert "version" not in citation
    assert citation["cff-version"] == "1.2.0"
    assert citation["license"] == project["project"]["license"]


def test_help_lists_every_command() -> None:
    declared = re.search(r"^\.PHONY: (.+)$", (ROOT / "Makefile").read_text(), re.M)
    assert declared
    output = subprocess.run(["make"], cwd=ROOT, capture_output=True, check=True, text=True).stdout
    commands = [line.split()[1] for line in output.splitlines() if line.startswith("make ")]
    assert commands == declared.group(1).split()
    assert {"train", "test", "check", "clean"} <= set(commands)


def test_every_command_that_runs_python_sets_up_first() -> None:
    text = (ROOT / "Makefile").read_text()
    rules = re.findall(r"^(\w+):([^#\n]*)##.*\n((?:\t.*\n)+)", text, re.M)
    running = [(name, needs) for name, needs, recipe in rules if "$(RUN)" in recipe]
    assert "train" in dict(running)
    assert [name for name, needs in running if "setup" not in needs.split()] == []


@pytest.mark.parametrize(
    "script",
    [".ci/run", ".ci/nightly", ".ci/setup", ".ci/setup_browser", ".ci/check_wheel", ".ci/audit"],
)
def test_scripts_are_bash_that_stops_at_the_first_failure(script: str) -> None:
    subprocess.run(["bash", "-n", script], cwd=ROOT, check=True)
    assert "\nset -euo pipefail\n" in (ROOT / script).read_text()


def test_hooks_fetch_nothing() -> None:
    config = OmegaConf.load(ROOT / ".pre-commit-config.yaml")
    assert {repo.repo for repo in config.repos} == {"local"}
    assert {hook.language for repo in config.repos for hook in repo.hooks} == {"system"}


@pytest.mark.end_to_end
def test_light_units_load_without_torch() -> None:
    source, names = ROOT / "src" / "e3rl", []
    for unit in ("budgets", "ledger/ledger", "rewards", "simulator", "statistics"):
        place = source / unit
        files = place.rglob("*.py") if place.is_dir() else [place.with_suffix(".py")]
        names += [".".join(p.relative_to(source.parent).with_suffix("").parts) for p in files]
    program = f"import sys, {', '.join(names)}; sys.exit('torch' in sys.modules)"
    assert subprocess.run([sys.executable, "-c", program]).returncode == 0


def load_resolver() -> ModuleType:
    spec = importlib.util.spec_from_file_location("resolve_torch", ROOT / ".ci/resolve_torch.py")
    assert spec
    assert spec.loader
    module = importlib.util.module_from_spec(spec)
    spec.loader.exec_module(module)
    return module


def torch_report(version: str, *requirements: str) -> dict:
    metadata = {"name": "torch", "version": version, "requires_dist": list(requirements)}
    return {"install": [{"metadata": metadata}]}


def test_setup_takes_a_cpu_build_and_an_installed_torch() -> None:
    cuda_parts = load_resolver().cuda_parts
    assert cuda_parts(torch_report("2.13.0+cpu", "filelock", "jinja2"), "x86_64") == []
    assert cuda_parts({"install": []}, "x86_64") == []


def test_setup_finds_a_cuda_build_by_version_or_libraries() -> None:
    cuda_parts = load_resolver().cuda_parts
    assert cuda_parts(torch_report("2.13.0+cu130"), "x86_64") == ["torch 2.13.0+cu130"]
    libraries = [
        'cuda-toolkit[cublas,nvtx]==13.0.3; platform_system == "Linux"',
        'nvidia-cudnn-cu13==9.20.0.48; platform_machine == "x86_64"',
        'nvidia-extra; extra == "more"',
    ]
    report = torch_report("2.13.0", "sympy>=1.13", *libraries)
    assert cuda_parts(report, "x86_64") == ["cuda-toolkit", "nvidia-cudnn-cu13"]
    assert cuda_parts(report, "aarch64") == ["cuda-toolkit"]


def test_setup_lets_the_user_choose_the_build() -> None:
    choice_made = load_resolver().choice_made
    assert not choice_made({})
    assert choice_made({"TORCH_BUILD": "cuda"})
    assert choice_made({"TORCH_INDEX_URL": "https://wheels.example/cpu"})
    with pytest.raises(SystemExit, match="TORCH_BUILD=rocm is unknown: set TORCH_BUILD=cuda"):
        choice_made({"TORCH_BUILD": "rocm"})
