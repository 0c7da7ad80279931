"""The recurrent encoder-decoder: what it computes, however it is asked."""

import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st
from torch import nn

from tests.attention.helpers import check_gradients, sharpen
from tests.model.recurrent.helpers import SHAPES, VOCAB, WAYS, model_of, padded, spec_of, tokens
from vantage.attention import Dot
from vantage.model.recurrent import RecurrentSpec, build_recurrent
from vantage.model.recurrent.decoders import Looking
from vantage.model.recurrent.encoder import Encoded

WAY = pytest.mark.parametrize("way", WAYS, ids=str)
LOOKS = pytest.mark.parametrize("way", WAYS[1:], ids=str)
SHAPE = pytest.mark.parametrize("shape", SHAPES, ids=str)
close = torch.testing.assert_close


# ---- padding


@WAY
@SHAPE
def test_padding_never_matters(way, shape):
    model = model_of(way, shape)
    lengths = [3, 7, 1, 5]
    source, mask = padded(lengths)
    said = tokens(4, 5, seed=1)
    got = model(said, source=source, source_mask=mask)
    other = torch.where(mask, source, (source + 3) % VOCAB)
    close(model(said, source=other, source_mask=mask), got, rtol=0, atol=0)
    wider = torch.cat([source, tokens(4, 2, seed=2)], 1), torch.cat([mask, torch.zeros(4, 2, dtype=torch.bool)], 1)
    close(model(said, source=wider[0], source_mask=wider[1]), got)
    for row, n in enumerate(lengths):
        close(model(said[row : row + 1], source=source[row : row + 1, :n]), got[row : row + 1])


@settings(max_examples=30)
@given(st.lists(st.integers(1, 6), min_size=1, max_size=5), st.sampled_from(SHAPES), st.integers(0, 9))
def test_states_of_a_row_are_those_it_has_alone(lengths, shape, seed):
    model = model_of(("general", None), shape)
    source, mask = padded(lengths, seed)
    said = tokens(len(lengths), 3, seed=seed)
    states = model.states(said, source=source, source_mask=mask)
    for row, n in enumerate(lengths):
        alone = model.states(said[row : row + 1], source=source[row : row + 1, :n])
        close(states.encoder_BSD[row : row + 1, :n], alone.encoder_BSD)
        close(states.decoder_BTD[row : row + 1], alone.decoder_BTD)
        assert (states.encoder_BSD[row, n:] == 0).all()


def test_a_mask_without_padding_changes_nothing():
    model, source, said = model_of(("dot", None)), tokens(2, 4), tokens(2, 3, seed=1)
    full = torch.ones(2, 4, dtype=torch.bool)
    close(model(said, source=source, source_mask=full), model(said, source=source), rtol=0, atol=0)


def test_the_source_matters_and_so_does_its_order():
    for way in WAYS:
        model, source, said = model_of(way), torch.tensor([[1, 2, 3, 4]]), tokens(1, 3)
        first = model(said, source=source)
        assert (model(said, source=source.flip(1)) - first).abs().max() > 1e-3, way


# ---- teacher forcing, steps, greedy decoding


@WAY
@SHAPE
def test_steps_are_teacher_forcing(way, shape):
    model = model_of(way, shape)
    source, mask = padded([4, 2, 6])
    said = tokens(3, 5, seed=1)
    whole = model(said, source=source, source_mask=mask)
    carried = model.encode(source, mask)
    parts = []
    for part in said.split([1, 1, 3], 1):
        logits, carried = model.step(part, carried)
        parts.append(logits)
    close(torch.cat(parts, 1), whole)


@WAY
def test_no_token_is_seen_before_its_time(way):
    model, source, said = model_of(way), tokens(1, 4), tokens(1, 5, seed=1)
    changed = said.clone()
    changed[0, 3] = (changed[0, 3] + 1) % VOCAB
    before, after = model(said, source=source), model(changed, source=source)
    close(before[:, :3], after[:, :3], rtol=0, atol=0)
    assert (before[:, 3:] - after[:, 3:]).abs().amax(-1).min() > 1e-6


@WAY
@SHAPE
def test_greedy_is_teacher_forcing_on_its_own_output(way, shape):
    start, end = 0, 1
    model = model_of(way, shape, seed=3)
    source, mask = padded([4, 2, 6, 5, 3, 1])
    said = model.greedy(source, source_mask=mask, max_tokens=12, start=start, end=end)
    fed = torch.cat([torch.full((6, 1), start), said[:, :-1]], 1)
    likeliest = model(fed, source=source, source_mask=mask).argmax(-1)
    over = (fed == end).cumsum(1) > 0  # after an end nothing else is said
    over[:, 0] = False
    assert torch.equal(said[~over], likeliest[~over])
    assert (said[over] == end).all()


