"""The diagrams: SVG that takes its colours from the page, so that it is readable in light and dark.

A diagram is drawn from boxes, arrows and words on a grid of pixels. Nothing is loaded to show it.
"""

from __future__ import annotations

import ast
from collections.abc import Callable, Sequence
from html import escape
from pathlib import Path

#: The test with the rules on which part of the package may import which.
_ARCHITECTURE = Path(__file__).parents[2] / "tests" / "test_architecture.py"

#: The purpose and colour of each floor, by one of its packages.
_FLOORS = {
    "cli": ("the command line", "plain"),
    "exceptions": ("the errors of all packages", "plain"),
    "hooks": ("the base of Airflow's operators", "new"),
    "operators": ("Airflow's face: thin", "new"),
    "plugin": ("the page in Airflow", "new"),
    "protocol": ("Job, the facade; removal of orphans", "good"),
    "protocol.inspect": ("reads only; task attempts; adoption of Hadoop's jobs", "good"),
    "protocol.steps": ("the steps of a job, one file each", "good"),
    "protocol.metadata": ("conditional records; rows as files", "good"),
    "protocol.model": ("records and keys as values; S3 itself", "good"),
    "spark": ("DataFrames in, manifests out", "new"),
    "store": ("a dozen verbs on S3; alone imports boto3 and libcurl", "good"),
}

_HEAD = (
    '<defs><marker id="{id}-head" viewBox="0 0 10 10" refX="9" refY="5" markerWidth="7" markerHeight="7" '
    'orient="auto-start-reverse"><path d="M0 1 L9 5 L0 9 z" class="d-head"/></marker></defs>'
)


class Drawing:
    """One diagram while it is drawn.

    Args:
        name: What it is called; part of its ids in the page.
        width: Its width, in pixels.
        height: Its height.
        title: What it shows, for those who cannot see it.

    """

    def __init__(self, name: str, width: int, height: int, title: str) -> None:
        self._name = name
        self._size = (width, height)
        self._title = title
        self._parts: list[str] = []

    def box(  # noqa: PLR0917 - a place, a size, and what is in it
        self, x: int, y: int, w: int, h: int, words: str | Sequence[str] = (), kind: str = "plain"
    ) -> None:
        """Draw a box with centred lines of words; ``kind`` is its colour."""
        self._parts.append(f'<rect x="{x}" y="{y}" width="{w}" height="{h}" rx="5" class="d-box d-{kind}"/>')
        lines = [words] if isinstance(words, str) else list(words)
        first = y + h / 2 - (len(lines) - 1) * 8.5 + 4.5
        for number, line in enumerate(lines):
            self.words(x + w / 2, first + number * 17, line, "d-strong" if number == 0 else "", "middle")

    def words(self, x: float, y: float, text: str, style: str = "", anchor: str = "start") -> None:
        """Write a line of words."""
        self._parts.append(
            f'<text x="{x:g}" y="{y:g}" text-anchor="{anchor}" class="d-text {style}">{escape(text)}</text>'
        )

    def arrow(self, *points: tuple[int, int], style: str = "") -> None:
        """Draw an arrow through points; it ends at the last."""
        path = "M" + " L".join(f"{x} {y}" for x, y in points)
        self._parts.append(f'<path d="{path}" class="d-line {style}" marker-end="url(#{self._name}-head)"/>')

    def line(self, *points: tuple[int, int], style: str = "") -> None:
        """Draw a line through points."""
        path = "M" + " L".join(f"{x} {y}" for x, y in points)
        self._parts.append(f'<path d="{path}" class="d-line {style}"/>')

    def text(self) -> str:
        """Return the diagram as SVG on one line, which Markdown passes on unchanged."""
        width, height = self._size
        body = _HEAD.format(id=self._name) + "".join(self._parts)
        return (
            f'<figure class="diagram"><svg viewBox="0 0 {width} {height}" style="max-width:{width}px" '
            f'role="img" aria-label="{escape(self._title)}" xmlns="http://www.w3.org/2000/svg">{body}</svg>'
            "</figure>"
        )


