"""Options of sessions and folds, and the conversion of Python objects to JSON."""

from __future__ import annotations

import json
import os
from collections.abc import Iterable, Mapping, Sequence
from typing import Any, Literal, TypeAlias, TypedDict

from ._native import InvalidInput

#: Dialect of a provider; ``converse`` is that of Bedrock.
Format: TypeAlias = Literal["openai-chat", "openai-responses", "anthropic", "gemini", "ollama", "converse"]
Policy: TypeAlias = Literal["none", "lossless", "balanced", "tight"]
#: A message (or item) of a provider, as a plain dict.
Message: TypeAlias = Mapping[str, Any]


class FoldSettings(TypedDict, total=False):
    """Keyword arguments of ``FoldSession`` and ``fold``; all may be missing."""

    #: Dialect of the messages. Default: openai-chat; ``fold`` detects it.
    format: Format
    #: Model for which tokens are counted and priced.
    model: str
    #: Maximum tokens of a request. Default: the model's window less the reserve for the answer.
    budget: int
    #: Window of the model, if it differs from the built-in table.
    window: int
    #: Tokens reserved for the answer.
    max_output_tokens: int
    policy: Policy
    #: Name of a price table, such as anthropic-5m, openai or local.
    prices: str
    #: Declared tools, as they are sent.
    tools: Sequence[Any]
    #: Instructions outside the messages, as they are sent.
    system: Any
    #: Tools whose results and arguments are never folded.
    pin_tools: Sequence[str]
    #: Targets of calls (files, commands) that are never folded.
    pin_targets: Sequence[str]
    #: Path of an archive. Originals stay in memory without one.
    archive: str | os.PathLike[str]
    #: Namespace in the archive.
    namespace: str
    #: Name of the session in the archive.
    session: str


def to_json(value: Any) -> str:
    """Returns compact JSON of a plain value."""
    try:
        text = json.dumps(value, ensure_ascii=False, separators=(",", ":"), allow_nan=False)
        text.encode()
        return text
    except UnicodeEncodeError:
        # A lone surrogate has no UTF-8 form; it can only be sent as an escape.
        return json.dumps(value, separators=(",", ":"), allow_nan=False)
    except (TypeError, ValueError, RecursionError) as error:
        raise InvalidInput(f"not a plain JSON value: {error}") from error


def to_options(settings: FoldSettings) -> str:
    """Returns the settings as the JSON that the native module takes."""
    options: dict[str, Any] = {key: value for key, value in settings.items() if value is not None}
    archive = {key: options.pop(key) for key in ("namespace", "session") if key in options}
    if "archive" in options:
        archive["path"] = os.fspath(options.pop("archive"))
    for key in ("pin_tools", "pin_targets", "tools"):
        value = options.get(key)
        if isinstance(value, Iterable) and not isinstance(value, str):
            options[key] = list(value)
    return to_json({**options, "archive": archive})
