"""A character encoding that translates Spark's CSV escapes into those of Arrow's parser.

In Spark's files a backslash is an escape in quoted values only. Arrow takes it for an escape everywhere. So
the text is rewritten between decompression and parser, in a character encoding: the only place where
pyarrow lets Python change a dataset's text.
"""

from __future__ import annotations

import codecs
import re
from typing import cast

_PREFIX = "s3commit_csv_"
_LINE_ENDS = "\r\n"


def encoding_of(separator: str, quote: str, escape: str) -> str:
    """Return the name of the encoding: UTF-8 with every escape character outside quotes doubled.

    Args:
        separator: Separates values. One ASCII character, as are the other two.
        quote: Encloses values.
        escape: Escapes characters in quoted values.

    """
    return _PREFIX + "_".join(f"{ord(character):02x}" for character in (separator, quote, escape))


class _Decoder(codecs.IncrementalDecoder):
    """Decodes one file; holds a quoted value back until it is complete."""

    _separator = ","
    _quote = '"'
    _escape = "\\"

    def __init__(self, errors: str = "strict") -> None:
        super().__init__(errors)
        self._utf8 = codecs.getincrementaldecoder("utf-8")(errors)
        quote, escape = re.escape(self._quote), re.escape(self._escape)
        before = re.escape(self._separator + _LINE_ENDS)
        inside = f"[^{quote}{escape}]"
        self._token = re.compile(
            rf"(?<=[{before}]){quote}(?:{inside}+|{escape}.)*+({quote}?)|{escape}", re.DOTALL
        )
        self._escapes = re.compile(rf"{escape}[{quote}{escape}]|{escape}")
        # The last character returned: a quote opens a value only at the start of one.
        self._last = "\n"
        self._held = ""

    def decode(self, data: bytes, final: bool = False) -> str:  # type: ignore[override] # pyarrow's buffers
        """Return the text of the next bytes, without a quoted value that is still incomplete."""
        text = self._held + self._utf8.decode(bytes(data), final)
        self._held = ""
        if self._quote in text or self._escape in text:
            text = self._translate(text, final)
        if text:
            self._last = text[-1]
        return text

    def _translate(self, text: str, final: bool) -> str:
        text = self._last + text
        pieces, done = [], 1
        for found in self._token.finditer(text, 1):
            if found[0] == self._escape:
                pieces += [text[done : found.end()], self._escape]
            elif not found[1] and not final:
                self._held = text[found.start() :]
                return "".join([*pieces, text[done : found.start()]])
            else:
                pieces += [text[done : found.start()], self._escapes.sub(self._double_stray, found[0])]
            done = found.end()
        return "".join([*pieces, text[done:]])

    def _double_stray(self, found: re.Match[str]) -> str:
        """Double an escape character that escapes nothing; keep any other escape."""
        return self._escape * 2 if found[0] == self._escape else found[0]


def _find(name: str) -> codecs.CodecInfo | None:
    if not name.startswith(_PREFIX):
        return None
    separator, quote, escape = (chr(int(code, 16)) for code in name.removeprefix(_PREFIX).split("_"))
    decoder = type("_Decoder", (_Decoder,), {"_separator": separator, "_quote": quote, "_escape": escape})
    return codecs.CodecInfo(
        name=name,
        encode=codecs.utf_8_encode,
        decode=codecs.utf_8_decode,
        incrementalencoder=codecs.getincrementalencoder("utf-8"),
        incrementaldecoder=cast("type[_Decoder]", decoder),
    )


codecs.register(_find)
