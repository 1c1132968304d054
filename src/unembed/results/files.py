"""Write files atomically: other processes see either the complete file or none."""

from __future__ import annotations

import errno
import glob
import os
import threading
from collections.abc import Iterator
from contextlib import contextmanager, suppress
from pathlib import Path

from unembed.errors import InvalidInput, UnembedError
from unembed.validation import as_path

UNFINISHED = ".writing"
"""File name extension of an incomplete file."""


def check_writable(path: str | os.PathLike[str]) -> Path:
    """Check that a file can be written at a path, before a long computation; return the path.

    Raises:
        InvalidInput: the folder does not exist, the path is a folder or a device, or the file name is not allowed.
    """
    target = as_path(path)
    try:
        is_folder = target.is_dir()
        # Files are written by renaming a temporary file to the target's name. This would replace a device or a pipe by
        # an ordinary file, so devices and pipes are rejected.
        is_ordinary = target.is_file() or not target.exists()
        if b"\0" in os.fsencode(target):
            raise ValueError("the path contains a NUL character")
    except (OSError, ValueError) as error:  # ValueError: the path has a NUL or half a surrogate pair
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
    """Create a folder if it does not exist; return its path.

    Raises:
        InvalidInput: the path is a file, or the parent folder cannot be written to.
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
    """Context manager that raises `UnembedError` if the disk is full or a permission is missing.

    It recognises these causes in exceptions of all libraries that write files. Other exceptions pass unchanged.

    Args:
        place: the file or folder that is written.
        instead: the part of the error message that says what to do.

    Raises:
        UnembedError: the disk is full, or `place` or a file in it cannot be written to.
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
    """Return the reason why writing failed (full disk, no permission); None if the exception has another cause."""
    inner: BaseException | None = error
    while inner is not None:
        if isinstance(inner, OSError) and inner.errno is not None:
            # A full disk is recognised by its error number. Any other error counts only if it names a file inside
            # `place`, because the same error may also occur when some other file is read.
            inside = inner.filename is not None and Path(os.fsdecode(inner.filename)).is_relative_to(place)
            if inner.errno in _NO_ROOM or inside:
                return inner.strerror
        inner = inner.__cause__ or inner.__context__
    # Libraries written in Rust (safetensors) raise their own errors, whose text contains the system's error number.
    number = next((number for number in _NO_ROOM if f"(os error {number})" in str(error)), None)
    return None if number is None else os.strerror(number)


@contextmanager
def whole_file(path: str | os.PathLike[str], *, durable: bool = False) -> Iterator[Path]:
    """Context manager that yields a temporary file name; at its end, that file is renamed to `path`.

    If the block fails or the process is killed, the previous file stays unchanged.

    Args:
        path: the file to write or replace.
        durable: flush the content and the renaming to disk, so that they survive a power failure. Temporary files of
            killed processes are removed first, so only one process at a time may write `path`.
    """
    target = Path(path)
    if durable:
        for left in target.parent.glob(f".{glob.escape(target.name)}.*{UNFINISHED}"):
            left.unlink(missing_ok=True)
    temporary = target.with_name(f".{target.name}.{os.getpid()}-{threading.get_native_id()}{UNFINISHED}")
    try:
        yield temporary
        if durable:
            _flush(temporary)
        os.replace(temporary, target)
        if durable and os.name != "nt":  # Windows cannot open folders
            with suppress(OSError):  # some network file systems cannot flush a folder
                _flush(target.parent)
    finally:
        temporary.unlink(missing_ok=True)


def _flush(path: Path) -> None:
    handle = os.open(path, os.O_RDWR if path.is_file() else os.O_RDONLY)
    try:
        os.fsync(handle)
    finally:
        os.close(handle)


def write_whole(path: str | os.PathLike[str], content: str | bytes) -> Path:
    """Write a file so that a failed or interrupted write leaves the previous file unchanged; return its path.

    Raises:
        InvalidInput: the folder does not exist, or the path is a folder.
        UnembedError: the disk is full or the folder cannot be written to.
    """
    target = check_writable(path)
    data = content.encode("utf-8") if isinstance(content, str) else content
    try:
        with whole_file(target) as temporary:
            temporary.write_bytes(data)
    except OSError as error:
        raise UnembedError(
            f"cannot write {target}", why=error.strerror or str(error), instead="Choose another place"
        ) from error
    return target
