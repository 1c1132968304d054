"""Writing a result so that a reader finds all of it or nothing."""

from __future__ import annotations

import errno
import os
import tempfile
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

from unembed.errors import InvalidInput, UnembedError
from unembed.validation import as_path


def check_writable(path: str | os.PathLike[str]) -> Path:
    """The path, if a file can stand there: for asking before hours of work, not after.

    Raises:
        InvalidInput: the folder does not exist, the path is a folder or a device, or no file can have such a name.
    """
    target = as_path(path)
    try:
        is_folder = target.is_dir()
        # Files are renamed into place, which would put one where a device or a pipe is.
        is_ordinary = target.is_file() or not target.exists()
        if b"\0" in os.fsencode(target):
            raise ValueError("a NUL")
    except (OSError, ValueError) as error:  # ValueError: a NUL, or half of a surrogate pair
        why = getattr(error, "strerror", None) or "no file can have this name"
        raise InvalidInput(f"cannot write {str(target)[:60]!r}", why=why, instead="Give another name") from error
    if not target.parent.is_dir():
        raise InvalidInput(
            f"cannot write {target}", why=f"the folder {target.parent} does not exist", instead="Create it first"
        )
    if is_folder:
        raise InvalidInput(f"cannot write {target}", why="it is a folder", instead="Give the name of a file")
    if not is_ordinary:
        raise InvalidInput(
            f"cannot write {target}", why="it is a device or a pipe", instead="Give the name of a file, or use stdout"
        )
    return target


def make_folder(path: str | os.PathLike[str]) -> Path:
    """The path, after a folder stands there.

    Raises:
        InvalidInput: none can: a file is in its place or its way, or the folder above cannot be written to.
    """
    folder = as_path(path)
    try:
        folder.mkdir(parents=True, exist_ok=True)
    except (OSError, ValueError) as error:
        why = getattr(error, "strerror", None) or "no folder can have this name"
        shown = str(folder) if folder.name.isprintable() else repr(str(folder))
        raise InvalidInput(f"cannot make the folder {shown}", why=why, instead="Choose another place") from error
    return folder


_NO_ROOM = {errno.ENOSPC, errno.EDQUOT, errno.EFBIG, errno.EROFS}


@contextmanager
def writing(place: str | os.PathLike[str], *, instead: str) -> Iterator[None]:
    """Around writes of whatever library: a disk that is full, or a place that cannot be written to, is one sentence.

    Other failures pass as they are.

    Args:
        place: the file or folder that is written.
        instead: what to do, in the sentence.

    Raises:
        UnembedError: the disk is full, or `place` or what lies in it cannot be written to.
    """
    try:
        yield
    except UnembedError:
        raise
    except Exception as error:
        if (why := _unwritable(error, Path(place))) is None:
            raise
        raise UnembedError(f"cannot write {place}", why=why, instead=instead) from error


def _unwritable(error: BaseException, place: Path) -> str | None:
    """What kept it from being written, None where it was something else."""
    inner: BaseException | None = error
    while inner is not None:
        if isinstance(inner, OSError) and inner.errno is not None:
            # Without room the error names no file; without leave to write it does, and reading fails so too.
            inside = inner.filename is not None and Path(os.fsdecode(inner.filename)).is_relative_to(place)
            if inner.errno in _NO_ROOM or inside:
                return inner.strerror
        inner = inner.__cause__ or inner.__context__
    # What is written in Rust (safetensors) raises errors of its own, with the system's number in the text.
    told = next((number for number in _NO_ROOM if f"(os error {number})" in str(error)), None)
    return None if told is None else os.strerror(told)


def write_whole(path: str | os.PathLike[str], content: str | bytes) -> Path:
    """The path, after the content stands there completely.

    Written under a temporary name in the same folder and renamed, so that an interrupted or failed write leaves what
    was there before.

    Raises:
        InvalidInput: the folder does not exist, or the path is a folder.
        UnembedError: the disk is full or the folder cannot be written to.
    """
    target = check_writable(path)
    data = content.encode("utf-8") if isinstance(content, str) else content
    temporary = ""
    try:
        with tempfile.NamedTemporaryFile(dir=target.parent, prefix=f".{target.name}.", delete=False) as handle:
            temporary = handle.name
            handle.write(data)
        # NamedTemporaryFile makes files only the owner can read; a result is an ordinary file.
        os.chmod(temporary, 0o666 & ~_umask())
        os.replace(temporary, target)
    except OSError as error:
        raise UnembedError(
            f"cannot write {target}", why=error.strerror or str(error), instead="Choose another place"
        ) from error
    finally:
        if temporary and os.path.exists(temporary):
            os.unlink(temporary)
    return target


def _umask() -> int:
    current = os.umask(0)
    os.umask(current)
    return current
