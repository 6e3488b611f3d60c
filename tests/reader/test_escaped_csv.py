"""CSV whose quotes are escaped in Spark's way is read as Arrow expects it."""

from __future__ import annotations

import codecs

from hypothesis import given
from hypothesis import strategies as st

from airflow_s3commit.reader.escaped_csv import encoding_of


@given(
    st.lists(st.lists(st.text(st.sampled_from('a,\\"\n é')), min_size=2, max_size=3), max_size=6),
    st.integers(1, 7),
)
def test_escapes_are_changed_wherever_the_bytes_are_cut(rows: list[list[str]], size: int) -> None:
    """However the bytes come, what escapes in Spark's way means the same in Arrow's."""

    def spark(value: str) -> str:
        if not any(character in value for character in ',"\n'):
            return value
        return '"{}"'.format(value.replace("\\", "\\\\").replace('"', '\\"'))

    def arrow(value: str) -> str:
        written = spark(value)
        return written if written != value else value.replace("\\", "\\\\")

    data = "".join(",".join(map(spark, row)) + "\n" for row in rows).encode()
    decoder = codecs.getincrementaldecoder(encoding_of(",", '"', "\\"))()
    pieces = [decoder.decode(data[at : at + size]) for at in range(0, len(data), size)]
    decoded = "".join([*pieces, decoder.decode(b"", True)])
    assert decoded == "".join(",".join(map(arrow, row)) + "\n" for row in rows)
