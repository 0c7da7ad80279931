"""How a server is told its settings.

One table, ``OPTIONS``, names every setting once. From it come the flags, the environment variables
(``VANTAGE_`` and the name in capitals) and the keys of the TOML file, in this order of precedence.
"""

from __future__ import annotations

import math
import os
import tomllib
from collections.abc import Mapping
from dataclasses import dataclass, fields
from pathlib import Path
from typing import Any, final

from vantage.errors import BadInput, unknown
from vantage.serve.settings import (
    Access,
    Batching,
    Limits,
    Logs,
    ServedAdapter,
    ServedModel,
    ServerSettings,
)


@final
@dataclass(frozen=True)
class Option:
    """A setting as a user writes it. ``part``: the dataclass it belongs to, and its name there."""

    name: str
    part: str
    field: str
    kind: type  # str, int, float, bool or tuple (several texts)
    help: str
    low: float = -math.inf
    high: float = math.inf
    choices: tuple[str, ...] = ()
    several: bool = False  # values may follow the flag one after another

    @property
    def flag(self) -> str:
        return "--" + self.name.replace("_", "-")

    @property
    def variable(self) -> str:
        return "VANTAGE_" + self.name.upper()

    @property
    def default(self) -> Any:
        owner = ServerSettings if self.part == "" else PARTS[self.part]
        return next(f.default for f in fields(owner) if f.name == self.field)


PARTS: dict[str, Any] = {"access": Access, "batching": Batching, "limits": Limits, "logs": Logs}
DTYPES = ("auto", "float32", "bfloat16", "float16", "int8", "int4")
KINDS = {str: "a text", int: "a whole number", float: "a number", bool: "true or false", tuple: "a list of texts"}
LEVELS = ("debug", "info", "warning", "error")
OPTIONS = (
    Option("host", "", "host", str, "address to listen on"),
    Option("port", "", "port", int, "port to listen on; 0: any free port", 0, 65535),
    Option("preload", "", "preload", bool, "load all models at startup instead of on first use"),
    Option(
        "lora_modules",
        "",
        "adapters",
        tuple,
        "LoRA adapters, each served as a model under its own name: NAME=PATH …",
        several=True,
    ),
    Option("on", "", "on", str, "ray: run replicas on a Ray cluster, which is joined or started"),
    Option("replicas", "", "replicas", int, "number of replicas on that cluster", 1, 4096),
    Option(
        "tensor_parallel",
        "",
        "tensor_parallel",
        int,
        "tensor parallelism over N processes: torchrun --nproc-per-node N -m vantage serve … --tensor-parallel N; "
        "with --on ray: N processes per replica, without torchrun",
        1,
        4096,
    ),
    Option(
        "whole_experts",
        "",
        "whole_experts",
        bool,
        "with --tensor-parallel: each process has some of the experts, not some columns of each",
    ),
    Option("api_key", "access", "keys", tuple, "API key that requests must send; repeatable"),
    Option("allow_open", "access", "allow_open", bool, "allow other machines without an API key"),
    Option("allow_host", "access", "hosts", tuple, "a host name that requests may use for this server; repeatable"),
    Option("allow_origin", "access", "origins", tuple, "a web origin that may call the API (CORS); repeatable"),
    Option("rows", "batching", "rows", int, "maximum batch: samples generated at once", 1, 4096),
    Option("queue", "batching", "queue", int, "samples that may wait; further requests get status 429", 0, 2**20),
    Option("capacity", "batching", "capacity", int, "cache size of each model, in tokens", 16, 2**31),
    Option(
        "chunk",
        "batching",
        "chunk",
        int,
        "chunked prefill: prompt tokens per step; 0: 256 on a CPU, 2,048 on a GPU",
        0,
        2**20,
    ),
    Option(
        "batch_invariant",
        "batching",
        "batch_invariant",
        bool,
        "results that do not depend on other requests, bit for bit; slower",
    ),
    Option("share_prefixes", "batching", "share_prefixes", bool, "prefix caching, within one API key"),
    Option("dtype", "batching", "dtype", str, "type of the weights", choices=DTYPES),
    Option("device", "batching", "device", str, "device; auto: cuda if there is a GPU, otherwise cpu"),
    Option(
        "max_memory",
        "batching",
        "max_memory",
        str,
        "limit of device memory per model with its cache, such as 6GiB; layers that do not fit stay in host memory "
        "(on a CPU: in a file)",
    ),
    Option("body_bytes", "limits", "body_bytes", int, "maximum size of a request body", 1024, 2**30),
    Option("body_seconds", "limits", "body_s", float, "time limit for receiving a request body", 0.1, 3600),
    Option("request_seconds", "limits", "request_s", float, "time limit for a request", 0.1, 86400),
    Option(
        "stall_seconds", "limits", "stall_s", float, "disconnect a client that reads nothing for this long", 0.1, 3600
    ),
    Option("backlog", "limits", "backlog", int, "disconnect a client that is this many tokens behind", 16, 2**20),
    Option("drain_seconds", "limits", "drain_s", float, "time for running requests to finish after SIGTERM", 0, 86400),
    Option(
        "memory_bytes",
        "limits",
        "memory_bytes",
        int,
        "memory limit for weights and caches of all models; 0: none",
        0,
        2**50,
    ),
    Option("connections", "limits", "connections", int, "maximum number of open connections", 1, 2**20),
    Option(
        "attention_requests",
        "limits",
        "attention_requests",
        int,
        "finished requests that /v1/attention can show, per API key",
        0,
        1024,
    ),
    Option(
        "attention_tokens", "limits", "attention_tokens", int, "maximum length of such a request, in tokens", 1, 2**20
    ),
    Option(
        "stored_responses",
        "limits",
        "stored_responses",
        int,
        "stored responses per API key, for previous_response_id",
        0,
        2**16,
    ),
    Option("log_prompts", "logs", "prompts", bool, "log prompts and answers"),
    Option("log_level", "logs", "level", str, "lowest level that is logged", choices=LEVELS),
)
NAMED = {option.name: option for option in OPTIONS}


