"""Text to tokens and back, as the checkpoint says: from ``tokenizer.json``, or rebuilt from GGUF metadata.

The work is done by the ``tokenizers`` package. It is set up when a text is first encoded, because a
vocabulary takes longer to set up than a small model takes to load.
"""

from __future__ import annotations

import codecs
import functools
import json
import re
import sys
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from tokenizers import Tokenizer as Backend

from vantage.checkpoints.chat import render
from vantage.checkpoints.folder import inside, read_json
from vantage.checkpoints.gguf import GGUF, Strings
from vantage.checkpoints.gguf_vocabulary import GGUFBackends
from vantage.errors import BadInput, CheckpointError

FILE, SETTINGS, SPECIAL, TEMPLATE = (
    "tokenizer.json",
    "tokenizer_config.json",
    "special_tokens_map.json",
    "chat_template.jinja",
)
PROCESSOR_TEMPLATE = "chat_template.json"  # of transformers before 2025, for what reads images

SHORT, MOST_PARTS = 400, 3  # characters or tokens for which a part of a vocabulary will do, and how often
REPLACEMENT = "\ufffd"  # what a decoder writes for bytes that are no character, or none yet


@functools.cache
def _byte_alphabet() -> dict[str, int]:
    """GPT-2's way of writing bytes as printable characters."""
    shown = [*range(0x21, 0x7F), *range(0xA1, 0xAD), *range(0xAE, 0x100)]
    hidden = [b for b in range(256) if b not in shown]
    return {chr(b): b for b in shown} | {chr(256 + i): b for i, b in enumerate(hidden)}


def _written_bytes(error: UnicodeError) -> tuple[str, int]:
    assert isinstance(error, UnicodeDecodeError)
    return f"⟨{error.object[error.start : error.end].hex(' ').upper()}⟩", error.end


codecs.register_error("vantage.bytes", _written_bytes)


@dataclass(frozen=True)
class About:
    """What a checkpoint says of its tokens besides the vocabulary."""

    bos_token: str | None = None
    eos_token: str | None = None
    template: str | None = None