def svg(name: str) -> str:
    """Return a diagram by its name.

    Raises:
        KeyError: There is none of this name.

    """
    return DIAGRAMS[name]()


def _rename() -> str:
    title = "A commit by renaming copies every byte; a commit by completing sends one small request per file"
    d = Drawing("rename", 760, 250, title)
    for y, kind, title in ((10, "old", "commit by renaming"), (135, "new", "commit by completing")):
        d.words(10, y + 16, title, "d-strong")
        where = "to _temporary/" if kind == "old" else "to the final keys"
        d.box(10, y + 28, 150, 62, ("tasks write", where), kind)
    d.box(230, 38, 220, 62, ("the driver copies", "every byte, then deletes it"), "bad")
    d.box(520, 38, 230, 62, ("visible file by file", "for as long as copying takes"), "plain")
    d.box(230, 163, 220, 62, ("uploads stay pending:", "invisible, whole, billed"), "new")
    d.box(520, 163, 230, 62, ("visible when completed:", "one small request per file"), "good")
    for y in (69, 194):
        d.arrow((160, y), (228, y))
        d.arrow((450, y), (518, y))
    return d.text()


def _flow() -> str:
    d = Drawing("flow", 812, 320, "The tasks of a commit in Airflow, and what each leaves on S3")
    d.words(10, 20, "Airflow", "d-strong")
    tasks = (("setup",), ("stage", "(Spark)"), ("resolve", "conflicts"), ("commit",), ("readers",))
    kinds = ("new", "new", "new", "good", "plain")
    for number, (words, kind) in enumerate(zip(tasks, kinds, strict=True)):
        x = 10 + number * 160
        d.box(x, 32, 120, 56, words, kind)
        if number:
            d.arrow((x - 40, 60), (x - 2, 60))
    d.box(10, 118, 600, 34, "abort: the teardown, on any failure", "bad")
    for x in (70, 230, 390, 550):
        d.arrow((x, 88), (x, 116), style="d-thin")
    d.words(10, 190, "S3, after the task", "d-strong")
    left = (
        ("job.json, state.json", "open"),
        ("pending uploads,", "pendingsets, a seal"),
        ("the plan: what will", "be replaced, by ETag"),
        ("files, manifest,", "_SUCCESS"),
        ("read by manifest:", "one generation"),
    )
    for number, words in enumerate(left):
        x = 10 + number * 160
        d.box(x, 204, 154, 56, words, "good" if words[0].startswith("files") else "plain")
    d.words(10, 290, "nothing of the new data is visible", "d-soft")
    d.line((10, 300), (480, 300), style="d-thin")
    d.words(490, 290, "all of it is", "d-soft")
    d.line((490, 300), (790, 300), style="d-goodline")
    d.line((485, 270), (485, 312), style="d-thin")
    return d.text()


def _states() -> str:
    d = Drawing(
        "states", 760, 230, "A job is open, then sealed; an entry of the log ends it: commit or abandon"
    )
    for number, (state, record) in enumerate((("open", "job.json"), ("sealed", "sealed.json"))):
        d.box(10 + number * 200, 40, 130, 50, (state, record))
    d.box(410, 40, 130, 50, ("committed", "entry: commit"), "good")
    d.arrow((140, 65), (208, 65))
    d.words(174, 55, "seal", "d-soft", "middle")
    d.arrow((340, 65), (408, 65))
    d.words(374, 55, "commit", "d-soft", "middle")
    d.box(410, 150, 130, 50, ("aborted", "entry: abandon"), "bad")
    d.arrow((75, 90), (75, 175), (408, 175))
    d.arrow((275, 90), (275, 165), (408, 165))
    d.words(82, 140, "abort", "d-soft")
    d.words(282, 140, "abort, or a certain failure", "d-soft")
    d.box(610, 95, 140, 50, ("cleaned up", "receipt"))
    d.arrow((540, 65), (680, 65), (680, 93))
    d.arrow((540, 175), (680, 175), (680, 147))
    d.words(610, 55, "finish", "d-soft", "middle")
    d.words(610, 195, "undo", "d-soft", "middle")
    return d.text()


