"""A checkpoint's config, read under account: every key is read or known to change nothing, or it is refused."""

from __future__ import annotations

import math
from collections.abc import Collection, Mapping
from typing import Any, TypeVar

from vantage.errors import CheckpointError, did_you_mean

T = TypeVar("T")
_REQUIRED: Any = object()

# Keys that say how a model was made, is stored or is to be used, not what it computes.
ALWAYS_INERT = frozenset(
    [
        "_attn_implementation",
        "_name_or_path",
        "add_cross_attention",
        "architectures",
        "bos_token_id",
        "chunk_size_feed_forward",
        "cross_attention_hidden_size",
        "decoder_start_token_id",
        "dtype",
        "eos_token_id",
        "finetuning_task",
        "forced_bos_token_id",
        "forced_eos_token_id",
        "gradient_checkpointing",
        "id2label",
        "initializer_factor",
        "initializer_range",
        "is_decoder",
        "is_encoder_decoder",
        "keys_to_ignore_at_inference",
        "label2id",
        "model_type",
        "output_attentions",
        "output_hidden_states",
        "output_past",
        "pad_token_id",
        "prefix",
        "problem_type",
        "pruned_heads",
        "return_dict",
        "sep_token_id",
        "task_specific_params",
        "tf_legacy_loss",
        "tie_encoder_decoder",
        "tokenizer_class",
        "torch_dtype",
        "torchscript",
        "transformers_version",
        "use_bfloat16",
        "use_cache",
    ]
)
# Keys that would run code or that change every weight. Naming them beats loading something else.
REFUSED = {
    "auto_map": "it names code to import, and no code of a checkpoint is ever run",
    "quantization_config": "its weights are quantised in a way that is not read here; use the original or a GGUF file",
}


