"""CSV with escapes as Spark has them, in terms of what Arrow's parser knows.

In Spark's files a backslash escapes in quoted values only; anywhere else it is itself. To Arrow it escapes
everywhere. So the text is changed on its way into the parser, behind the decompression: as a character
encoding, the one place where pyarrow lets Python change a dataset's text.
"""

from __future__ import annotations

import codecs
import re
from typing import cast

_PREFIX = "s3commit_csv_"
_LINE_ENDS = "\r\n"


def encoding_of(separator: str, quote: str, escape: str) -> str:
    """Return the name of the encoding: UTF-8 in which what escapes elsewhere than in quotes is doubled.

    Args:
        separator: Stands between values; like the others one ASCII character.
        quote: Encloses values.
        escape: Escapes within quotes.

    """
    return _PREFIX + "_".join(f"{ord(character):02x}" for character in (separator, quote, escape))


class _Decoder(codecs.IncrementalDecoder):
    """Decodes one file; holds a quoted value back until all of it is there."""

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
        # The last character that was passed on: a quote opens a value only where a value begins.
        self._last = "\n"
        self._held = ""

    def decode(self, data: bytes, final: bool = False) -> str:  # type: ignore[override] # pyarrow's buffers
        """Return the text of the next bytes, as far as it is certain."""
        text = self._held + self._utf8.decode(bytes(data), final)
        self._held = ""
        if self._quote in text or self._escape in text:
            text = self._change(text, final)
        if text:
            self._last = text[-1]
        return text

    def _change(self, text: str, final: bool) -> str:
        text = self._last + text
        pieces, done = [], 1
        for found in self._token.finditer(text, 1):
            if found[0] == self._escape:
                pieces += [text[done : found.end()], self._escape]
            elif not found[1] and not final:
                self._held = text[found.start() :]
                return "".join([*pieces, text[done : found.start()]])
            else:
                pieces += [text[done : found.start()], self._escapes.sub(self._of_use, found[0])]
            done = found.end()
        return "".join([*pieces, text[done:]])

    def _of_use(self, found: re.Match[str]) -> str:
        """Return an escape as it is where there is something to escape, and else itself escaped."""
        return self._escape * 2 if found[0] == self._escape else found[0]


def _find(name: str) -> codecs.CodecInfo | None:
    if not name.startswith(_PREFIX):
        return None
    separator, quote, escape = (chr(int(code, 16)) for code in name.removeprefix(_PREFIX).split("_"))
    of_dialect = type("_Decoder", (_Decoder,), {"_separator": separator, "_quote": quote, "_escape": escape})
    return codecs.CodecInfo(
        name=name,
        encode=codecs.utf_8_encode,
        decode=codecs.utf_8_decode,
        incrementalencoder=codecs.getincrementalencoder("utf-8"),
        incrementaldecoder=cast("type[_Decoder]", of_dialect),
    )


codecs.register(_find)
