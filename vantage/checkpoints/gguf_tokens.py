"""A tokenizer as GGUF metadata: the way back from ``gguf_vocabulary``. One that came from a GGUF file is copied."""

from __future__ import annotations

import json
from collections.abc import Sequence
from typing import Any

from vantage.checkpoints.gguf import GGUF
from vantage.checkpoints.gguf_vocabulary import COMPOSED, CONTROL, CUTS, DIGIT, GPT2, SPACE, USER_DEFINED, WHOLE_FIRST
from vantage.checkpoints.tokenizer import Tokenizer
from vantage.errors import BadInput

NORMAL, UNKNOWN, UNUSED, BYTE = 1, 2, 5, 6  # of tokenizer.ggml.token_type
BYTES = frozenset(f"<0x{byte:02X}>" for byte in range(256))
Added = dict[int, dict[str, Any]]


def tokens_metadata(tokenizer: Tokenizer | None, vocab: int) -> dict[str, Any]:
    """What a file says of its tokens. ``vocab``: as many as the embedding has rows; tokens are filled up to it."""
    if tokenizer is None:
        return {"tokenizer.ggml.model": "no_vocab"}
    if tokenizer.gguf is not None:
        return copied(tokenizer.gguf)
    about = json.loads(tokenizer.backend.to_str())
    model, added = about["model"], {token["id"]: token for token in about["added_tokens"]}
    tokens = _tokens(tokenizer, vocab)
    if model["type"] == "WordPiece":
        keys = _wordpiece(about, tokens, added)
    elif model["type"] == "BPE" and _is_byte_level(about):
        keys = _byte_level(about, tokens, added)
    elif model["type"] == "BPE" and model.get("byte_fallback") and SPACE in model["vocab"]:
        keys = _sentencepiece(about, tokens, added)
    else:
        raise _refused(f"a vocabulary of the kind {model['type']}")
    for name, number in (("bos", tokenizer.bos), ("eos", tokenizer.eos)):
        keys |= {} if number is None else {f"{name}_token_id": number}
    if tokenizer.bos is not None:
        keys["add_bos_token"] = tokenizer.encode("a")[:1] == [tokenizer.bos]
    if tokenizer.eos is not None and model["type"] != "WordPiece":
        keys["add_eos_token"] = tokenizer.encode("a")[-1:] == [tokenizer.eos]
    template = {} if tokenizer.template is None else {"tokenizer.chat_template": tokenizer.template}
    return {f"tokenizer.ggml.{key}": value for key, value in keys.items()} | template


def copied(file: GGUF, prefix: str = "tokenizer.") -> dict[str, Any]:
    """The keys of a file, as they are."""
    kept = {key: value for key, value in file.metadata.items() if key.startswith(prefix) and value is not None}
    return {key: value if isinstance(value, (str, int, float)) else list(value) for key, value in kept.items()}


def _tokens(tokenizer: Tokenizer, vocab: int) -> list[str]:
    by_number = {number: token for token, number in tokenizer.backend.get_vocab().items()}
    if max(by_number, default=-1) >= vocab:
        raise BadInput(f"the tokenizer has the token {max(by_number)}, and the model's embedding {vocab} rows")
    return [by_number.get(number, f"[PAD{number}]") for number in range(vocab)]


def _kinds(tokens: Sequence[str], known: dict[str, int], added: Added) -> list[int]:
    kinds = [NORMAL if token in known else UNUSED for token in tokens]
    for number, token in added.items():
        kinds[number] = CONTROL if token["special"] else USER_DEFINED
    return kinds


# ---- byte-level BPE


def _is_byte_level(about: dict[str, Any]) -> bool:
    return any(step["type"] == "ByteLevel" for step in _steps(about["pre_tokenizer"], "pretokenizers"))


def _steps(part: dict[str, Any] | None, name: str) -> list[dict[str, Any]]:
    if part is None:
        return []
    return [step for one in part[name] for step in _steps(one, name)] if part["type"] == "Sequence" else [part]


