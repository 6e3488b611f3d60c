"""The pages as a whole: the navigation, what every page owes its reader, and claims that can be looked up."""

from __future__ import annotations

import ast
import re
from functools import cache
from pathlib import Path

import pytest
import yaml

from airflow_s3commit.exceptions import DidNotHappen, Refused, S3CommitError
from tests.cases import ERRORS, each
from tests.docs.blocks import DOCS, ROOT

PAGES = sorted(path.relative_to(DOCS).as_posix() for path in DOCS.rglob("*.md"))

#: The options of Hadoop's S3A committers (``org.apache.hadoop.fs.s3a.commit.CommitConstants``, 3.5).
S3A_OPTIONS = (
    "name", "threads", "abort.pending.uploads", "staging.abort.pending.uploads", "magic.enabled",
    "magic.track.commits.in.memory.enabled", "magic.cleanup.enabled", "staging.conflict-mode",
    "staging.unique-filenames", "staging.tmp.path", "require.uuid", "generate.uuid", "uuid", "uuid.source",
    "summary.report.directory", "experimental.collect.iostatistics",
)  # fmt: skip


def _nav(entries: list[object]) -> list[str]:
    found: list[str] = []
    for entry in entries:
        if isinstance(entry, str):
            found.append(entry)
        elif isinstance(entry, dict):
            for value in entry.values():
                found += _nav(value if isinstance(value, list) else [value])
    return found


def test_every_page_is_in_the_navigation_once() -> None:
    """Every page is in the navigation, and every entry is a page."""
    listed = _nav(yaml.safe_load((ROOT / "mkdocs.yml").read_text())["nav"])
    assert sorted(listed) == PAGES


def test_the_glossary_is_short() -> None:
    """It has at most 40 nouns, each once and on one line: a new noun replaces another or is not needed."""
    rows = re.findall(r"^\| (.+?) \| .+ \|$", (DOCS / "explanation/glossary.md").read_text(), re.MULTILINE)
    nouns = rows[1:]
    assert rows[0] == "noun"
    assert 20 <= len(nouns) <= 40
    assert len(set(nouns)) == len(nouns)


def test_the_map_for_contributors_names_files_that_exist() -> None:
    """Each file and folder that the guide says to open is there."""
    text = (ROOT / "CONTRIBUTING.md").read_text()
    named = re.findall(r"`((?:protocol|store|cli|tables|spark|tests)/[\w/.]*)`", text)
    assert len(named) > 10
    for name in named:
        base = ROOT if name.startswith("tests/") else ROOT / "airflow_s3commit"
        assert (base / name).exists(), name


@each("page", PAGES)
def test_a_page_begins_with_what_it_is_and_for_whom(page: str) -> None:
    """One title, and words for the reader before anything else."""
    text = re.sub(r"^```.*?^```", "", (DOCS / page).read_text(), flags=re.MULTILINE | re.DOTALL)
    lines = [line for line in text.splitlines() if line.strip()]
    assert lines[0].startswith("# ")
    assert [line for line in lines if line.startswith("# ")] == lines[:1]
    assert re.match(r"[A-Z`*]", lines[1]), "a paragraph comes first"


@each("page", [page for page in PAGES if page.startswith("how-to/") and "index" not in page])
def test_a_guide_says_who_it_is_for(page: str) -> None:
    """A how-to guide begins with its reader, and says what they have at the end."""
    first = (DOCS / page).read_text().split("\n\n")[1]
    assert first.startswith("For ")
    assert re.search(r"\bat\s+(the|its)\s+end\b", first, re.IGNORECASE)


@pytest.mark.parametrize("folder", ["how-to", "explanation", "reference"])
def test_an_overview_leads_to_every_page(folder: str) -> None:
    """The first page of a part links to all the others."""
    linked = set(re.findall(r"\]\(([\w./-]+\.md)\)", (DOCS / folder / "index.md").read_text()))
    here = {path.name for path in (DOCS / folder).glob("*.md")} - {"index.md"}
    assert here <= linked


@cache
def _errors() -> list[type[S3CommitError]]:
    return [kind for kind in ERRORS.values() if kind not in (S3CommitError, DidNotHappen, Refused)]


def test_every_exception_says_what_to_do() -> None:
    """Every exception is a heading of the troubleshooting page."""
    text = (DOCS / "how-to/troubleshoot.md").read_text()
    headings = set(re.findall(r"^### (\w+)$", text, re.MULTILINE))
    assert headings == {kind.__name__ for kind in _errors()}


