"""A folder's files replaced together: those of a model or an index, of which none fits another one's."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from pathlib import Path
from tempfile import TemporaryDirectory

__all__ = ["replacing"]


@contextmanager
def replacing(folder: Path, config: str, patterns: Sequence[str]) -> Iterator[Path]:
    """A place to write files in, which go to `folder` once all of them are written.

    What is there stays as it was until then. While they go the folder has no `config`, without which the other files
    count as nothing: an interruption leaves no mixture of two.

    Args:
        folder: made where there is none.
        config: the name of the file that comes last.
        patterns: of files that go from the folder unless they were written anew.
    """
    folder.mkdir(parents=True, exist_ok=True)
    with TemporaryDirectory(prefix=".writing-", dir=folder) as name:
        new = Path(name)
        yield new
        written = {path.name for path in new.iterdir()}
        (folder / config).unlink(missing_ok=True)
        for file in written - {config}:
            (new / file).replace(folder / file)
        for pattern in patterns:
            for path in list(folder.glob(pattern)):
                if path.name not in written:
                    path.unlink()
        (new / config).replace(folder / config)
