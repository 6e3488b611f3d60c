"""``make demo``: real flights through Spark, Airflow and S3 on this machine, checked and cleaned up after."""

from __future__ import annotations

import argparse
import signal
import sys
import time
from contextlib import ExitStack, contextmanager
from datetime import date, timedelta
from functools import partial
from pathlib import Path
from typing import TYPE_CHECKING, TypeVar

from rich.console import Console

from airflow_s3commit.exceptions import S3CommitError
from airflow_s3commit.protocol.model.destination import Destination
from airflow_s3commit.store.s3.store import S3Store
from airflow_s3commit.testing.java import NoJava
from airflow_s3commit.testing.programs import ProgramFailed, end_in_order_on_signals
from dev.airflow_api import ApiError
from dev.demo.flights import Flights
from dev.demo.report import chapter_view, counts_view, final_table, judge_days
from dev.demo.servers import own_directory, start
from dev.demo.story import REFRESH, REPORT, Chapter, Story

if TYPE_CHECKING:
    from collections.abc import Callable, Iterator

    from airflow_s3commit.store.s3.config import S3Config

#: The root of the checkout: the DAGs that run are the ones a reader finds there.
CHECKOUT = Path(__file__).parents[2]

#: Where the DAGs write unless a param says otherwise.
DESTINATION = Destination.parse("s3://lake/flights/")

FIRST_DAY = date(2013, 1, 1)

T = TypeVar("T")


def main(argv: list[str] | None = None) -> int:
    """Run the demo; return 0 if everything it checked held."""
    parser = argparse.ArgumentParser(prog="python -m dev.demo", description=__doc__)
    parser.add_argument("--nights", type=int, default=3, choices=range(1, 29), metavar="N", help="default: 3")
    parser.add_argument("--home", type=Path, default=CHECKOUT / ".demo", help="where all it makes lies")
    parser.add_argument("--dags", type=Path, default=CHECKOUT / "dags", help="the directory with the DAGs")
    parser.add_argument(
        "--unchanged", action="store_true", help="a Spark job with Spark's own writer, by S3A"
    )
    arguments = parser.parse_args(argv)
    # Without a terminal there is no width to ask for, and the tables must not break.
    console = Console(width=None if sys.stdout.isatty() else 132, highlight=False)
    end_in_order_on_signals()
    began = time.monotonic()
    try:
        with own_directory(arguments.home) as home:
            held = _demonstrate(
                console, home, arguments.dags, arguments.nights, unchanged=arguments.unchanged
            )
    except KeyboardInterrupt:
        console.print("\n[yellow]Interrupted.[/] Everything that was started is stopped.")
        return 128 + signal.SIGINT
    except (ProgramFailed, NoJava, ApiError, S3CommitError) as error:
        console.print("[bold red]The demo could not go on:[/]")
        console.print(str(error), markup=False, soft_wrap=True)
        return 1
    verdict = (
        "[bold green]Every check held.[/]" if held else "[bold red]Not every check held: see ✗ above.[/]"
    )
    console.print(f"{verdict} It took {time.monotonic() - began:.0f} s; logs are in {arguments.home}.")
    return 0 if held else 1


def _demonstrate(console: Console, home: Path, dags: Path, nights: int, *, unchanged: bool) -> bool:
    """Start everything, run everything, judge, stop everything; return whether all checks held."""
    with ExitStack() as outer:
        stack = ExitStack()
        outer.callback(_stop, console, stack)
        console.rule("[bold]Starting[/]", align="left")
        server, airflow = start(
            stack, home, dags, [REFRESH, REPORT], lambda name: _step(console, name), unchanged=unchanged
        )
        flights, store = Flights(), S3Store.connect(server.config)
        story = Story(airflow, store, DESTINATION, flights, lambda at, what: _tell(console, at, what))
        chapters = _refreshes(console, story, nights)
        reported = _chapter(console, f"Report on {FIRST_DAY}", lambda: story.report(FIRST_DAY))
        console.print(counts_view(*reported))
        right = _judge(console, store, server.config, flights, chapters)
    return right and all(chapter.holds for chapter in [*chapters, reported[0]])


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


def _judge(
    console: Console, store: S3Store, config: S3Config, flights: Flights, chapters: list[Chapter]
) -> bool:
    console.rule("[bold]What is there now[/]", align="left")
    verdicts = judge_days(config, DESTINATION, flights, chapters)
    console.print(final_table(DESTINATION, verdicts))
    pending = sum(1 for _ in store.list_uploads(DESTINATION.bucket, ""))
    colour = "red" if pending else "green"
    console.print(f"[{colour}]{pending} uploads pending in all of s3://{DESTINATION.bucket}/[/]")
    return pending == 0 and all(verdict.right for verdict in verdicts)


@contextmanager
def _step(console: Console, name: str) -> Iterator[None]:
    began = time.monotonic()
    with console.status(name):
        yield
    _tell(console, time.monotonic() - began, name)


def _tell(console: Console, seconds: float, what: str) -> None:
    console.print(f"[dim]{seconds:6.1f} s[/]  {what}")


def _stop(console: Console, stack: ExitStack) -> None:
    with _step(console, "Airflow and SeaweedFS stopped"):
        stack.close()


if __name__ == "__main__":
    sys.exit(main())
