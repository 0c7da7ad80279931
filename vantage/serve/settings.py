"""What a server is told: which models, who may ask, and how much of everything. ``options`` reads it."""

from __future__ import annotations

import ipaddress
import json
from dataclasses import dataclass, field
from pathlib import Path
from typing import final

from vantage.cluster import address_of
from vantage.errors import BadInput, unknown


@final
@dataclass(frozen=True)
class ServedModel:
    """A model that may be asked for. Requests know its ``name`` only, never where it is."""

    name: str
    source: str

    @staticmethod
    def of(text: str) -> ServedModel:
        """From ``SOURCE`` or ``NAME=SOURCE``. A path gets the name of its last part."""
        name, sign, source = text.partition("=")
        if not sign:
            name, source = Path(text).stem if Path(text).exists() else text, text
        if not name or not source:
            raise BadInput(f"the model {text!r}: give a source, or NAME=SOURCE")
        return ServedModel(name, source)


@final
@dataclass(frozen=True)
class ServedAdapter:
    """A LoRA adapter on a served model, which may be asked for by a name of its own."""

    name: str
    path: str
    base: str  # the name of the model it is for

    @staticmethod
    def of(text: str, models: tuple[ServedModel, ...]) -> ServedAdapter:
        """From ``NAME=PATH``, or JSON with name, path and base_model_name, where several models are served."""
        if text.lstrip().startswith("{"):
            try:
                fields = json.loads(text)
            except (ValueError, RecursionError) as e:
                raise BadInput(f"the adapter {text!r} is not JSON: {e}") from e
        else:
            name, _, path = text.partition("=")
            fields = {"name": name, "path": path}
        if wrong := sorted(set(fields) - {"name", "path", "base_model_name"}):
            raise BadInput(f"the adapter {text!r}: {wrong[0]} is not name, path or base_model_name")
        name, path, base = (fields.get(key, "") for key in ("name", "path", "base_model_name"))
        if not all(isinstance(one, str) for one in (name, path, base)) or not name or not path:
            raise BadInput(f"the adapter {text!r}: give NAME=PATH")
        if not models:
            raise BadInput("no model to serve: name at least one")
        if not base and len(models) > 1:
            example = json.dumps({"name": name, "path": path, "base_model_name": next(iter(models)).name})
            raise BadInput(f"the adapter {name!r}: several models are served, so say for which it is: '{example}'")
        return ServedAdapter(name, path, base or next(iter(models)).name)


@final
@dataclass(frozen=True)
class Access:
    """Who may ask."""

    keys: tuple[str, ...] = ()
    allow_open: bool = False  # other machines without a key
    hosts: tuple[str, ...] = ()  # names this server goes by, besides localhost and bare addresses
    origins: tuple[str, ...] = ()  # other web pages that may call it

    def __post_init__(self) -> None:
        for key in self.keys:
            if len(key) < 8 or not key.isascii() or not key.isprintable() or " " in key:
                raise BadInput("an API key has at least 8 printable ASCII characters and no blank")
        for origin in self.origins:
            if not origin.startswith(("http://", "https://")) or origin.count("/") != 2:
                raise BadInput(f"the origin {origin!r}: give scheme and host, as in https://example.org")


@final
@dataclass(frozen=True)
class Batching:
    """The engine of each model."""

    rows: int = 32  # samples that run at once
    queue: int = 64  # samples that may wait
    capacity: int = 16_384  # tokens of cache
    chunk: int = 0  # prompt tokens between tokens of the others; 0: the engine's own number for the device
    batch_invariant: bool = False
    share_prefixes: bool = True  # within one key
    dtype: str = "auto"
    device: str = "auto"  # cuda where there is one, otherwise cpu
    max_memory: str = ""  # of the device, for each model; "": no limit


@final
@dataclass(frozen=True)
class Limits:
    """How much one request, one reader and all models may take."""

    body_bytes: int = 2**20
    body_s: float = 30.0  # a body must arrive within
    request_s: float = 600.0  # from arrival to the last token
    stall_s: float = 30.0  # a reader that takes nothing for so long is cut off
    backlog: int = 1024  # tokens that a reader may be behind
    drain_s: float = 30.0  # after SIGTERM, running requests have so long
    memory_bytes: int = 0  # weights and caches of all models; 0: no limit
    connections: int = 1024
    attention_requests: int = 16  # finished requests of a key that /v1/attention can look into; 0: none
    attention_tokens: int = 2048  # of such a request
    stored_responses: int = 256  # of a key that /v1/responses can go on from; 0: none


@final
@dataclass(frozen=True)
class Logs:
    """One line of JSON a request, on standard error."""

    prompts: bool = False  # with what was asked and answered
    level: str = "info"


@final
@dataclass(frozen=True)
class ServerSettings:
    models: tuple[ServedModel, ...]
    adapters: tuple[ServedAdapter, ...] = ()
    host: str = "127.0.0.1"
    port: int = 8000
    preload: bool = False
    on: str = ""  # a cluster; nothing: this process
    replicas: int = 1
    tensor_parallel: int = 1  # processes that the model lies over
    whole_experts: bool = False  # each of them has some of the experts, instead of some columns of each
    access: Access = Access()
    batching: Batching = Batching()
    limits: Limits = Limits()
    logs: Logs = field(default=Logs())

    def __post_init__(self) -> None:
        if not self.models:
            raise BadInput("no model to serve: name at least one")
        names = self.model_names
        if twice := sorted({name for name in names if names.count(name) > 1}):
            raise BadInput(f"two models are called {twice[0]!r}: say NAME=SOURCE to tell them apart")
        for adapter in self.adapters:
            if adapter.base not in (known := [model.name for model in self.models]):
                raise BadInput(f"the adapter {adapter.name!r}: {unknown('model', adapter.base, known)}")
        if self.on:
            address_of(self.on)
        elif self.replicas > 1:
            raise BadInput(f"{self.replicas} replicas without a cluster to have them on: say --on ray")
        if self.tensor_parallel > 1:
            self._check_group()
        elif self.whole_experts:
            raise BadInput("--whole-experts says how experts lie over processes: give --tensor-parallel as well")
        if not loopback(self.host) and not self.access.keys and not self.access.allow_open:
            raise BadInput(
                f"host {self.host}: other machines could reach this server, and no API key is set. "
                "Set --api-key, or say --allow-open if everybody may use it"
            )

    def _check_group(self) -> None:
        """What a model over several processes cannot be."""
        if len(self.models) > 1:
            raise BadInput(
                f"--tensor-parallel with {len(self.models)} models: the processes step together, in one model"
            )
        if self.adapters:
            raise BadInput("--tensor-parallel with --lora-modules: an adapter is made for whole weights")
        if self.batching.dtype in ("int8", "int4"):
            raise BadInput(f"--tensor-parallel with --dtype {self.batching.dtype}: blocks are made of whole weights")
        if self.batching.max_memory:
            raise BadInput("--tensor-parallel with --max-memory: a share of a model keeps no layers elsewhere yet")
        if self.batching.device not in ("auto", "cpu"):
            raise BadInput(
                f"--tensor-parallel with --device {self.batching.device}: over processes it serves on CPUs only so far"
            )

    @property
    def model_names(self) -> list[str]:
        """What requests may name."""
        return [*(model.name for model in self.models), *(adapter.name for adapter in self.adapters)]


def loopback(host: str) -> bool:
    """Whether only this machine can reach an address."""
    if host == "localhost":
        return True
    try:
        return ipaddress.ip_address(host.strip("[]")).is_loopback
    except ValueError:
        return False


# ---- reading them
