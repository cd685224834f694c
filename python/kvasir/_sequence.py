# SPDX-License-Identifier: Apache-2.0
"""Caches as objects."""
from __future__ import annotations

import dataclasses
import os
import weakref
from typing import TYPE_CHECKING, Any, Iterable, Literal, overload

import numpy as np
import numpy.typing as npt

from ._library import Handle, check, ffi, lib, new_error
from ._text import Ids, ids_of

if TYPE_CHECKING:
    from ._model import Model

Logits = npt.NDArray[np.float32]


@dataclasses.dataclass(frozen=True)
class ContextInfo:
    """ctx: most tokens of a sequence, 0: any number. cache_bytes: the budget of all pages."""

    ctx: int
    cache_bytes: int
    used_bytes: int
    peak_bytes: int
    kv_format: str
    kv_bytes_per_token: int
    kv_bytes_per_token16: int
    device: str
    cpu_tier: str
    threads: int


class Context(Handle):
    """Made by Model.context()."""

    _kind = "context"

    def __init__(self, model: Model, options: dict[str, Any]) -> None:
        o, error = ffi.new("kvasir_context_options *"), new_error()
        lib.kvasir_context_init(o, ffi.sizeof("kvasir_context_options"))
        kept = []
        folder = options.pop("calibrations")
        if folder is not None:
            kept.append(ffi.new("char[]", os.fsencode(folder)))
            calibrate = ffi.new("kvasir_calibrate_options *")
            calibrate.struct_size = ffi.sizeof("kvasir_calibrate_options")
            calibrate.folder = kept[-1]
            o.calibrate = calibrate
        for name, value in options.items():
            if isinstance(value, (str, os.PathLike)):
                kept.append(ffi.new("char[]", os.fsencode(value)))
                value = kept[-1]
            if value is not None:
                setattr(o, name, value)
        pointer = ffi.new("kvasir_context **")
        check(lib.kvasir_context_create(model._open(), o, pointer, error), error)
        self._pointer = pointer[0]
        self.model = model
        self._vocab = model.info.vocab
        self._sequences: weakref.WeakSet[Sequence] = weakref.WeakSet()

    def close(self) -> None:
        """Closes its sequences, too."""
        for sequence in list(self._sequences):
            sequence.close()
        if self._pointer is not None:
            lib.kvasir_context_destroy(self._pointer)
        self._pointer = None

    @property
    def info(self) -> ContextInfo:
        info = ffi.new("kvasir_context_info *")
        lib.kvasir_context_get_info(self._open(), info)
        return ContextInfo(
            ctx=info.ctx, cache_bytes=info.cache_bytes, used_bytes=info.used_bytes,
            peak_bytes=info.peak_bytes, kv_format=ffi.string(info.kv_format).decode(),
            kv_bytes_per_token=info.kv_bytes_per_token,
            kv_bytes_per_token16=info.kv_bytes_per_token16,
            device=ffi.string(info.device).decode(),
            cpu_tier=ffi.string(info.cpu_tier).decode(), threads=info.threads)

    def sequence(self) -> Sequence:
        """A new, empty one."""
        pointer, error = ffi.new("kvasir_seq **"), new_error()
        check(lib.kvasir_seq_create(self._open(), pointer, error), error)
        return Sequence(self, pointer[0])

    def load(self, path: str | os.PathLike[str], *, convert: bool = False) -> Sequence:
        """A prompt-cache file of Sequence.save or of mlx-lm. convert: into this context's formats
        where the file has others, which is an error otherwise."""
        cache, error = ffi.new("kvasir_prompt_cache **"), new_error()
        check(lib.kvasir_prompt_cache_open(self.model._open(), os.fsencode(path), cache, error),
              error)
        try:
            pointer = ffi.new("kvasir_seq **")
            check(lib.kvasir_seq_load(self._open(), cache[0], convert, pointer, error), error)
        finally:
            lib.kvasir_prompt_cache_close(cache[0])
        return Sequence(self, pointer[0])