class Tokenizer:
    """``encode`` and ``decode``; ``chat`` writes a conversation out as the model was trained to read it."""

    def __init__(
        self, make: Callable[[], Backend], about: About, gguf: GGUF | None = None, parts: GGUFBackends | None = None
    ):
        """``parts``: where less than a whole tokenizer can be made for the first texts."""
        self._make, self._about = make, about
        self.gguf = gguf  # the file that describes it, if one does
        self._parts, self._parts_made = parts, 0

    @functools.cached_property
    def backend(self) -> Backend:
        """The tokenizer of the ``tokenizers`` package, for whatever is not offered here."""
        return self._make()

    def read_vocabulary(self) -> None:
        """Read what the first text will need: for whoever has the time before it comes."""
        if self._parts is not None:
            self._parts.read()

    def _enough(self, size: int, part: Callable[[GGUFBackends], Backend]) -> Backend:
        """A part of the vocabulary for the first texts, if they are short, so that the first answer need not wait for
        the rest; otherwise all of it."""
        parts = None if "backend" in self.__dict__ else self._parts
        if parts is None or size > SHORT or self._parts_made == MOST_PARTS:
            return self.backend
        self._parts_made += 1
        return part(parts)

    def encode(self, text: str, *, special: bool = True) -> list[int]:
        """The tokens of a text. ``special``: with those that the model wants around every text (Gemma's BOS).

        Leave them out for a text that ``chat`` returned: its template writes them itself.
        """
        backend = self._enough(len(text), lambda parts: parts.for_text(text))
        try:
            return backend.encode(text, add_special_tokens=special).ids
        except Exception as e:  # it raises bare Exception
            raise BadInput(self.refusal(text, e)) from e

    def refusal(self, text: str, error: Exception) -> str:
        """Why a text could not be encoded: for a vocabulary of characters or words, by those that it lacks."""
        cut: Any = self.backend.pre_tokenizer
        pieces = text if cut is None else (piece for piece, _ in cut.pre_tokenize_str(text))
        lacking = [piece for piece in dict.fromkeys(pieces) if self.backend.token_to_id(piece) is None]
        if "[UNK]" not in str(error) or not lacking:
            return f"this text cannot be encoded: {error}"
        more = f" and {len(lacking) - 5} more" if len(lacking) > 5 else ""
        named = ", ".join(map(repr, lacking[:5]))
        added = {token.content for token in self.backend.get_added_tokens_decoder().values()}
        by_id = sorted(self.backend.get_vocab().items(), key=lambda entry: entry[1])
        known = [repr(token) for token, _ in by_id if token not in added]
        rest = f" and {len(known) - 8} more" if len(known) > 8 else ""
        return f"the vocabulary has no {named}{more}: leave them out. It has {', '.join(known[:8])}{rest}"

    def decode(self, ids: Sequence[int], *, special: bool = False) -> str:
        """The text of some tokens. ``special``: with the special ones written out."""
        backend = self._enough(len(ids), lambda parts: parts.for_tokens(ids))
        return backend.decode(list(ids), skip_special_tokens=not special)

    def token_bytes(self, token: int) -> bytes:
        """What one token stands for; a character may be in several of them."""
        written = self.backend.id_to_token(token) or ""
        alphabet = _byte_alphabet() if type(self.backend.decoder).__name__ == "ByteLevel" else {}
        if written and all(c in alphabet for c in written):
            return bytes(alphabet[c] for c in written)
        if re.fullmatch(r"<0x[0-9A-F]{2}>", written):
            return bytes.fromhex(written[3:5])
        return self.decode([token], special=True).encode("utf-8")

    def label(self, token: int) -> str:
        """One token as a reader would write it. Bytes that are no whole character are written as ⟨F0 9F⟩."""
        text = self.decode([token], special=True)
        if REPLACEMENT not in text:
            return text
        return self.token_bytes(token).decode("utf-8", "vantage.bytes")

    def __repr__(self) -> str:
        chat = "no chat template" if self.template is None else "with a chat template"
        return f"<Tokenizer: {len(self):,} tokens, {chat}>"

    def __len__(self) -> int:
        return self.backend.get_vocab_size(with_added_tokens=True)

    @property
    def bos(self) -> int | None:
        return None if self._about.bos_token is None else self.token_id(self._about.bos_token)

    @property
    def eos(self) -> int | None:
        return None if self._about.eos_token is None else self.token_id(self._about.eos_token)

    @property
    def template(self) -> str | None:
        """The chat template, as Jinja; ``None``: this is no chat model."""
        return self._about.template

    def chat(
        self,
        messages: Sequence[Mapping[str, Any]],
        *,
        add_generation_prompt: bool = True,
        tools: Sequence[Mapping[str, Any]] | None = None,
        variables: Mapping[str, Any] | None = None,
    ) -> str:
        """A conversation as text. ``messages`` have a role and a content; ``variables``: what else a template reads."""
        if self._about.template is None:
            raise BadInput("this model has no chat template: give it plain text, or use one that was tuned for chats")
        variables = {
            **(variables or {}),
            "messages": messages,
            "add_generation_prompt": add_generation_prompt,
            "tools": tools,
            "bos_token": self._about.bos_token or "",
            "eos_token": self._about.eos_token or "",
        }
        return render(self._about.template, variables)

    def save(self, folder: str | Path) -> None:
        """Write the files that ``load`` and transformers read."""
        path = Path(folder)
        self.backend.save(str(path / FILE))
        settings = {"bos_token": self._about.bos_token, "eos_token": self._about.eos_token}
        settings |= {"chat_template": self._about.template, "tokenizer_class": "PreTrainedTokenizerFast"}
        settings |= {"clean_up_tokenization_spaces": False}
        text = json.dumps({k: v for k, v in settings.items() if v is not None}, indent=2, ensure_ascii=False)
        (path / SETTINGS).write_text(text + "\n", encoding="utf-8")

    def token_id(self, token: str) -> int | None:
        """The number of a token by how it is written in the vocabulary."""
        if self._parts is None or "backend" in self.__dict__:
            return self.backend.token_to_id(token)
        return self._parts.number(token)


