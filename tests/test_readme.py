"""What the README shows is true: its example of a rule, and the files it links to."""

import re
import subprocess

import pytest

from pages import ROOT, check_example_of_a_rule

README = (ROOT / "README.md").read_text(encoding="utf-8")


def test_the_rule_of_the_readme_is_one_and_passes_its_test(monkeypatch: pytest.MonkeyPatch) -> None:
    check_example_of_a_rule(README, monkeypatch)


def test_links_of_tracked_pages_lead_to_files() -> None:
    if not (ROOT / ".git").exists():
        pytest.skip("not a git checkout")
    listed = subprocess.run(
        ["git", "ls-files", "*.md"], cwd=ROOT, capture_output=True, text=True, check=True
    )
    dead = [
        f"{page}: {link}"
        for page in listed.stdout.split()
        for link in re.findall(r"\]\(([^)#\s]+)\)", (ROOT / page).read_text(encoding="utf-8"))
        if "://" not in link and not (ROOT / page).parent.joinpath(link).exists()
    ]
    assert dead == []


def test_commands_of_the_package_exist() -> None:
    named = set(re.findall(r"python -m e3rl\.(\w+)", README))
    assert named >= {"train", "evaluate", "simulate", "report"}
    assert [name for name in named if not (ROOT / "src" / "e3rl" / f"{name}.py").is_file()] == []