def test_greedy_stops_when_every_row_has_ended():
    model = model_of(("dot", None))
    with torch.no_grad():
        model.head.weight.zero_()
        model.head.bias.copy_(torch.eye(VOCAB, dtype=torch.float64)[4])
    assert model.greedy(tokens(3, 4), max_tokens=50, start=0, end=4).tolist() == [[4]] * 3
    assert model.greedy(tokens(3, 4), max_tokens=7, start=0, end=5).tolist() == [[4] * 7] * 3


# ---- alignment


@LOOKS
@SHAPE
def test_the_weights_shown_are_the_weights_used(way, shape):
    model = model_of(way, shape)
    source, mask = padded([4, 2, 6])
    said = tokens(3, 5, seed=1)
    logits, weights = model.align(said, source=source, source_mask=mask)
    states = model.states(said, source=source, source_mask=mask)
    context = weights @ states.encoder_BSD
    both = torch.cat([states.decoder_BTD, context], -1)
    close(model.head(torch.tanh(model.decoder.look.combine(both))), logits)
    close(model(said, source=source, source_mask=mask), logits, rtol=0, atol=0)
    close(weights.sum(-1), torch.ones(3, 5, dtype=torch.float64))
    assert (weights[~mask[:, None].expand_as(weights)] == 0).all()
    assert weights.std(1).max() > 1e-4  # not the same at every step


@pytest.mark.parametrize("kind", ["dot", "general", "additive"])
def test_who_looks_is_the_state_after_the_cell_or_before_it(kind):
    source, said = tokens(2, 4), tokens(2, 5, seed=1)
    for feed in ("nothing", "attended", "context"):
        model = model_of((kind, feed))
        _, weights = model.align(said, source=source)
        states = model.states(said, source=source)
        first = model.encode(source).cell[0][-1][:, None]
        before = torch.cat([first, states.decoder_BTD[:, :-1]], 1)
        asks = before if feed == "context" else states.decoder_BTD
        for t in range(5):  # the score, one state at a time
            close(model.decoder.look.attention.score(asks[:, t], states.encoder_BSD).softmax(-1), weights[:, t])


# ---- against torch's cells, written out step by step

CELLS = {"rnn": nn.RNNCell, "gru": nn.GRUCell, "lstm": nn.LSTMCell}


def cell_of(network, layer=0):
    kind = {nn.RNN: "rnn", nn.GRU: "gru", nn.LSTM: "lstm"}[type(network)]
    cell = CELLS[kind](network.input_size, network.hidden_size).double()
    with torch.no_grad():
        for name, p in cell.named_parameters():
            p.copy_(getattr(network, f"{name}_l{layer}"))
    return cell


def h_of(state):
    return state[0] if isinstance(state, tuple) else state


@pytest.mark.parametrize("cell", CELLS)
@WAY
def test_the_papers_recurrences_cell_by_cell(way, cell):
    """Luong: s_t = f(s_{t-1}, y_t or [y_t; s̃_{t-1}]), c_t from s_t.

    Bahdanau: c_t from s_{t-1}, s_t = f(s_{t-1}, [y_t; c_t]).
    """
    model = model_of(way, (cell, 1, False))
    source, said = tokens(2, 4), tokens(2, 3, seed=1)
    reader, writer = cell_of(model.encoder.net.net), cell_of(model.decoder.net.net)
    state, seen = None, []
    for x in model.embed(source).unbind(1):
        state = reader(x, state)
        seen.append(h_of(state))
    keys, out = torch.stack(seen, 1), torch.zeros(2, 6, dtype=torch.float64)

    def looked(s):
        return (model.decoder.look.attention.score(s, keys).softmax(-1)[..., None] * keys).sum(1)

    logits = []
    for y in model.embed(said).unbind(1):
        if way[0] is None:
            state = writer(y, state)
            out = h_of(state)
        elif way[1] == "context":
            context = looked(h_of(state))
            state = writer(torch.cat([y, context], -1), state)
            out = torch.tanh(model.decoder.look.combine(torch.cat([h_of(state), context], -1)))
        else:
            state = writer(torch.cat([y, out], -1) if way[1] == "attended" else y, state)
            out = torch.tanh(model.decoder.look.combine(torch.cat([h_of(state), looked(h_of(state))], -1)))
        logits.append(model.head(out))
    close(model(said, source=source), torch.stack(logits, 1))


@pytest.mark.parametrize("cell", CELLS)
def test_two_directions_are_bridged(cell):
    model = model_of(shape=(cell, 2, True))
    source = tokens(2, 5)
    _, last = model.encoder.net.net(model.embed(source))
    last = last if isinstance(last, tuple) else (last,)
    for h, bridge, got in zip(last, model.encoder.bridge, model.encode(source).cell, strict=True):
        by_layer = h.view(2, 2, 2, 3)  # layer, direction, batch, half the width
        close(got, torch.tanh(bridge(torch.cat([by_layer[:, 0], by_layer[:, 1]], -1))))