def from_folder(folder: Path) -> Tokenizer | None:
    """The tokenizer of a folder in the Hugging Face layout; ``None`` if it has none."""
    if not (folder / FILE).exists():
        return None
    settings = read_json(folder, SETTINGS) if (folder / SETTINGS).exists() else {}
    special = read_json(folder, SPECIAL) if (folder / SPECIAL).exists() else {}

    def token(name: str) -> str | None:
        value = settings.get(name, special.get(name))
        value = value.get("content") if isinstance(value, dict) else value
        return value if isinstance(value, str) else None

    template = settings.get("chat_template")
    if (folder / TEMPLATE).exists():
        template = inside(folder, TEMPLATE).read_text(encoding="utf-8")
    elif template is None and (folder / PROCESSOR_TEMPLATE).exists():  # where Qwen2-VL keeps its own
        template = read_json(folder, PROCESSOR_TEMPLATE).get("chat_template")
    if isinstance(template, list):  # several, by name
        named = {t.get("name"): t.get("template") for t in template if isinstance(t, dict)}
        template = named.get("default")
    about = About(token("bos_token"), token("eos_token"), template if isinstance(template, str) else None)
    return Tokenizer(functools.partial(_read, folder), about)


def from_object(tokenizer: object) -> Tokenizer:
    """Ours as it is; a copy of one of the ``tokenizers`` package or of transformers; or that of a folder."""
    if isinstance(tokenizer, Tokenizer):
        return tokenizer
    if isinstance(tokenizer, Backend):
        return Tokenizer(functools.partial(_copied, tokenizer), About())
    if isinstance(tokenizer, (str, Path)):
        if (read := from_folder(Path(tokenizer))) is None:
            raise BadInput(f"tokenizer={str(tokenizer)!r}: there is no {FILE} in this folder")
        return read
    library: Any = sys.modules.get("transformers")
    if library is None or not isinstance(tokenizer, library.PreTrainedTokenizerBase):
        raise BadInput(
            f"tokenizer={tokenizer!r:.80}: give one of transformers or of the tokenizers package, or a folder that "
            f"holds {FILE}"
        )
    theirs: Any = tokenizer
    if not theirs.is_fast:
        raise BadInput(f"{type(theirs).__name__} is not built on the tokenizers package: use the model's fast one")
    template = theirs.chat_template
    template = template.get("default") if isinstance(template, dict) else template  # several, by name
    return Tokenizer(
        functools.partial(_copied, theirs.backend_tokenizer), About(theirs.bos_token, theirs.eos_token, template)
    )


def _copied(backend: Backend) -> Backend:
    return _whole(Backend.from_str(backend.to_str()))


def _read(folder: Path) -> Backend:
    path = inside(folder, FILE)
    try:
        backend = Backend.from_file(str(path))
    except Exception as e:  # it raises bare Exception
        raise CheckpointError(f"{FILE}: {e}") from e
    return _whole(backend)


def _whole(backend: Backend) -> Backend:
    """Some files carry the truncation and padding of their training. Here the whole text is always encoded."""
    backend.no_truncation()
    backend.no_padding()
    return backend


def from_gguf(file: GGUF) -> Tokenizer | None:
    """The tokenizer that a GGUF file describes; ``None`` if it describes none."""
    metadata = file.metadata
    if "tokenizer.ggml.tokens" not in metadata:
        return None

    tokens = metadata["tokenizer.ggml.tokens"]

    def token(name: str) -> str | None:
        number = metadata.get(f"tokenizer.ggml.{name}_token_id")
        if not isinstance(tokens, Strings) or not isinstance(number, int) or not 0 <= number < len(tokens):
            return None
        return tokens[number]

    template = metadata.get("tokenizer.chat_template")
    about = About(token("bos"), token("eos"), template if isinstance(template, str) else None)
    backends = GGUFBackends(file)
    return Tokenizer(backends.whole, about, file, backends if backends.in_parts else None)
