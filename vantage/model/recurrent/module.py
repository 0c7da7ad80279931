"""The recurrent encoder-decoder: teacher forcing, alignment, hidden states and greedy decoding (A1)."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any

import torch
from torch import Tensor, nn

from vantage.errors import BadInput, Refused
from vantage.model.ends import check_tokens
from vantage.model.recurrent.decoders import Carried, Decoded, decoder_of
from vantage.model.recurrent.encoder import Encoded, RecurrentEncoder
from vantage.model.recurrent.spec import RecurrentSpec


@dataclass(frozen=True, eq=False)
class States:
    """Hidden states of the top layers, for probes: what the encoder and the decoder know at each token."""

    encoder_BSD: Tensor
    decoder_BTD: Tensor


class RecurrentModel(nn.Module):
    """One table of embeddings for source and target, an encoder, a decoder, and a head of its own."""

    def __init__(self, spec: RecurrentSpec):
        super().__init__()
        self.spec = spec
        self.tokenizer: Any = None  # of what it was trained on
        self.embed = nn.Embedding(spec.vocab, spec.width)
        self.encoder = RecurrentEncoder(spec)
        self.decoder = decoder_of(spec)
        self.dropout = nn.Dropout(spec.dropout)
        self.head = nn.Linear(spec.width, spec.vocab)

    @property
    def device(self) -> torch.device:
        return self.embed.weight.device

    @property
    def dtype(self) -> torch.dtype:
        return self.embed.weight.dtype

    def forward(self, tokens_BT: Tensor, *, source: Tensor, source_mask: Tensor | None = None) -> Tensor:
        """Logits (B, T, V) under teacher forcing. ``source_mask`` (B, S) is false at padding, which comes last."""
        return self.logits(self._decoded(tokens_BT, source, source_mask)[1])

    def align(self, tokens_BT: Tensor, *, source: Tensor, source_mask: Tensor | None = None) -> tuple[Tensor, Tensor]:
        """Logits (B, T, V) and the alignment (B, T, S): the weights that gave them, 0 at padding."""
        if self.spec.attention is None:
            raise Refused("this model has no attention, so there is no alignment: build it with attention='general'")
        _, decoded = self._decoded(tokens_BT, source, source_mask)
        assert decoded.weights_BTS is not None
        return self.logits(decoded), decoded.weights_BTS

    def states(self, tokens_BT: Tensor, *, source: Tensor, source_mask: Tensor | None = None) -> States:
        """The hidden states of the pass that ``forward`` does."""
        encoded, decoded = self._decoded(tokens_BT, source, source_mask)
        return States(encoded.states_BSD, decoded.states_BTD)

    def encode(self, source: Tensor, source_mask: Tensor | None = None) -> Carried:
        """Read the source: what the first ``step`` starts from."""
        return self.decoder.start(self._encoded(source, source_mask))

    def step(self, tokens_BT: Tensor, carried: Carried) -> tuple[Tensor, Carried]:
        """Logits (B, T, V) of the next tokens, and what the step after these starts from."""
        check_tokens(tokens_BT, self.spec.vocab)
        if tokens_BT.shape[0] != carried.cell[0].shape[1]:
            raise BadInput(f"{tokens_BT.shape[0]} rows of tokens for {carried.cell[0].shape[1]} sources: give one each")
        decoded = self.decoder(self.dropout(self.embed(tokens_BT)), carried)
        return self.logits(decoded), decoded.carried

    @torch.no_grad()
    def greedy(
        self, source: Tensor, *, max_tokens: int, start: int, end: int, source_mask: Tensor | None = None
    ) -> Tensor:
        """The likeliest token at each step after ``start``: (B, N), N up to ``max_tokens``.

        A row that has said ``end`` says nothing else. Decoding stops when every row has. Put the model in eval()
        first, or dropout is on.
        """
        for name, token in (("start", start), ("end", end)):
            if not 0 <= token < self.spec.vocab:
                raise BadInput(f"{name}={token} is not in the vocabulary of {self.spec.vocab}")
        if max_tokens < 1:
            raise BadInput(f"max_tokens={max_tokens}: decode at least 1")
        carried = self.encode(source, source_mask)
        last = torch.full((source.shape[0], 1), start, device=source.device)
        over = torch.zeros_like(last, dtype=torch.bool)
        chosen: list[Tensor] = []
        while len(chosen) < max_tokens and not bool(over.all()):
            logits, carried = self.step(last, carried)
            last = logits.argmax(-1).masked_fill(over, end)
            over = over | (last == end)
            chosen.append(last)
        return torch.cat(chosen, 1)

    def answer(self, text: str, *, max_tokens: int = 128) -> str:
        """The greedy answer to a text, by the tokenizer that the model was trained with. Put it in eval() first."""
        if self.tokenizer is None:
            raise BadInput("this model has no tokenizer: use greedy with token ids")
        source = torch.tensor([self.tokenizer.encode(text)], device=self.device)
        start, end = self.tokenizer.bos, self.tokenizer.eos
        return self.tokenizer.decode(self.greedy(source, max_tokens=max_tokens, start=start, end=end)[0].tolist())

    def logits(self, decoded: Decoded) -> Tensor:
        return self.head(self.dropout(decoded.out_BTD))

    def _encoded(self, source: Tensor, source_mask: Tensor | None) -> Encoded:
        check_tokens(source, self.spec.vocab)
        lengths = None if source_mask is None else _lengths(source, source_mask)
        if lengths is not None and min(lengths) == source.shape[1]:
            source_mask = lengths = None  # no padding after all: the quicker way
        return self.encoder(self.dropout(self.embed(source)), source_mask, lengths)

    def _decoded(self, tokens_BT: Tensor, source: Tensor, source_mask: Tensor | None) -> tuple[Encoded, Decoded]:
        check_tokens(tokens_BT, self.spec.vocab)
        if tokens_BT.shape[0] != source.shape[0]:
            raise BadInput(f"{tokens_BT.shape[0]} rows of tokens for {source.shape[0]} sources: give one each")
        encoded = self._encoded(source, source_mask)
        return encoded, self.decoder(self.dropout(self.embed(tokens_BT)), self.decoder.start(encoded))


def _lengths(source: Tensor, mask_BS: Tensor) -> list[int]:
    """How long each row is. Read on the host, as torch's packing needs it there."""
    if mask_BS.dtype != torch.bool or mask_BS.shape != source.shape:
        raise BadInput(
            f"source_mask is {mask_BS.dtype} of shape {tuple(mask_BS.shape)}: give truths of shape "
            f"{tuple(source.shape)}, false at padding"
        )
    mask = mask_BS.cpu()
    lengths = mask.sum(1)
    if int(lengths.min()) == 0:
        row = int(lengths.argmin())
        raise BadInput(f"row {row} of the source is padding alone: give each row at least one token")
    if bool((mask[:, 1:] & ~mask[:, :-1]).any()):
        row = int((mask[:, 1:] & ~mask[:, :-1]).any(1).int().argmax())
        raise BadInput(f"row {row} of the source has padding before a token: put the padding last")
    return lengths.tolist()
