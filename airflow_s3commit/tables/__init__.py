"""Tables to files, without any engine: Arrow rows in, encoded files out, laid out as Spark lays them out.

It knows pyarrow, and of the world only "open this path, write, close". Importing this package, its
`options` and its `formats` imports no pyarrow; the other modules do.
"""

from __future__ import annotations