def _commit() -> str:
    d = Drawing("commit", 800, 330, "A commit in mode replace over time, and what readers see")
    steps = (
        ("read the log", "and the seals", "plain"),
        ("complete", "the uploads", "new"),
        ("decide what", "it takes", "new"),
        ("entry in", "the log", "good"),
        ("delete the old,", "_SUCCESS", "good"),
        ("receipt,", "clean up", "good"),
    )
    for number, (one, two, kind) in enumerate(steps):
        x = 10 + number * 132
        d.box(x, 34, 118, 54, (one, two), kind)
        if number:
            d.arrow((x - 14, 61), (x - 2, 61))
    d.line((399, 12), (399, 256), style="d-dash")
    d.words(392, 14, "a certain failure aborts the job", "d-soft", "end")
    d.words(406, 14, "only forward", "d-soft")
    d.words(10, 122, "a reader that lists sees", "d-strong")
    d.box(10, 134, 126, 34, "the old generation", "old")
    d.box(142, 134, 514, 34, "old and new files, side by side", "bad")
    d.box(662, 134, 128, 34, "the new one", "good")
    d.words(10, 202, "a reader that uses the manifests sees", "d-strong")
    d.box(10, 214, 386, 34, "the old generation", "old")
    d.box(402, 214, 388, 34, "the new one", "good")
    d.words(
        10, 290, "_SUCCESS is never deleted: it is that of the last commit until it is overwritten.", "d-soft"
    )
    return d.text()


def _orders() -> str:
    d = Drawing("orders", 760, 210, "Two orders of a replace: publish then delete, delete then publish")
    d.words(10, 20, "publish then delete", "d-strong")
    d.box(10, 32, 300, 34, "old", "old")
    d.box(200, 70, 550, 34, "new", "good")
    d.words(322, 54, "both for a moment, never neither", "d-soft")
    d.words(10, 134, "delete then publish (Hadoop's order)", "d-strong")
    d.box(10, 146, 190, 34, "old", "old")
    d.box(320, 146, 430, 34, "new", "good")
    d.box(206, 146, 108, 34, "neither", "bad")
    d.words(10, 204, "time →", "d-soft")
    return d.text()


def _floors() -> str:
    floors = list(reversed(read_floors()))
    d = Drawing("floors", 700, 24 + 54 * len(floors), "The floors of the package; imports point down")
    for number, rooms in enumerate(floors):
        what, kind = next(((_FLOORS[room]) for room in rooms if room in _FLOORS), ("", "plain"))
        names = ", ".join(room for room in rooms if room)
        d.box(60, 12 + number * 54, 630, 46, (names, what) if what else (names,), kind)
    d.arrow((30, 20), (30, 4 + 54 * len(floors)))
    return d.text()


def read_floors() -> list[list[str]]:
    """Return the floors of the package from the bottom up, as the test of the architecture has them."""
    tree = ast.parse(_ARCHITECTURE.read_text())
    found = next(
        node.value
        for node in tree.body
        if isinstance(node, ast.AnnAssign) and ast.unparse(node.target) == "FLOORS"
    )
    assert isinstance(found, ast.Tuple)
    return [sorted(ast.literal_eval(call.args[0])) for call in found.elts if isinstance(call, ast.Call)]


#: Every diagram, by the name that pages ask for it with.
DIAGRAMS: dict[str, Callable[[], str]] = {
    "commit": _commit,
    "floors": _floors,
    "flow": _flow,
    "orders": _orders,
    "rename": _rename,
    "states": _states,
}
