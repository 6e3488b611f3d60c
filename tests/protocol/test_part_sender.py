"""Parts are sent from a few threads, and few bytes of them wait."""

from __future__ import annotations

import threading

from airflow_s3commit.exceptions import StoreRejected
from airflow_s3commit.protocol.part_sender import PartSender


def test_a_writer_waits_for_room() -> None:
    """While as many bytes as allowed are on their way, a writer waits until some of them have arrived."""
    sender, gate, log = PartSender(1, 10), threading.Event(), []

    def slow() -> str:
        gate.wait(30)
        log.append("first arrived")
        return "1"

    def second() -> None:
        sender.send(lambda: "2", 6)
        log.append("second accepted")

    first = sender.send(slow, 6)
    writer = threading.Thread(target=second)
    writer.start()
    gate.set()
    writer.join(30)
    assert first.result(30) == "1"
    assert log == ["first arrived", "second accepted"]
    sender.close()


def test_a_part_larger_than_the_room_is_sent_alone() -> None:
    """A single part above the limit is not kept waiting for room that will never be."""
    sender = PartSender(1, 10)
    assert sender.send(lambda: "e", 100).result(30) == "e"
    assert sender.send(lambda: "f", 100).result(30) == "f"
    sender.close()


def test_room_is_given_back_by_failed_parts() -> None:
    """A part that failed makes room for the next one."""
    sender = PartSender(1, 10)

    def fail() -> str:
        raise StoreRejected("no")

    assert isinstance(sender.send(fail, 10).exception(30), StoreRejected)
    assert sender.send(lambda: "e", 10).result(30) == "e"
    sender.close()