@cache
def _messages() -> str:
    """Return every text of the package's source, with … where something is filled in."""
    texts = []
    for path in (ROOT / "airflow_s3commit").rglob("*.py"):
        for node in ast.walk(ast.parse(path.read_text())):
            if isinstance(node, ast.JoinedStr):
                parts = [part.value if isinstance(part, ast.Constant) else "…" for part in node.values]
                texts.append("".join(map(str, parts)))
            elif isinstance(node, ast.Constant) and isinstance(node.value, str):
                texts.append(node.value)
    for path in (ROOT / "airflow_s3commit").rglob("*.java"):
        texts += re.findall(r'"([^"\n]+)"', path.read_text())
    return "\n".join(texts)


def _quoted() -> list[str]:
    text = (DOCS / "how-to/troubleshoot.md").read_text()
    ours = text.partition("## By message")[2].partition("## Messages of other software")[0]
    return re.findall(r"^\| `([^`]+)` \|", ours, re.MULTILINE)


@each("message", _quoted())
def test_quoted_messages_are_what_the_code_says(message: str) -> None:
    """A message on the troubleshooting page can be found in the source."""
    assert message in _messages()


def test_every_s3a_option_is_translated() -> None:
    """The page on moving from Hadoop's committers covers all of their options."""
    text = (DOCS / "how-to/move-from-s3a.md").read_text()
    assert [name for name in S3A_OPTIONS if f"| `fs.s3a.committer.{name}` |" not in text] == []


def test_the_guarantees_name_tests_that_exist() -> None:
    """Each proof on the page is a file, and a test in it."""
    text = (DOCS / "guarantees.md").read_text()
    named = re.findall(r"`(tests/[\w/]+\.py)(?:::(\w+))?`", text)
    assert len(named) > 8
    for path, test in named:
        assert test in Path(ROOT / path).read_text(), f"{path}::{test}"


#: Modules whose public names users write into their DAGs and jobs, and the names that are meant for them.
PUBLIC = {
    "assets.py": r".*",
    "hooks.py": r".*",
    "links.py": r"\w+Link",
    "notifications.py": r".*",
    "operators/*.py": r"S3Commit(?!Base)\w+|[Ss]harded\w+",
    "params.py": r"conflict_mode_param",
    "reader/__init__.py": r"dataset",
    "sensors.py": r"S3\w+",
    "spark/__init__.py": r".*",
    "task_group.py": r".*",
    "triggers.py": r"S3\w+",
}


@pytest.mark.parametrize("modules", PUBLIC)
def test_every_public_name_has_its_reference(modules: str) -> None:
    """Every public name of a face is in the reference."""
    named = "\n".join(path.read_text() for path in (DOCS / "reference").glob("*.md"))
    referred = {line.rpartition(".")[2] for line in named.splitlines() if line.startswith("::: ")}
    public = {
        name
        for path in (ROOT / "airflow_s3commit").glob(modules)
        for name in _exported(path)
        if re.fullmatch(PUBLIC[modules], name)
    }
    assert public - referred == set()


def _exported(path: Path) -> list[str]:
    for node in ast.parse(path.read_text()).body:
        if isinstance(node, ast.Assign) and ast.unparse(node.targets[0]) == "__all__":
            names: list[str] = ast.literal_eval(node.value)
            return names
    return []


def test_the_architecture_names_folders_that_exist() -> None:
    """Each folder in the page's two tables is a package, and no package is left out."""
    text = (DOCS / "explanation/architecture.md").read_text()
    above, _, below = text.partition("### Inside `protocol`")
    for part, folder in ((above, "airflow_s3commit"), (below, "airflow_s3commit/protocol")):
        rows = re.findall(r"^\| (`[^|]+) \|", part, re.MULTILINE)
        named = {name for row in rows for name in re.findall(r"`(\w+)`", row)}
        assert named == {path.parent.name for path in (ROOT / folder).glob("*/__init__.py")}


def test_generated_parts_are_asked_for_by_their_names() -> None:
    """Everything that can be generated is on some page, so the reference is complete."""
    asked = set()
    for page in PAGES:
        asked |= set(re.findall(r"^<!-- (?:generated|diagram): (\S+) -->$", (DOCS / page).read_text(), re.M))
    made = set(_keys("hook.py", "GENERATED")) | set(_keys("diagrams.py", "DIAGRAMS"))
    assert asked == made


def _keys(module: str, name: str) -> list[str]:
    """Return the keys of a dictionary that a module of the site's build defines."""
    for node in ast.parse((DOCS / "site_build" / module).read_text()).body:
        if isinstance(node, ast.AnnAssign) and ast.unparse(node.target) == name:
            assert isinstance(node.value, ast.Dict)
            return [ast.literal_eval(key) for key in node.value.keys if key is not None]
    raise AssertionError(f"{module} defines no {name}")