class Config:
    """The values of a ``config.json`` (or a part of it), and which of them have been read."""

    def __init__(self, values: Mapping[str, Any], where: str = "config.json", tensors: Collection[str] = ()):
        if not isinstance(values, Mapping):
            raise CheckpointError(f"{where}: expected an object with keys, got {type(values).__name__}")
        self._values, self._where = dict(values), where
        self._read: set[str] = set()
        self._parts: list[Config] = []
        self._tensors = tensors  # the names of what the checkpoint holds

    def __contains__(self, name: str) -> bool:
        """Whether the key is there and not null. Asking counts as reading only when it is not."""
        present = self._values.get(name) is not None
        if not present:
            self._read.add(name)
        return present

    def whole(self, name: str, default: int | None = _REQUIRED, *, low: int = 0) -> Any:
        """A whole number of at least ``low``."""
        value = self._get(name, default)
        if value is default:
            return value
        if isinstance(value, bool) or not isinstance(value, int) or not low <= value < 2**31:
            raise self._wrong(name, value, f"a whole number from {low} up")
        return value

    def number(self, name: str, default: float | None = _REQUIRED) -> Any:
        """A finite number."""
        value = self._get(name, default)
        if value is default:
            return value
        if isinstance(value, bool) or not isinstance(value, (int, float)) or not math.isfinite(value):
            raise self._wrong(name, value, "a finite number")
        return float(value)

    def flag(self, name: str, default: bool = _REQUIRED) -> bool:
        """True or false."""
        value = self._get(name, default)
        if not isinstance(value, bool):
            raise self._wrong(name, value, "true or false")
        return value

    def switch(self, name: str, default: bool = _REQUIRED) -> bool:
        """True or false, which some published config spells as a number (LLaMA-4 Scout: 4); 0 is false."""
        value = self._get(name, default)
        if not isinstance(value, int):
            raise self._wrong(name, value, "true or false, or a whole number")
        return bool(value)

    def choice(self, name: str, choices: Mapping[str, T], default: str = _REQUIRED) -> T:
        """One of the named choices."""
        value = self._get(name, default)
        if not isinstance(value, str) or value not in choices:
            raise self._wrong(name, value, f"one of {', '.join(choices)}")
        return choices[value]

    def numbers(self, name: str, default: tuple[float, ...] | None = _REQUIRED) -> Any:
        """A list of finite numbers, as a tuple."""
        value = self._get(name, default)
        if value is default:
            return value
        plain = isinstance(value, (list, tuple)) and all(
            isinstance(v, (int, float)) and not isinstance(v, bool) and math.isfinite(v) for v in value
        )
        if not plain:
            raise self._wrong(name, value, "a list of finite numbers")
        return tuple(value)

    def names(self, name: str, default: tuple[str, ...] | None = _REQUIRED) -> Any:
        """A list of words, as a tuple."""
        value = self._get(name, default)
        if value is default:
            return value
        if not isinstance(value, (list, tuple)) or not all(isinstance(v, str) for v in value):
            raise self._wrong(name, value, "a list of words")
        return tuple(value)

    def pair(self, name: str, default: tuple[int, int] = _REQUIRED) -> tuple[int, int]:
        """Two whole numbers of at least 1, or one that stands for both: height and width."""
        value = self._get(name, default)
        two = tuple(value) if isinstance(value, (list, tuple)) else (value, value)
        whole = all(isinstance(n, int) and not isinstance(n, bool) and 1 <= n < 2**31 for n in two)
        if len(two) != 2 or not whole:
            raise self._wrong(name, value, "a whole number from 1 up, or two")
        return two

    def count(self, name: str, default: int) -> int:
        """How many entries a list or an object has."""
        value = self._get(name, None)
        if value is None:
            return default
        if not isinstance(value, (list, tuple, Mapping)):
            raise self._wrong(name, value, "a list or an object")
        return len(value)

    def says(self, name: str) -> bool:
        """Whether the key is there, be it null: to some families a missing key and null are not the same."""
        return name in self._values

    def holds(self, start: str) -> bool:
        """Whether the checkpoint holds tensors whose names begin so: a head that no key tells of."""
        return any(name.startswith(start) for name in self._tensors)

    def part(self, name: str) -> Config | None:
        """An object inside, under the same account; ``None`` where there is none."""
        value = self._get(name, None)
        if value is None:
            return None
        inner = Config(value, f"{self._where}: {name}")
        self._parts.append(inner)
        return inner

    def plain(self, name: str) -> Any:
        """A value as it stands, for a reader that accounts for all of it."""
        return self._get(name, _REQUIRED)

    @property
    def stored(self) -> int:
        """How many tensors the checkpoint holds."""
        return len(self._tensors)

    def must_be(self, name: str, *allowed: object) -> None:
        """A key that is only understood with these values (or when it is not there)."""
        value = self._get(name, allowed[0])
        if value not in allowed:
            raise self._wrong(name, value, " or ".join(map(repr, allowed)))

    def inert(self, *names: str) -> None:
        """These keys change nothing that is computed."""
        self._read.update(names)

    def settle(self, inert: Collection[str] = ALWAYS_INERT) -> None:
        """Refuse if a key was neither read nor is known to be inert. A family may read its own quantisation."""
        for name, why in REFUSED.items():
            if self._values.get(name) is not None and name not in self._read:
                raise CheckpointError(f"{self._where}: {name!r} cannot be followed: {why}")
        unread = sorted(name for name in self._values if name not in self._read and name not in inert)
        if unread:
            raise CheckpointError(
                f"{self._where}: {', '.join(map(repr, unread))} may change the model and is not understood here"
            )
        for inner in self._parts:
            inner.settle(inert)

    def _get(self, name: str, default: Any) -> Any:
        self._read.add(name)
        value = self._values.get(name)
        if value is not None:
            return value
        if default is _REQUIRED:
            raise CheckpointError(f"{self._where}: {name!r} is missing.{did_you_mean(name, self._values)}")
        return default

    def _wrong(self, name: str, value: object, wanted: str) -> CheckpointError:
        shown = repr(value)
        shown = shown if len(shown) <= 80 else shown[:77] + "..."
        return CheckpointError(f"{self._where}: {name} is {shown}; wanted {wanted}")
