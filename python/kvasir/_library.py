# SPDX-License-Identifier: Apache-2.0
"""Loads libkvasir and turns its errors into exceptions."""
from __future__ import annotations

import os
from pathlib import Path
from types import TracebackType
from typing import Any, TypeVar

import cffi

_HERE = Path(__file__).parent

ffi: Any = cffi.FFI()
ffi.cdef((_HERE / "_api.h").read_text(encoding="utf-8"))


def _load() -> Any:
    """KVASIR_LIBRARY, else the library beside this file, else the system's."""
    named = os.environ.get("KVASIR_LIBRARY")
    beside = sorted(_HERE.glob("libkvasir.so*"))
    return ffi.dlopen(named or (str(beside[0]) if beside else "libkvasir.so.0"))


lib: Any = _load()


class Error(Exception):
    """What the library says went wrong. status: "cache budget exceeded" ...; field: the option at
    fault, such as "context.kv_bits", or None; offset: a byte in a file, or None."""

    def __init__(self, error: Any, status: int) -> None:
        super().__init__(ffi.string(error.text).decode("utf-8", "replace"))
        self.status: str = ffi.string(lib.kvasir_status_text(status)).decode()
        self.field: str | None = ffi.string(error.field).decode() if error.field else None
        self.offset: int | None = int(error.offset) if error.offset >= 0 else None


class Cancelled(Error):
    """A callback ended the call."""


def new_error() -> Any:
    return ffi.new("kvasir_error *")


def check(status: int, error: Any) -> None:
    if status == lib.KVASIR_OK:
        return
    if status == lib.KVASIR_ERR_MEMORY:
        raise MemoryError(ffi.string(error.text).decode("utf-8", "replace"))
    raise (Cancelled if status == lib.KVASIR_ERR_CANCELLED else Error)(error, status)


def take_text(pointer: Any, length: int) -> str:
    """A text that the library made, which is freed."""
    try:
        return bytes(ffi.buffer(pointer, length)).decode("utf-8")
    finally:
        lib.kvasir_free(pointer)


_H = TypeVar("_H", bound="Handle")


class Handle:
    """An object of the library, which close() gives back; also a context manager."""

    _pointer: Any = None
    _kind = "object"

    def close(self) -> None:
        raise NotImplementedError

    def _open(self) -> Any:
        if self._pointer is None:
            raise ValueError(f"the {self._kind} is closed")
        return self._pointer

    def __enter__(self: _H) -> _H:
        return self

    def __exit__(self, kind: type[BaseException] | None, error: BaseException | None,
                 where: TracebackType | None) -> None:
        self.close()

    def __del__(self) -> None:
        if self._pointer is not None:
            self.close()