def _byte_level(about: dict[str, Any], tokens: list[str], added: Added) -> dict[str, Any]:
    model = about["model"]
    patterns, composed = _patterns(about), _steps(about["normalizer"], "normalizers") == [{"type": "NFC"}]
    if about["normalizer"] is not None and not composed:
        raise _refused("a byte-level vocabulary whose texts are changed first")
    for pre, cut in CUTS.items():
        alike = (composed, bool(model.get("ignore_merges"))) == (pre in COMPOSED, pre in WHOLE_FIRST)
        if cut == patterns and alike:
            return {
                "model": "gpt2",
                "pre": pre,
                "tokens": tokens,
                "token_type": _kinds(tokens, model["vocab"], added),
                "merges": [" ".join(merge) for merge in _merges(model)],
            }
    raise _refused("a byte-level vocabulary that cuts texts in a way of its own")


def _patterns(about: dict[str, Any]) -> tuple[str, ...]:
    """How it cuts texts, as regular expressions."""
    patterns: list[str] = []
    for step in _steps(about["pre_tokenizer"], "pretokenizers"):
        if step["type"] == "ByteLevel" and not step.get("add_prefix_space"):
            patterns += [GPT2] if step.get("use_regex", True) else []
        elif step["type"] == "Digits" and step["individual_digits"]:
            patterns.append(DIGIT)
        elif step["type"] == "Split" and step["behavior"] == "Isolated" and not step["invert"]:
            patterns.append(step["pattern"].get("Regex", ""))
        else:
            raise _refused(f"a vocabulary with {step['type']} before its merges")
    return tuple(patterns)


def _merges(model: dict[str, Any]) -> list[list[str]]:
    return [merge.split(" ") if isinstance(merge, str) else merge for merge in model["merges"]]


# ---- SentencePiece


def _sentencepiece(about: dict[str, Any], tokens: list[str], added: Added) -> dict[str, Any]:
    """A token's score says when it is made: by the first merge that makes it. Those that no merge makes come last."""
    model = about["model"]
    ranks: dict[str, int] = {}
    for left, right in _merges(model):
        ranks.setdefault(left + right, len(ranks))
    kinds = _kinds(tokens, model["vocab"], added)
    kinds = [BYTE if token in BYTES else kind for token, kind in zip(tokens, kinds, strict=True)]
    unknown = model["vocab"].get(model.get("unk_token"))
    if unknown is not None:
        kinds[unknown] = UNKNOWN
    normalizers = _steps(about["normalizer"], "normalizers")
    keys = {
        "model": "llama",
        "pre": "default",
        "tokens": tokens,
        "token_type": kinds,
        "scores": [-float(ranks.get(token, len(ranks))) for token in tokens],
        "add_space_prefix": any(step["type"] == "Prepend" for step in normalizers),
    }
    return keys if unknown is None else keys | {"unknown_token_id": unknown}


# ---- WordPiece


def _wordpiece(about: dict[str, Any], tokens: list[str], added: Added) -> dict[str, Any]:
    normalizer = about["normalizer"] or {}
    if normalizer.get("type") != "BertNormalizer" or not normalizer.get("lowercase"):
        raise _refused("a WordPiece vocabulary that keeps capitals")
    spelled = [t if number in added else t[2:] if t.startswith("##") else SPACE + t for number, t in enumerate(tokens)]
    keys: dict[str, Any] = {
        "model": "bert",
        "tokens": spelled,
        "token_type": _kinds(tokens, about["model"]["vocab"], added),
    }
    roles = {
        "cls": "[CLS]",
        "bos": "[CLS]",
        "seperator": "[SEP]",
        "eos": "[SEP]",
        "unknown": "[UNK]",
        "padding": "[PAD]",
    }
    for role, token in roles.items():
        if (number := about["model"]["vocab"].get(token)) is not None:
            keys[f"{role}_token_id"] = number
    return keys


def _refused(what: str) -> BadInput:
    return BadInput(f"this model's tokenizer is {what}, which GGUF has no name for: set model.tokenizer to None first")
