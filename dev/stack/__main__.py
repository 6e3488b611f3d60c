"""``make stack`` and ``make stack-docker``: a stack, tried out by runs of the nightly DAG.

Without Docker it is one run. In containers there is a second one, in which the worker's container is killed
while it commits.
"""

from __future__ import annotations

import argparse
import json
import sys
import time
import urllib.request
from contextlib import ExitStack
from datetime import date, timedelta
from functools import partial
from pathlib import Path
from typing import TYPE_CHECKING

from rich.console import Console

from airflow_s3commit.exceptions import AccessDenied
from airflow_s3commit.protocol.model.destination import Destination
from airflow_s3commit.store.execute import RetryPolicy
from airflow_s3commit.store.s3.store import S3Store
from dev.airflow_home import wait_for_dags
from dev.demo.flights import Flights
from dev.demo.report import chapter_view, judge, tell
from dev.demo.servers import exit_code_of
from dev.demo.story import REFRESH, Chapter, Story
from dev.java import java_home
from dev.stack.base import CHECKOUT
from dev.stack.containers import ContainerStack, has_networks
from dev.stack.kill import KillWhileCommitting
from dev.stack.loopback import loopback_stack

if TYPE_CHECKING:
    from collections.abc import Iterator

    from dev.stack.base import Stack

DESTINATION = Destination.parse("s3://lake/flights/")

#: A place that the pipeline may not access.
ELSEWHERE = "elsewhere/probe"

DAY = date(2013, 1, 1)

#: Nights in which the worker may be killed: a commit can be over before it is noticed.
NIGHTS = 3

#: Seconds until the DAGs must be known.
DAG_SECONDS = 120.0


def main(argv: list[str] | None = None) -> int:
    """Run the stack; return 0 if all checks passed."""
    parser = argparse.ArgumentParser(prog="make stack", description=__doc__)
    parser.add_argument("--docker", action="store_true", help="in containers; one is killed in mid-commit")
    parser.add_argument(
        "--host-network", action="store_true", help="with --docker: in this machine's network, on loopback"
    )
    parser.add_argument("--check", action="store_true", help="stop when the nightly DAG has been judged")
    parser.add_argument("--home", type=Path, default=CHECKOUT / ".stack", help="where all it makes lies")
    arguments = parser.parse_args(argv)

    def work(console: Console, home: Path) -> bool:
        with ExitStack() as resources:
            stack = _started(resources, console, home, arguments)
            held = _try_out(console, stack)
            if not arguments.check:
                _stay(console, stack)
            return held

    return exit_code_of(work, arguments.home)


def _started(resources: ExitStack, console: Console, home: Path, arguments: argparse.Namespace) -> Stack:
    what = "what docker/compose.yaml describes" if arguments.docker else "S3, Spark and Airflow on loopback"
    console.rule(f"[bold]Starting {what}[/]", align="left")
    began = time.monotonic()

    def step(name: str) -> None:
        tell(console, time.monotonic() - began, name)

    if arguments.docker:
        on_host = arguments.host_network or not has_networks()
        if on_host:
            console.print("[yellow]The containers are in this machine's network, on loopback.[/]")
        return resources.enter_context(ContainerStack(home, host_network=on_host, tell=step))
    return resources.enter_context(loopback_stack(home, java_home(home / "java"), step))


def _try_out(console: Console, stack: Stack) -> bool:
    """Run the nightly DAG over Airflow's API, and judge by its result."""
    console.rule(f"[bold]The nightly DAG for {DAY}, over Airflow's REST API[/]", align="left")
    wait_for_dags(stack, [REFRESH], DAG_SECONDS)
    store, flights = S3Store.connect(stack.store("ADMIN")), Flights()
    story = Story(stack, store, DESTINATION, flights, partial(tell, console))
    chapters = [story.night(DAY)]
    for says, holds in _seen_elsewhere(stack):
        chapters[0].check(says, holds)
    console.print(chapter_view(chapters[0]))
    if isinstance(stack, ContainerStack):
        console.rule("[bold]A night in which the worker's container is killed in mid-commit[/]", align="left")
        chapters += _nights_with_a_kill(stack, store, story)
        console.print(chapter_view(chapters[-1]))
    return judge(console, stack.store("ADMIN"), DESTINATION, flights, chapters)


def _nights_with_a_kill(stack: ContainerStack, store: S3Store, story: Story) -> list[Chapter]:
    """Run nights until the worker is killed while it commits; a check of the last night says if it was."""
    nights = []
    for day in (DAY + timedelta(days=night) for night in range(1, NIGHTS + 1)):
        with KillWhileCommitting(stack, store, DESTINATION) as kill:
            nights.append(story.night(day))
        if kill.killed:
            break
    nights[-1].check("the worker was killed while it committed", kill.killed)
    return nights


def _seen_elsewhere(stack: Stack) -> Iterator[tuple[str, bool]]:
    """Yield checks of what the run left in Spark's cluster, and of what the pipeline's keys may open."""
    with urllib.request.build_opener(urllib.request.ProxyHandler({})).open(
        f"{stack.spark_page}/json/", timeout=30
    ) as answer:
        cluster = json.load(answer)
    states = [(app["name"], app["state"]) for app in cluster["completedapps"]]
    yield "the application ran on the standalone cluster", (f"flights of {DAY}", "FINISHED") in states
    yield "the cluster has two workers", [w["state"] for w in cluster["workers"]] == ["ALIVE"] * 2
    yield "the pipeline's keys open nothing outside its prefix", _is_refused(stack)
    if isinstance(stack, ContainerStack):
        yield "every service is healthy", not stack.ailing()
        yield "no log and no command line shows a secret", not stack.shown_secrets()


def _is_refused(stack: Stack) -> bool:
    store = S3Store.connect(stack.store("PIPELINE"), retry=RetryPolicy(deadline=0.0))
    try:
        store.put(DESTINATION.bucket, ELSEWHERE, b"")
    except AccessDenied:
        return True
    return False


def _stay(console: Console, stack: Stack) -> None:
    """Show the addresses, and stay until a signal or the end of a service."""
    console.rule("[bold]It is up[/]", align="left")
    for name, where in (
        ("Airflow", f"{stack.api.url}  (user {stack.api.user})"),
        ("Spark master", stack.spark_page),
        ("S3", stack.s3_url),
        ("passwords and keys", str(stack.secrets)),
        ("logs", stack.logs),
    ):
        console.print(f"{name:>20}  {where}", soft_wrap=True)
    console.print("Ctrl-C stops all of it.")
    while True:
        stack.check_running()
        time.sleep(1)


if __name__ == "__main__":
    sys.exit(main())