class Sequence(Handle):
    """Made by Context.sequence(), Context.load() and fork()."""

    _kind = "sequence"

    def __init__(self, context: Context, pointer: Any) -> None:
        self.context = context
        self._pointer = pointer
        self._error = new_error()
        context._sequences.add(self)

    def close(self) -> None:
        if self._pointer is not None:
            lib.kvasir_seq_destroy(self._pointer)
        self._pointer = None

    def __del__(self) -> None:
        if self._pointer is not None and self.context._pointer is not None:
            self.close()  # else the context has closed it

    def __len__(self) -> int:
        return int(lib.kvasir_seq_length(self._open()))

    @property
    def tokens(self) -> Ids:
        """A copy; -1 where a file of mlx-lm did not say."""
        n = len(self)
        if n == 0:
            return np.empty(0, np.int32)
        data = ffi.buffer(lib.kvasir_seq_tokens(self._open()), n * 4)
        return np.frombuffer(data, dtype=np.int32).copy()

    @property
    def nbytes(self) -> int:
        """Of its pages and states; forks count shared ones, too."""
        return int(lib.kvasir_seq_bytes(self._open()))

    @overload
    def eval(self, tokens: Iterable[int] | Ids, *, logits: Literal["last"] = "last") -> Logits: ...

    @overload
    def eval(self, tokens: Iterable[int] | Ids, *, logits: Literal["all"]) -> Logits: ...

    @overload
    def eval(self, tokens: Iterable[int] | Ids, *, logits: None) -> None: ...

    def eval(self, tokens: Iterable[int] | Ids, *,
             logits: Literal["last", "all"] | None = "last") -> Logits | None:
        """Appends tokens and evaluates them. Logits of the last one [vocab], of all
        [len(tokens), vocab], or none."""
        ids = ids_of(tokens)
        vocab = self.context._vocab
        options = ffi.new("kvasir_eval_options *", {"struct_size": ffi.sizeof(
            "kvasir_eval_options")})
        out: Logits | None = None
        failed: list[BaseException] = []
        if logits == "last":
            out = np.empty(vocab, np.float32)
            options.last_logits = ffi.from_buffer("float[]", out)
        elif logits == "all":
            every = out = np.empty((len(ids), vocab), np.float32)

            def take(user: Any, first: int, rows: int, values: Any) -> bool:
                data = np.frombuffer(ffi.buffer(values, rows * vocab * 4), np.float32)
                every[first:first + rows] = data.reshape(rows, vocab)
                return True

            on_logits = ffi.callback("kvasir_logits_fn", take, error=False,
                                     onerror=lambda kind, error, where: failed.append(error))
            options.on_logits = on_logits
        status = lib.kvasir_seq_eval(self._open(), ffi.from_buffer("int32_t[]", ids), len(ids),
                                     options, self._error)
        if failed:
            raise failed[0]
        check(status, self._error)
        return out

    def fork(self) -> Sequence:
        """A sequence with the same tokens, which shares its pages."""
        pointer = ffi.new("kvasir_seq **")
        check(lib.kvasir_seq_fork(self._open(), pointer, self._error), self._error)
        return Sequence(self.context, pointer[0])

    def trim(self, length: int) -> int:
        """Forgets all tokens from `length` on. Returns how many tokens recurrent layers had to
        evaluate again."""
        rerun = ffi.new("uint32_t *")
        check(lib.kvasir_seq_trim(self._open(), length, rerun, self._error), self._error)
        return int(rerun[0])

    def requantize(self, kv_bits: str, kv_group_size: str | None = None) -> None:
        """Encodes its pages in other formats, and later tokens, too."""
        group = ffi.NULL if kv_group_size is None else kv_group_size.encode()
        check(lib.kvasir_seq_requantize(self._open(), kv_bits.encode(), group, self._error),
              self._error)

    def save(self, path: str | os.PathLike[str], *, legacy: bool = False) -> None:
        """A file that mlx-lm loads, if it can store these formats."""
        check(lib.kvasir_seq_save(self._open(), os.fsencode(path), legacy, self._error),
              self._error)
