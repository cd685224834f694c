# SPDX-License-Identifier: Apache-2.0
"""Texts to tokens and back."""
from __future__ import annotations

import json
from typing import Any, Iterable, Mapping, Sequence as Items

import numpy as np
import numpy.typing as npt

from ._library import check, ffi, lib, new_error, take_text

Ids = npt.NDArray[np.int32]


def ids_of(tokens: Iterable[int] | Ids) -> Ids:
    """Token ids as the library reads them."""
    return np.ascontiguousarray(tokens if isinstance(tokens, np.ndarray) else list(tokens),
                                dtype=np.int32)


class Tokenizer:
    """Of a model (Model.tokenizer); valid as long as that is open."""

    def __init__(self, pointer: Any) -> None:
        self._pointer = pointer

    @property
    def size(self) -> int:
        """Ids are below it."""
        return int(self._info().size)

    @property
    def name(self) -> str | None:
        """None: the model has no tokenizer that this version reads."""
        info = self._info()
        return ffi.string(info.name).decode() if info.name else None

    @property
    def has_chat_template(self) -> bool:
        return bool(self._info().has_chat_template)

    def _info(self) -> Any:
        info = ffi.new("kvasir_tokenizer_info *")
        lib.kvasir_tokenizer_get_info(self._pointer, info)
        return info

    def encode(self, text: str, *, special: bool = True, control: bool = False) -> Ids:
        """special: add BOS and EOS as the vocabulary says. control: names of control tokens in the
        text become tokens; not for texts from outside."""
        flags = (lib.KVASIR_TOKENIZE_ADD_SPECIAL if special else 0) | (
            lib.KVASIR_TOKENIZE_PARSE_SPECIAL if control else 0)
        data = text.encode("utf-8")
        ids, n, error = ffi.new("int32_t **"), ffi.new("size_t *"), new_error()
        check(lib.kvasir_tokenize(self._pointer, data, len(data), flags, ids, n, error), error)
        return self._take(ids[0], n[0])

    @staticmethod
    def _take(pointer: Any, n: int) -> Ids:
        try:
            if n == 0:
                return np.empty(0, np.int32)
            return np.frombuffer(ffi.buffer(pointer, n * 4), dtype=np.int32).copy()
        finally:
            lib.kvasir_free(pointer)

    def decode(self, tokens: Iterable[int] | Ids, *, skip_special: bool = False) -> str:
        """Invalid bytes become U+FFFD."""
        ids = ids_of(tokens)
        flags = lib.KVASIR_DETOKENIZE_SKIP_SPECIAL if skip_special else 0
        text, n, error = ffi.new("char **"), ffi.new("size_t *"), new_error()
        check(lib.kvasir_detokenize(self._pointer, ffi.from_buffer("int32_t[]", ids), len(ids),
                                    flags, text, n, error), error)
        return take_text(text[0], n[0])

    def chat(self, messages: Items[Mapping[str, Any]], **variables: Any) -> str:
        """The text of a chat by the model's template. variables: tools, documents,
        add_generation_prompt, and what else the template knows."""
        request = json.dumps({"messages": list(messages), **variables}).encode("utf-8")
        text, n, error = ffi.new("char **"), ffi.new("size_t *"), new_error()
        check(lib.kvasir_chat_render(self._pointer, request, len(request), text, n, error), error)
        return take_text(text[0], n[0])

    def encode_chat(self, messages: Items[Mapping[str, Any]], **variables: Any) -> Ids:
        """The tokens of a chat. Names of control tokens that the template did not write stay
        text."""
        request = json.dumps({"messages": list(messages), **variables}).encode("utf-8")
        text, authors, n = ffi.new("char **"), ffi.new("char **"), ffi.new("size_t *")
        ids, count, error = ffi.new("int32_t **"), ffi.new("size_t *"), new_error()
        check(lib.kvasir_chat_render_by(self._pointer, request, len(request), ffi.NULL, text,
                                        authors, n, error), error)
        try:
            by = ffi.new("kvasir_authors *", {"each": authors[0]})
            check(lib.kvasir_tokenize_by(
                self._pointer, text[0], n[0], lib.KVASIR_TOKENIZE_PARSE_SPECIAL, by, ffi.NULL, ids,
                count, error), error)
        finally:
            lib.kvasir_free(text[0])
            lib.kvasir_free(authors[0])
        return self._take(ids[0], count[0])

    def is_end(self, token: int) -> bool:
        """Whether the token ends an answer."""
        return bool(lib.kvasir_token_is_end(self._pointer, token))


class Decoder:
    """The tokens of an answer, one by one, to text in whole characters."""

    def __init__(self, tokenizer: Tokenizer) -> None:
        pointer, error = ffi.new("kvasir_detok **"), new_error()
        check(lib.kvasir_detok_create(tokenizer._pointer, pointer, error), error)
        self._tokenizer = tokenizer
        self._pointer = ffi.gc(pointer[0], lib.kvasir_detok_destroy)
        self._text, self._n, self._error = ffi.new("char **"), ffi.new("size_t *"), error

    def push(self, token: int) -> str:
        check(lib.kvasir_detok_push(self._pointer, token, self._text, self._n, self._error),
              self._error)
        return self._take()

    def finish(self) -> str:
        check(lib.kvasir_detok_finish(self._pointer, self._text, self._n, self._error), self._error)
        return self._take()

    def _take(self) -> str:
        if self._n[0] == 0:
            return ""
        return bytes(ffi.buffer(self._text[0], self._n[0])).decode("utf-8")


class Stop:
    """Ends a text before the first of some stop texts; holds back what may begin one."""

    def __init__(self, texts: Items[str]) -> None:
        kept = [ffi.new("char[]", text.encode("utf-8")) for text in texts]
        pointer, error = ffi.new("kvasir_stop **"), new_error()
        check(lib.kvasir_stop_create(ffi.new("char *[]", kept), len(kept), pointer, error), error)
        self._pointer = ffi.gc(pointer[0], lib.kvasir_stop_destroy)
        self._n = ffi.new("size_t *")

    def push(self, text: str) -> tuple[str, bool]:
        """What became certain, and whether the text ends there."""
        data = text.encode("utf-8")
        out = ffi.new("char[]", lib.kvasir_stop_hold(self._pointer) + len(data) + 1)
        more = lib.kvasir_stop_push(self._pointer, data, len(data), out, self._n)
        return bytes(ffi.buffer(out, self._n[0])).decode("utf-8"), not more

    def finish(self) -> str:
        """The end of the text: what was held back, up to a stop text."""
        out = ffi.new("char[]", lib.kvasir_stop_hold(self._pointer) + 1)
        lib.kvasir_stop_finish(self._pointer, out, self._n)
        return bytes(ffi.buffer(out, self._n[0])).decode("utf-8")