@pytest.mark.parametrize("cell", CELLS)
def test_one_direction_starts_from_the_last_state(cell):
    model = model_of(shape=(cell, 2, False))
    source = tokens(2, 5)
    last = model.encoder.net.net(model.embed(source))[1]
    for h, got in zip(last if isinstance(last, tuple) else (last,), model.encode(source).cell, strict=True):
        close(got, h, rtol=0, atol=0)


# ---- A2


def test_A2_decoder_update():
    """s_t = tanh(W [s; c]) of the document's numbers, through the module that every looking decoder has."""
    looking = Looking(RecurrentSpec(vocab=3, width=2, attention="dot"), Dot()).double()
    W = torch.tensor([[0.5, -1.0, 0.25, 2.0], [1.0, 0.0, -0.5, 0.3]], dtype=torch.float64)
    with torch.no_grad():
        looking.combine.weight.copy_(W)
        looking.combine.bias.zero_()
    h = torch.tensor([[[1.0, 0.0], [0.0, 1.0], [1.0, 1.0]]], dtype=torch.float64)
    s = torch.tensor([[0.5, 0.2]], dtype=torch.float64)
    context, weights = looking.context(s, looking.memory(Encoded(h, None, ())))
    assert weights[0].tolist() == pytest.approx([0.33758, 0.25009, 0.41233], abs=5e-6)
    assert context[0].tolist() == pytest.approx([0.74991, 0.66242], abs=5e-6)
    by_hand = [0.5 * 0.5 - 0.2 + 0.25 * 0.74991 + 2 * 0.66242, 0.5 - 0.5 * 0.74991 + 0.3 * 0.66242]
    assert looking.update(s, context)[0].tolist() == pytest.approx(torch.tanh(torch.tensor(by_hand)).tolist(), abs=1e-5)


# ---- training


@WAY
@SHAPE
def test_every_parameter_learns(way, shape):
    model = model_of(way, shape)
    source, mask = padded([4, 2, 6])
    model(tokens(3, 5, seed=1), source=source, source_mask=mask).square().mean().backward()
    for name, p in model.named_parameters():
        assert p.grad is not None, name
        assert p.grad.isfinite().all(), name
        assert p.grad.abs().max() > 0, name


@pytest.mark.sampled
@pytest.mark.parametrize("way", [("general", "nothing"), ("additive", "context"), ("dot", "attended")], ids=str)
def test_gradcheck(way):
    model = sharpen(build_recurrent(RecurrentSpec(5, 2, attention=way[0], feed=way[1])).double())
    source, mask = padded([3, 2])
    check_gradients(model, lambda m: m(tokens(2, 3, seed=1) % 5, source=source % 5, source_mask=mask))


def test_dropout_is_on_in_training_alone():
    model = model_of(("dot", None), ("gru", 2, False), dropout=0.5)
    source, said = tokens(2, 4), tokens(2, 3, seed=1)
    close(model(said, source=source), model(said, source=source), rtol=0, atol=0)
    model.train()
    assert not torch.equal(model(said, source=source), model(said, source=source))
    assert model.decoder.net.net.dropout == 0.5


@pytest.mark.sampled
@pytest.mark.parametrize(("cell", "attention"), [("gru", "general"), ("lstm", "additive"), ("rnn", "dot")])
def test_it_learns_to_reverse(cell, attention):
    """Three tokens backwards: chance is 1 in 512."""
    model = build_recurrent(RecurrentSpec(9, 24, cell=cell, attention=attention, bidirectional=True), seed=1)
    optimiser = torch.optim.AdamW(model.parameters(), lr=1e-2)
    generator = torch.Generator().manual_seed(0)

    def drawn(n):
        source = torch.randint(1, 9, (n, 3), generator=generator)
        answer = source.flip(1)
        return source, torch.cat([torch.zeros(n, 1, dtype=torch.long), answer[:, :-1]], 1), answer

    for _ in range(120):
        source, said, answer = drawn(48)
        loss = nn.functional.cross_entropy(model(said, source=source).flatten(0, 1), answer.flatten())
        optimiser.zero_grad()
        loss.backward()
        optimiser.step()
    source, _, answer = drawn(200)
    right = (model.eval().greedy(source, max_tokens=3, start=0, end=0) == answer).all(1)
    assert right.float().mean() > 0.9


def test_the_same_seed_gives_the_same_weights_and_leaves_torch_alone():
    before = torch.random.get_rng_state()
    a, b, c = (build_recurrent(spec_of(("general", None)), seed=seed) for seed in (1, 1, 2))
    assert torch.equal(torch.random.get_rng_state(), before)
    for (name, p), q, r in zip(a.named_parameters(), b.parameters(), c.parameters(), strict=True):
        assert torch.equal(p, q), name
        assert not torch.equal(p, r), name
