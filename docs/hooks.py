"""What MkDocs builds beside the pages in docs/: the studies, and the reference of every room.

Pages link to files as they lie in the repository, so that links work there too. On the site a link
to a study leads to its page, and one to a file that is no part of the site to the repository, where
`[project.urls]` of pyproject.toml names one; else its text stays without a link.
"""

import os
import re
import tomllib
from collections.abc import Iterator
from pathlib import Path
from typing import Any

ROOT = Path(__file__).parents[1]
SOURCE = ROOT / "src" / "e3rl"
LINK = re.compile(r"(!?)\[((?:[^\[\]]|\[[^\]]*\])*)\]\(([^()\s#]+)(#[^()\s]*)?\)")
TITLES = {
    "carries_bed": "Where RL learns",
    "carries_core": "Core study on carries",
    "carries_tuning": "Learning rate on carries",
    "lookahead": "Look-ahead",
    "pass_at_k": "pass@k",
    "smollm2": "SmolLM2",
    "speed": "Speed beside TRL",
    "vllm_throughput": "vLLM throughput",
}
DEFINITION = re.compile(r"^(\[[^\]]+\]: )(\S+?)(#\S+)?$", re.M)  # [name]: link
FENCE = re.compile(r"^( *)(`{3,}).*?^\1\2`*\s*?$", re.M | re.S)


def reference_pages() -> dict[str, list[str]]:
    """Modules by the name of their page: a page for the commands, and one for every room."""
    files = sorted(path.stem for path in SOURCE.glob("[a-z]*.py"))
    commands = [name for name in files if _is_command(SOURCE / f"{name}.py")]
    rooms = [name for name in files if name not in commands]
    for package in sorted(SOURCE.rglob("__init__.py")):
        if any(path.name != "__init__.py" for path in package.parent.glob("*.py")):
            rooms.append(".".join(package.parent.relative_to(SOURCE).parts))
    rooms = sorted(name for name in rooms if name)
    return {"commands": [f"e3rl.{name}" for name in commands]} | {
        name: [f"e3rl.{name}"] for name in rooms
    }


def _is_command(path: Path) -> bool:
    return '\nif __name__ == "__main__":' in path.read_text(encoding="utf-8")


def reference_page(name: str, modules: list[str]) -> str:
    """Markdown of a reference page, which mkdocstrings fills; rooms within have their own."""
    if name != "commands":
        parts = SOURCE.joinpath(*name.split("."))
        within = "|".join(each.parent.name for each in sorted(parts.glob("*/__init__.py")))
        options = f'    options: {{filters: ["!^_", "!^({within})$"]}}\n' if within else ""
        return f"::: {modules[0]}\n{options}"
    blocks = [f"::: {module}\n    options: {{heading_level: 2}}\n" for module in modules]
    intro = "`e3rl NAME` and `python -m e3rl.NAME` run the same command. Below each: its Python.\n"
    return "\n".join(["# Commands\n", intro, *blocks])


def study_files() -> Iterator[Path]:
    """Pages and pictures of the studies, relative to the repository; the run matrix's own page,
    which docs/studies.md has the words of, and recorded runs are left out."""
    for study in sorted((ROOT / "experiments").glob("*/README.md")):
        for pattern in ("*.md", "*.png", "*.svg"):
            yield from (path.relative_to(ROOT) for path in sorted(study.parent.rglob(pattern)))


def on_config(config: Any) -> Any:
    """Add the studies and the reference to the navigation."""
    (results,) = (section["Results"] for section in config.nav if "Results" in section)
    results += [{_title(p): p.as_posix()} for p in study_files() if p.name == "README.md"]
    config.nav.append({"API reference": [{n: f"reference/{n}.md"} for n in reference_pages()]})
    return config


def _title(path: Path) -> str:
    name = path.parent.name
    return TITLES.get(name, name.replace("_", " ").capitalize())


def on_files(files: Any, config: Any) -> Any:
    """Add the pages that do not lie in docs/."""
    from mkdocs.structure.files import File

    for name, modules in reference_pages().items():
        content = reference_page(name, modules)
        files.append(File.generated(config, f"reference/{name}.md", content=content))
    for path in study_files():
        files.append(File.generated(config, path.as_posix(), abs_src_path=str(ROOT / path)))
    return files


def on_page_markdown(markdown: str, page: Any, config: Any, files: Any) -> str:
    """Turn links to files of the repository into links of the site."""
    here = Path(page.file.src_uri)
    if here.parts[0] == "reference":
        return markdown
    known = {file.src_uri for file in files}

    def moved(link: str) -> str | None:
        """Where a link of the page leads on the site; None where there is nothing to lead to."""
        if re.match(r"[a-z]+:", link):
            return link
        lies = here if here.parts[0] == "experiments" else "docs" / here
        goal = Path(os.path.normpath(lies.parent / link))
        site = goal.relative_to("docs") if goal.parts[0] == "docs" else goal
        if (site / "README.md").as_posix() in known:
            site /= "README.md"
        if site.as_posix() in known:
            return os.path.relpath(site, here.parent)
        kind = "tree" if (ROOT / goal).is_dir() else "blob"
        address = repository()
        return f"{address}/{kind}/HEAD/{goal.as_posix()}" if address else None

    def inline(match: re.Match[str]) -> str:
        link, anchor = moved(match[3]), match[4] or ""
        return f"{match[1]}[{match[2]}]({link}{anchor})" if link else match[2]

    def defined(match: re.Match[str]) -> str:
        link, anchor = moved(match[2]), match[3] or ""
        return f"{match[1]}{link}{anchor}" if link else match[0]

    def rewritten(text: str) -> str:
        return DEFINITION.sub(defined, LINK.sub(inline, text))

    parts, end = [], 0
    for fence in FENCE.finditer(markdown):
        parts += [rewritten(markdown[end : fence.start()]), fence[0]]
        end = fence.end()
    return "".join([*parts, rewritten(markdown[end:])])


def repository() -> str | None:
    """Address of the repository, as pyproject.toml has it."""
    project = tomllib.loads((ROOT / "pyproject.toml").read_text(encoding="utf-8"))["project"]
    urls = {name.lower(): url for name, url in project.get("urls", {}).items()}
    found = urls.get("repository") or urls.get("source")
    return None if found is None else str(found).rstrip("/")
