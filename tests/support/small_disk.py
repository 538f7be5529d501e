"""A file system of a few megabytes that can be filled to its last byte, and emptied again."""

from __future__ import annotations

import contextlib
import os
import subprocess
import tempfile
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Final

import pytest

LEFT_OUT: Final = "a small file system cannot be mounted here; run the tests as root on Linux"


class SmallDisk:
    """A folder with a disk of its own."""

    def __init__(self, folder: Path) -> None:
        self.folder = folder
        self._filler = folder / "filler"

    def fill(self, leave: int = 0) -> None:
        """Take all room that is left but for so many bytes."""
        with self._filler.open("wb", buffering=0) as file:
            for size in (65_536, 4_096, 1):
                with contextlib.suppress(OSError):
                    while file.write(bytes(size)) == size:
                        pass
            if leave:
                file.truncate(file.tell() - leave)

    def free(self) -> None:
        """Give the room back."""
        self._filler.unlink()


@contextmanager
def small_disk(megabytes: int = 4) -> Iterator[SmallDisk]:
    """Mount one; the test is left out where that is not permitted."""
    folder = Path(tempfile.mkdtemp(prefix="wh-disk-"))
    options = f"size={megabytes}m,mode=777"
    try:
        mounted = subprocess.run(
            ["mount", "-t", "tmpfs", "-o", options, "workhorse-test", folder],
            capture_output=True,
            check=False,
        )
        if mounted.returncode:
            pytest.skip(LEFT_OUT)
        try:
            yield SmallDisk(folder)
        finally:
            # Lazily: what still holds a file of it open lets go of it with its process.
            subprocess.run(["umount", "-l", folder], capture_output=True, check=True)
    except FileNotFoundError:
        pytest.skip(LEFT_OUT)
    finally:
        os.rmdir(folder)
