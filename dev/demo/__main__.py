"""``make demo``: real flights through Spark, Airflow and S3 on this machine, checked and then cleaned up."""

from __future__ import annotations

import argparse
import sys
import time
from contextlib import ExitStack, contextmanager
from datetime import date, timedelta
from functools import partial
from pathlib import Path
from typing import TYPE_CHECKING, TypeVar

from rich.console import Console

from airflow_s3commit.protocol.model.destination import Destination
from airflow_s3commit.store.s3.store import S3Store
from dev.demo.engines import ask_engines
from dev.demo.flights import Flights
from dev.demo.report import chapter_view, counts_view, judge, tell
from dev.demo.servers import exit_code_of, start
from dev.demo.story import REFRESH, REPORT, Chapter, Story

if TYPE_CHECKING:
    from collections.abc import Callable, Iterator


#: The root of the checkout: the DAGs that run are the ones that a reader finds there.
CHECKOUT = Path(__file__).parents[2]

#: Where the DAGs write unless a param says otherwise.
DESTINATION = Destination.parse("s3://lake/flights/")

FIRST_DAY = date(2013, 1, 1)

T = TypeVar("T")


def main(argv: list[str] | None = None) -> int:
    """Run the demo; return 0 if all checks passed."""
    parser = argparse.ArgumentParser(prog="python -m dev.demo", description=__doc__)
    parser.add_argument("--nights", type=int, default=3, choices=range(1, 29), metavar="N", help="default: 3")
    parser.add_argument("--home", type=Path, default=CHECKOUT / ".demo", help="where all it makes lies")
    parser.add_argument("--dags", type=Path, default=CHECKOUT / "dags", help="the directory with the DAGs")
    parser.add_argument(
        "--unchanged", action="store_true", help="a Spark job with Spark's own writer, by S3A"
    )
    arguments = parser.parse_args(argv)

    def work(console: Console, home: Path) -> bool:
        return _demonstrate(console, home, arguments.dags, arguments.nights, unchanged=arguments.unchanged)

    return exit_code_of(work, arguments.home)


def _demonstrate(console: Console, home: Path, dags: Path, nights: int, *, unchanged: bool) -> bool:
    """Start everything, run everything, judge, stop everything; return whether all checks passed."""
    with ExitStack() as outer:
        stack = ExitStack()
        outer.callback(_stop, console, stack)
        console.rule("[bold]Starting[/]", align="left")
        server, airflow = start(
            stack, home, dags, [REFRESH, REPORT], lambda name: _step(console, name), unchanged=unchanged
        )
        flights, store = Flights(), S3Store.connect(server.config)
        story = Story(airflow, store, DESTINATION, flights, partial(tell, console))
        chapters = _refreshes(console, story, nights)
        reported = _chapter(console, f"Report on {FIRST_DAY}", lambda: story.report(FIRST_DAY))
        console.print(counts_view(*reported))
        console.rule("[bold]What is there now[/]", align="left")
        right = judge(console, server.config, DESTINATION, flights, chapters) and reported[0].holds
        console.rule("[bold]What other engines see[/]", align="left")
        days = {one.day for one in chapters if one.manifest is not None}
        expected = {day.isoformat(): flights.of(day).num_rows for day in days}
        return ask_engines(console, server.config, DESTINATION, expected, home) and right


def _refreshes(console: Console, story: Story, nights: int) -> list[Chapter]:
    days = [FIRST_DAY + timedelta(days=n) for n in range(nights + 1)]
    acts: list[tuple[str, Callable[[], Chapter]]] = [
        (f"Night after {day}: a new day", partial(story.night, day)) for day in days[:-1]
    ]
    acts.append(
        (f"Backfill of {days[0]}: replace what is there", partial(story.backfill, days[0])),
    )
    acts.append(
        (f"Night after {days[-1]}: Spark fails after its uploads", partial(story.failure, days[-1])),
    )
    chapters = []
    for title, act in acts:
        chapters.append(_chapter(console, title, act))
        console.print(chapter_view(chapters[-1]))
    return chapters


def _chapter(console: Console, title: str, act: Callable[[], T]) -> T:
    console.rule(f"[bold]{title}[/]", align="left")
    with console.status(title):
        return act()


@contextmanager
def _step(console: Console, name: str) -> Iterator[None]:
    began = time.monotonic()
    with console.status(name):
        yield
    tell(console, time.monotonic() - began, name)


def _stop(console: Console, stack: ExitStack) -> None:
    with _step(console, "Airflow and SeaweedFS stopped"):
        stack.close()


if __name__ == "__main__":
    sys.exit(main())
