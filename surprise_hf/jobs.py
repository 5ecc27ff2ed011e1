"""A table that is written chunk by chunk, so that an interrupted run goes on where it was."""

from __future__ import annotations

import json
import shutil
import sys
import tempfile
from pathlib import Path
from types import TracebackType
from typing import Any

from .tables import to_parquet

NOTE = "job.json"  # in a folder for what is unfinished: the run that it belongs to


def write_note(folder: Path, identity: dict[str, Any]) -> None:
    """Make the folder of a run that depends on all of `identity`."""
    folder.mkdir(parents=True)
    (folder / NOTE).write_text(json.dumps(identity, indent=1, ensure_ascii=False), encoding="utf-8")


def remove(folder: Path) -> None:
    """Delete a folder; it is gone from its place in one step, so that an interruption leaves no half of it there."""
    with tempfile.TemporaryDirectory(prefix="surprise-hf-", dir=folder.parent) as away:
        folder.rename(Path(away, folder.name))


def check_same(folder: Path, identity: dict[str, Any], how: str = "") -> None:
    """Refuse the folder of another run; `how` is what its command needs to go on.

    Raises:
        ValueError: its note is of another.
    """
    before = json.loads((folder / NOTE).read_text(encoding="utf-8"))
    other = sorted(name for name in {*before, *identity} if before.get(name) != identity.get(name))
    if other:
        raise ValueError(
            f"{folder} holds a run with another {', '.join(other)}: repeat that command{how}, or remove that folder to"
            " start anew"
        )


class ChunkFile:
    """A file that grows by whole chunks; what a kill left half written is cut off by the next chunk.

    A journal beside it holds the length of the file after each chunk, written when the chunk is.

    Attributes:
        ends: length in bytes after each finished chunk.
    """

    def __init__(self, path: Path, journal: Path) -> None:
        text = journal.read_text() if journal.exists() else ""
        self.ends = [int(line) for line in text.splitlines(keepends=True) if line.endswith("\n")]
        size = path.stat().st_size if path.exists() else 0
        while self.ends and self.ends[-1] > size:  # the file was cut or replaced meanwhile
            self.ends.pop()
        journal.write_text("".join(f"{end}\n" for end in self.ends))
        self.path, self._journal = path, journal

    def append(self, chunk: bytes) -> None:
        """Add a chunk; it is finished once this returns."""
        start = self.ends[-1] if self.ends else 0
        with self.path.open("r+b" if self.path.exists() else "wb") as file:
            file.truncate(start)
            file.seek(start)
            file.write(chunk)
        with self._journal.open("a") as journal:
            journal.write(f"{start + len(chunk)}\n")
        self.ends.append(start + len(chunk))


class Job:
    """The output of one run. The folder `OUT.partial` holds what an interrupted one needs to go on.

    A run that can't go on has a temporary folder beside OUT instead, and OUT is there once all of it is.

    Args:
        out: the file to write; None is standard output, with which nothing can be gone on.
        fmt: one of `tables.FORMATS`.
        identity: everything that the result depends on; only an equal run can go on.
        resume: go on with the interrupted run, if there is one; None: runs of this command can't go on.

    Attributes:
        folder: for files that belong to the unfinished job.

    Raises:
        ValueError: an interrupted run is there, and it is another one or `resume` was not asked for; or the folder
            holds something else.
    """

    def __init__(self, out: Path | None, fmt: str, identity: dict[str, Any], resume: bool | None) -> None:
        self._out, self._fmt = out, fmt
        self._temporary: tempfile.TemporaryDirectory[str] | None = None
        if out is None or resume is None:
            self._out = None if out is None else out.resolve()  # a link stays one
            beside = None if self._out is None else self._out.parent  # where a rename is enough to put it in its place
            self._temporary = tempfile.TemporaryDirectory(prefix="surprise-hf-", dir=beside)
            self.folder = Path(self._temporary.name)
        else:
            self.folder = Path(f"{out}.partial")
            self._begin(identity, resume)
        rows = out
        if fmt == "parquet" or (out is not None and self._temporary is not None):
            rows = self.folder / "rows"
        self._rows = None if rows is None else ChunkFile(rows, self.folder / "rows.ends")

    def _begin(self, identity: dict[str, Any], resume: bool) -> None:
        note = self.folder / NOTE
        if note.exists() and any(journal.stat().st_size for journal in self.folder.glob("*.ends")):
            if not resume:
                raise ValueError(
                    f"{self.folder} holds an interrupted run: go on with it by --resume, or remove that folder to"
                    " start anew"
                )
            check_same(self.folder, identity, " with --resume")
            return
        if self.folder.exists():
            if not note.exists() and any(self.folder.iterdir()):
                raise ValueError(
                    f"{self.folder} is where a run keeps what is unfinished, and holds something else: move that"
                    " elsewhere"
                )
            remove(self.folder)
        write_note(self.folder, identity)

    def __enter__(self) -> Job:
        return self

    def __exit__(self, kind: type | None, error: BaseException | None, trace: TracebackType | None) -> None:
        if self._temporary is not None:
            self._temporary.cleanup()

    @property
    def done(self) -> int:
        """Chunks of rows finished."""
        return len(self._rows.ends) if self._rows else 0

    def chunk_file(self, name: str) -> ChunkFile:
        """A file of the job's own, as the rows are."""
        return ChunkFile(self.folder / name, self.folder / f"{name}.ends")

    def append(self, chunk: bytes) -> None:
        """Write one chunk of rows, as `tables.encode` gives it."""
        if self._rows is not None:
            self._rows.append(chunk)
        else:
            sys.stdout.buffer.write(chunk)
            sys.stdout.flush()

    def finish(self) -> None:
        """Put what could not grow in its place, and remove the folder."""
        if self._fmt == "parquet":
            whole = self.folder / "whole.parquet"
            to_parquet(self.folder / "rows", whole)
            if self._out is not None:
                whole.replace(self._out)
            else:
                with whole.open("rb") as file:
                    shutil.copyfileobj(file, sys.stdout.buffer)
                sys.stdout.flush()
        elif self._temporary is not None and self._out is not None:
            (self.folder / "rows").replace(self._out)
        if self._temporary is None:
            remove(self.folder)
