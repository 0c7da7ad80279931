"""The options of a model are said once: the functions, the training settings and the form are made from them."""

import inspect
from dataclasses import dataclass, fields, replace

import pytest

from vantage.attention import GroupedQuery, Latent
from vantage.errors import BadInput, Refused
from vantage.model import decoder, encoder, encoder_decoder
from vantage.model.norms import RMSNorm
from vantage.spec.masks import Everything, SameSegment, Window
from vantage.spec.options import DecoderOptions, EncoderDecoderOptions, EncoderOptions
from vantage.spec.registry import parameters
from vantage.training.models import DataFacts, Decoder, Encoder, EncoderDecoder
from vantage.training.settings import settings_of

SMALL = {"width": 16, "layers": 2, "heads": 2}
KINDS = [
    (decoder, DecoderOptions, Decoder),
    (encoder, EncoderOptions, Encoder),
    (encoder_decoder, EncoderDecoderOptions, EncoderDecoder),
]


@pytest.mark.parametrize(("function", "options", "section"), KINDS)
def test_keywords_and_keys_are_the_fields(function, options, section):
    names = [f.name for f in fields(options)]
    signature = inspect.signature(function)
    assert list(signature.parameters) == ["vocab", *names]
    assert all(p.kind is p.KEYWORD_ONLY for p in signature.parameters.values())
    for name in ("vocab", "width", "layers"):
        assert signature.parameters[name].default is inspect.Parameter.empty
    for f in fields(options):
        if f.name not in ("width", "layers"):
            assert signature.parameters[f.name].default == f.default
    assert set(names) <= {f.name for f in fields(section)}
    assert list(parameters(options)) == names
    assert all(f"{name}: {info.help}" in (function.__doc__ or "") for name, info in parameters(options).items())


def test_a_missing_keyword_and_an_unknown_one_are_refused():
    with pytest.raises(TypeError, match=r"missing a required (keyword-only )?argument: 'vocab'"):
        decoder(**SMALL)
    with pytest.raises(TypeError, match="unexpected keyword argument 'colour'"):
        decoder(vocab=8, **SMALL, colour="red")


@pytest.mark.parametrize("function", [decoder, encoder, encoder_decoder])
def test_dropout_stands_where_the_original_has_it(function):
    spec = function(vocab=8, **SMALL, dropout=0.25)
    for stack in filter(None, (spec, spec.encoder)):
        assert stack.embedding.dropout == 0.25
        for layer in stack.layers:
            assert layer.dropout == layer.attention.scores.dropout == 0.25
            assert layer.cross is None or layer.cross.scores.dropout == 0.25
    assert function(vocab=8, **SMALL, dropout=0.0) == function(vocab=8, **SMALL)
    with pytest.raises(BadInput, match=r"dropout=-0.5: give at least 0"):
        function(vocab=8, **SMALL, dropout=-0.5)


def test_options_that_only_some_kinds_had():
    plain = decoder(vocab=8, **SMALL)
    assert decoder(vocab=8, **SMALL, bidirectional=True) == decoder(vocab=8, **SMALL, mask=Everything() & SameSegment())
    biased = decoder(vocab=8, **SMALL, bias=True).layers[0].attention
    assert biased == replace(plain.layers[0].attention, bias=True, out_bias=True)
    both = encoder_decoder(vocab=8, width=16, layers=1, attention=GroupedQuery(2), shared=True)
    assert both.embedding.shared
    assert both.layers[0].cross == GroupedQuery(2)


@pytest.mark.parametrize(
    ("options", "words"),
    [
        ({"bidirectional": True, "mask": Everything()}, "give it or mask=, not both"),
        ({"attention": GroupedQuery(2)}, "give them or attention=, not both"),
        ({"heads": None, "attention": GroupedQuery(2), "bias": True}, "give them or attention=, not both"),
        ({"heads": None}, "say heads="),
        ({"kv_heads": 0}, "kv_heads=0: give at least 1"),
    ],
)
def test_what_contradicts_itself_is_refused(options, words):
    with pytest.raises(BadInput, match=words):
        decoder(vocab=8, **SMALL | options)


@dataclass(frozen=True)
class Weightless:
    """As much of an attention as is asked before it is built."""

    def shape(self, width):
        return GroupedQuery(2).shape(width)


def test_an_attention_without_weights_to_drop_is_refused_by_name():
    options = {"vocab": 8, "width": 16, "layers": 1, "position": "none", "attention": Weightless()}
    decoder(**options)
    with pytest.raises(Refused, match="Weightless has no weights that could be dropped"):
        decoder(**options, dropout=0.1)


# ---- in the settings of a run


def settings(model, task="copy"):
    return settings_of({"model": model, "data": {"is": "task", "task": task}})


def test_the_settings_gain_what_they_lacked():
    latent = {"is": "latent", "heads": 2, "kv_rank": 8, "nope_dim": 8, "rope_dim": 8, "value_dim": 8, "norm": "rmsnorm"}
    section = settings({"is": "encoder", "width": 16, "layers": 1, "attention": latent}, "parity").model
    assert section.spec(DataFacts(8, 0, 2)).layers[0].attention == Latent(2, 8, 8, 8, 8, norm=RMSNorm())
    section = settings({"is": "encoder_decoder", **SMALL, "window": 3, "bias": False}).model
    assert section.spec(8).layers[0].mask.reach() == 3
    assert not section.spec(8).layers[0].attention.bias
    section = settings({"is": "decoder", **SMALL, "mask": {"is": "window", "n": 3}, "bidirectional": False}).model
    assert section.spec(8).layers[0].mask == Window(3)


def test_a_run_of_an_earlier_version_is_still_the_same_one():
    """The fingerprints that version 0 wrote, before the sections had these options."""
    copy = {"is": "task", "task": "copy"}
    parity = {"is": "task", "task": "parity"}
    assert settings_of({"model": "decoder", "data": copy}).fingerprint() == "6eb052453f111a02"
    assert settings_of({"model": "encoder", "data": parity}).fingerprint() == "1bc60aec468e5528"
    assert settings_of({"model": "encoder_decoder", "data": copy}).fingerprint() == "74ad3b4d1b58550d"
    assert settings({"is": "decoder", "bias": True}).fingerprint() != "6eb052453f111a02"