def read_settings(
    models: tuple[str, ...] = (),
    flags: Mapping[str, Any] | None = None,
    *,
    environ: Mapping[str, str] = os.environ,
    config: str | Path | None = None,
    default: str | None = None,
) -> ServerSettings:
    """Flags before environment variables before the file. ``None`` in ``flags``: not said. ``default``: a model."""
    config = config or environ.get("VANTAGE_CONFIG") or None
    values: dict[str, Any] = {} if config is None else _from_file(Path(config))
    listed = values.pop("models", ())
    for option in OPTIONS:
        if (text := environ.get(option.variable)) is not None:
            values[option.name] = _checked(option, _from_text(option, text), option.variable)
    if text := environ.get("VANTAGE_MODELS"):
        listed = tuple(part.strip() for part in text.split(",") if part.strip())
    for name, value in (flags or {}).items():
        if value is not None:
            values[name] = _checked(NAMED[name], value, NAMED[name].flag)
    parts: dict[str, dict[str, Any]] = {part: {} for part in ("", *PARTS)}
    for name, value in values.items():
        parts[NAMED[name].part][NAMED[name].field] = value
    sections = {part: PARTS[part](**section) for part, section in parts.items() if part}
    chosen = models or listed or (() if default is None else (default,))
    served = tuple(ServedModel.of(one) for one in chosen)
    adapters = tuple(ServedAdapter.of(one, served) for one in parts[""].pop("adapters", ()))
    return ServerSettings(served, adapters, **parts[""], **sections)


def _from_file(path: Path) -> dict[str, Any]:
    try:
        read = tomllib.loads(path.read_text(encoding="utf-8"))
    except (OSError, ValueError) as e:
        raise BadInput(f"the config file {path} cannot be read: {e}") from e
    values: dict[str, Any] = {}
    for name, value in read.items():
        if name == "models":
            if not isinstance(value, list) or not all(isinstance(one, str) for one in value):
                raise BadInput(f"{path}: models must be a list of texts")
            values[name] = tuple(value)
        elif name in NAMED:
            value = tuple(value) if isinstance(value, list) else value
            value = (value,) if NAMED[name].kind is tuple and isinstance(value, str) else value
            values[name] = _checked(NAMED[name], value, f"{path}: {name}")
        else:
            raise BadInput(f"{path}: {unknown('setting', name, ['models', *NAMED])}")
    return values


def _from_text(option: Option, text: str) -> Any:
    if option.kind is bool:
        if text.lower() not in ("1", "true", "yes", "0", "false", "no", ""):
            raise BadInput(f"{option.variable}={text!r}: give true or false")
        return text.lower() in ("1", "true", "yes")
    if option.kind is tuple:
        return tuple(part.strip() for part in text.split(",") if part.strip())
    try:
        return option.kind(text)
    except ValueError as e:
        raise BadInput(f"{option.variable}={text!r}: give a number") from e


def _checked(option: Option, value: Any, where: str) -> Any:
    """The value as its kind, or a refusal that says where it was said."""
    if option.kind is float and type(value) is int:
        value = float(value)
    if option.kind is tuple and isinstance(value, (list, tuple)) and all(isinstance(one, str) for one in value):
        return tuple(value)
    if type(value) is not option.kind:
        raise BadInput(f"{where}: {value!r} is not {KINDS[option.kind]}")
    if isinstance(value, (int, float)) and not isinstance(value, bool) and not option.low <= value <= option.high:
        raise BadInput(f"{where}: {value:,} is out of range, from {option.low:,} to {option.high:,}")
    if option.choices and value not in option.choices:
        raise BadInput(f"{where}: {value!r} is none of {', '.join(option.choices)}")
    return value
