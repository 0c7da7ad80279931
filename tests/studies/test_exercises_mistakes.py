"""Typical wrong answers: each is told what its mistake is. All run in real processes."""

import pytest

from vantage.studies.exercises import exercises
from vantage.studies.exercises.grading import INCOMPARABLE_WORDS, grade_in
from vantage.studies.sandbox import CodeSandbox

PAIRS = """\
    a, b = x[..., 0::2], x[..., 1::2]
    return torch.stack((a * cos - b * sin, a * sin + b * cos), dim=-1).flatten(-2)
"""
HALVES = """\
    a, b = x.chunk(2, -1)
    return torch.cat((a * cos - b * sin, a * sin + b * cos), -1)
"""

# tag: (what stands in the answer, what a student wrote instead, what must be said about it)
MISTAKES = {
    "A2": [
        ("[0.3376, 0.2501, 0.4123]", "[0.3374, 0.2501, 0.4125]", "two of them are slips"),
        ("[0.3376, 0.2501, 0.4123]", "[1.6487, 1.2214, 2.0138]", "divide each by their sum"),
        ("[0.3376, 0.2501, 0.4123]", "[0.3571, 0.1429, 0.5]", "takes the exponential"),
        ("[0.7499, 0.6624]", "[0.7499, 0.6626]", "the document's context"),
        ("[0.7499, 0.6624]", "[1.2, 0.9]", "use the weights"),
        ("[0.7499, 0.6624]", "[0.6624, 0.7499]", "wrong order"),
        ("[0.5, 0.2, 0.7]", "[0.5, 0.2]", "a list of 3 numbers"),
        ("[0.5, 0.2, 0.7]", "[0.5, 0.2, 0.8]", "the number at [2], 0.8, is not right"),
    ],
    "A4": [
        (" / q.shape[-1] ** 0.5", "", "not scaled: divide them by √d"),
        (" / q.shape[-1] ** 0.5", " / q.shape[-1]", "it is its square root"),
        (" / q.shape[-1] ** 0.5", " * q.shape[-1] ** 0.5", "multiplied by √d"),
        ("q.shape[-1] ** 0.5", "v.shape[-1] ** 0.5", "the width of q and k that counts"),
        ("softmax(-1)", "softmax(0)", "runs over the queries"),
        ("scores.softmax(-1) @ v", "scores.exp() / scores.exp().sum(-1, keepdim=True) @ v",
         "subtract the largest score"),
        ("q @ k.T", "q.T @ k", "this is qᵀk"),
        ("scores.softmax(-1) @ v", "scores.softmax(-1).float() @ v.float()", "keep the type of q"),
        ("return scores.softmax(-1) @ v", "scores.softmax(-1) @ v", "end with a return"),
    ],
    "A5": [
        ("> at", ">= at", "hides the diagonal"),
        ("> at", "< at", "hides the past"),
        ("torch.arange(keys - queries, keys)", "torch.arange(queries)", "taken to stand at position 0"),
        ('float("-inf")', "-1e9", "should hold −∞"),
        ('torch.zeros(queries, keys).masked_fill(hidden, float("-inf"))', "~hidden", "as floats"),
        ('torch.zeros(queries, keys).masked_fill(hidden, float("-inf"))', "(~hidden).float()", "added to the scores"),
        ("(hidden,", "(~hidden,", "turned around"),
        ("torch.zeros(queries, keys)", "torch.zeros(keys, keys)", "has shape (4, 4), it should be (1, 4)"),
    ],
    "A6": [
        ("x.reshape(batch, tokens, heads, width // heads).transpose(1, 2)",
         "x.reshape(batch, heads, tokens, width // heads)", "a single view"),
        ("x.reshape(batch, tokens, heads, width // heads).transpose(1, 2)",
         "x.reshape(batch, tokens, width // heads, heads).permute(0, 3, 1, 2)", "every heads-th number"),
        (".transpose(1, 2).reshape", ".reshape", "numbers of different tokens"),
        ("x.transpose(1, 2).reshape", "x.permute(0, 2, 3, 1).reshape", "the heads alternate"),
        ("heads, width // heads).transpose(1, 2)", "heads, width // heads)", "in another order"),
        ("x.transpose(1, 2).reshape", "x.transpose(1, 2).view", "raises RuntimeError"),
    ],
    "A7": [
        ("k.repeat_interleave(heads // k.shape[1], dim=1)", "k.repeat(1, heads // k.shape[1], 1, 1)", "0 0 1 1"),
        ("k.repeat_interleave(heads // k.shape[1], dim=1)", "k[:, :1].repeat(1, heads, 1, 1)",
         "multi-query attention alone"),
        ("dim=1)", "dim=2).reshape(k.shape[0], heads, k.shape[2], k.shape[3])", "tokens are repeated"),
        ("2 * tokens", "tokens", "both shrink"),
        ("(heads - 1)", "heads", "heads − 1 of each"),
        ("d**2", "d", "d × d"),
        ("2 * tokens", "3 * tokens", "the queries are counted"),
    ],
    "A9": [
        ("MATCH = {match}", "MATCH = {inverse}", "other way round"),
        ("MATCH = {match}", "MATCH = [1, 1, 2, 3, 4]", "given to A and B"),
        ("MATCH = {match}", "MATCH = [0, 1, 2, 3, 4]", "numbered from 1 to 5"),
        ("MATCH = {match}", "MATCH = {swapped}", "is not map"),
        ("SEED = 0", "SEED = -3", "from 0 to 9999"),
    ],
    "A10": [
        ("(x - top) / temperature", "x / temperature", "Subtract the largest score"),
        ("(x - top) / temperature", "(x - top) * temperature", "multiplied by the temperature"),
        ("(x - top) / temperature", "x - top", "the temperature is ignored"),
        ("exps = torch.exp((x - top) / temperature)\n    return exps / exps.sum(-1, keepdim=True)",
         "return (x / temperature).flatten().softmax(0).view_as(x)", "runs over the whole tensor"),
        ("x.max(dim=-1, keepdim=True).values", "x.max()", "not of the whole tensor"),
        ("exps.sum(-1, keepdim=True)", "exps.sum()", "a sum of its own"),
        ("exps.sum(-1, keepdim=True)", "exps.sum(-1)", ""),
        ("return exps / exps.sum(-1, keepdim=True)", "return exps", "not divided by their sum"),
    ],
    "A12": [
        ("GAIN = 20.0", "GAIN = 1.0", "whatever the document says"),
        ("GAIN * (keys[a] + keys[b])", "GAIN * keys[a]", "only key"),
        ("GAIN * (keys[a] + keys[b])", "GAIN * (keys[a] - keys[b])", "only key"),
        ("GAIN * keys[a]", "keys[a]", "Use a larger gain"),
        ("GAIN * keys[a]", "-GAIN * keys[a]", "and not key"),
        ("GAIN = 20.0", "GAIN = 1e6", "a gain of 20 or 30 is enough"),
        ("GAIN * (keys[a] + keys[b])", "GAIN * (keys[a] + 1.1 * keys[b])", "the same gain"),
    ],
    "A15": [
        ("seen = seen | {", "seen = {", "the residual is missing"),
        ("reversed(picks)", "picks", "wrong order"),
        ("reversed(picks)", "picks[-1:]", "only the highest level"),
        ("level[place]}", "level[place][:1]}", "only the first head"),
        ("(heads + 1) ** levels", "heads**levels", "the heads and the node itself"),
        ("(heads + 1) ** levels", "2**levels", "the bound for one head"),
        ("(heads + 1) ** levels", "(levels + 1) ** heads", "changed places"),
        ("return seen", "return len(seen)", "return a set"),
    ],
    "P1": [
        ("out[order]", "out", "That is invariance"),
        ("order[i], order[i + 1] = i + 1, i", "pass", "the permutation moves nothing"),
        ("torch.randn(tokens, width)", "torch.ones(tokens, width)", "all tokens of x are the same"),
        ("for i in range(tokens - 1)", "for i in range(1)", "only the last place differently"),
        ("order[i], order[i + 1] = i + 1, i", "order = order.flip(0)", "the same from both ends"),
        ("atol=1e-4", "atol=0.3", "the tolerance is too wide"),
        ("    out = layer(x)\n", "    return True\n", "the layer was called 0 time"),
        ("torch.allclose(layer(x[order]), out[order], atol=1e-4)", "torch.equal(layer(x[order]), out[order])",
         "Is == used?"),
        ("layer(x[order])", "layer(x[order][:2])", "the layer takes a tensor of shape (6, 8)"),
        ("return True", "return 'yes'", "return True or False"),
    ],
    "P2": [
        ("[0.8415, 0.5403, 0.0100, 0.9999]", "[0.8415, 0.9950, 0.0100, 1.0]", "exponent (2i+1)/d"),
        ("[0.8415, 0.5403, 0.0100, 0.9999]", "[0.8415, 0.5403, 0.0998, 0.9950]", "it is 2i/d"),
        ("[0.8415, 0.5403, 0.0100, 0.9999]", "[0.0175, 0.9998, 0.0002, 1.0]", "radians"),
        ("[0.8415, 0.5403, 0.0100, 0.9999]", "[0.5403, 0.8415, 0.9999, 0.0100]", "the sine comes first"),
        ("[0.9093, -0.4161, 0.0200, 0.9998]", "[0.9093, 0.0200, -0.4161, 0.9998]", "here they alternate"),
        ("[0.0, 1.0, 0.0, 1.0]", "[0.8415, 0.5403, 0.0100, 0.9999]", "positions count from 0"),
    ],
    "P7": [
        ("(distance > 0)", "(distance < 0)", ""),
        ("(-distance).clamp(min=0)", "distance.clamp(min=0)", "the sign is turned around"),
        ("(-distance).clamp(min=0)", "distance.abs()", "in bucket 0"),
        (".clamp(max=buckets - 1)", "", "run past the last bucket"),
        ("        buckets = buckets // 2\n", "", "each side has half of them"),
        ("torch.where(far < exact, far, large)", "far.clamp(max=buckets - 1)", "grow logarithmically"),
    ],
    "P8": [
        ("pos[:, None].double()", "torch.arange(len(pos))[:, None].double()",
         "the token at 5 is turned as if it stood at 0"),
        ("a * cos - b * sin, a * sin + b * cos", "a * cos + b * sin, b * cos - a * sin", "the wrong way round"),
        (PAIRS, HALVES, "number k with number k + d/2"),
        ("torch.stack((a * cos - b * sin, a * sin + b * cos), dim=-1).flatten(-2)",
         "torch.cat((a * cos - b * sin, a * sin + b * cos), -1)", "put back as halves"),
        ("/ d)", "/ d / 2)", "it is −2k/d"),
        ("base ** (", "10000 ** (", "the base is always 10000"),
        ("dtype=torch.float64) / d", "dtype=torch.float32) / d", "float64"),
        ("angle = pos[:, None].double() * rate", "angle = torch.deg2rad(pos[:, None].double() * rate)", "degrees"),
        ("    return torch", "    x[..., 0] = 0\n    return torch", "changes its argument in place"),
    ],
    "P10": [
        ("-8 * torch.arange(1, n_heads + 1) / n_heads", "-1.0 * torch.arange(1, n_heads + 1)",
         "that is right for 8 heads only; for 4 heads the paper has 2^(−8k/h)"),
        ("-slopes[:", "slopes[:", "far keys count more"),
        ("(at[:, None] - at[None, :]).abs()", "at[:, None] - at[None, :]", "get a bonus"),
        ("torch.arange(1, n_heads + 1) / n", "torch.arange(n_heads) / n", "start at 1"),
        (".abs()", ".clamp(min=0)", "no bias"),
        ("return -slopes[:, None, None] * distance", "return (-slopes[:, None, None] * distance).numpy()",
         "a NumPy array"),
        ("return -slopes[:, None, None] * distance", "return -slopes * distance[..., None]", "in another order"),
    ],
    "P10-slopes": [
        ("below = 2 ** (heads.bit_length() - 1)", "below = heads", "is no power of two"),
        ("[0::2]", "[1::2]", "repeats those that are there"),
        ("[0::2]", "", "every second one"),
        ("torch.tensor(power_of_two(below) + rest)", "torch.tensor(sorted(power_of_two(below) + rest)[::-1])",
         "are sorted"),
        ("-8 * k / heads", "-k", "for 8 heads only"),
    ],
    "P11": [
        ("first[:, None].clone()", "torch.ones(len(first), 1)", "a mean of ones is 1"),
        ("torch.ones(len(first), 2)", "torch.randn(len(first), 2)", "make all rows of K the same"),
        ("first[:, None].clone()", "torch.arange(1.0, len(first) + 1)[:, None]", "V counts the places"),
        ("first[:, None].clone()", "first.flip(0)[:, None]", "V marks the last token"),
        ("first[:, None].clone()", "torch.eye(len(first))[:, :1]", "made of the place in the sequence"),
        ("first[:, None].clone()", "first", "V has shape (4,), it should be (4, 1)"),
        ("return keys, values", "return values", "return two tensors"),
    ],
    "K1": [
        ("n * (n + 1) // 2", "n * n", "step s reads s of them"),
        ("n * (n + 1) // 2", "n * (n - 1) // 2", "the last step reads n tokens"),
        ("n * (n + 1) // 2", "(n + 1) * (n + 2) // 2", "one step too many"),
        ("    return n\n", "    return n + 1\n", "never read"),
        ("n - t", "n - t + 1", "one too many"),
        ("n - t", "n", "read less often"),
        ("n - t", "t + 1", "the other way round"),
    ],
    "K2": [
        ("torch.cat([cache[0], k]), torch.cat([cache[1], v])", "torch.cat([k, cache[0]]), torch.cat([v, cache[1]])",
         "put it behind the others"),
        ("return weights @ v, (k, v)", "return weights @ v, (k[-1:], v[-1:])", "the old ones are lost"),
        (" / len(q) ** 0.5", "", "not divided by √d"),
        ("(x @ wk)[None]", "x[None]", "holds the tokens themselves"),
        ("q, k, v = x @ wq", "q, k, v = x", "project it with wq"),
        ("weights @ v, (k, v)", "weights @ v, (v, k)", "changed places"),
        ("weights @ v, (k, v)", "weights @ v, (k, v) if cache is None else cache", "not appended"),
        ("    weights =",
         "    q, seen = q, k[:-1] if len(k) > 1 else k\n    weights = (seen @ q / len(q) ** 0.5).softmax(-1)\n"
         "    return weights @ v[: len(seen)], (k, v)\n    weights =", "does not see itself"),
        ("return weights @ v, (k, v)", "return weights @ v", "return two things"),
    ],
    "K3": [
        ("[[1, 4], [3, 10], [5, 16]]", "[[5, 2], [11, 4], [17, 6]]", "here x is a row: k = x W^K"),
        ("[[2.5, 0.5], [5.5, 0.5], [8.5, 0.5]]", "[[-0.5, 2], [-0.5, 5], [-0.5, 8]]", "here x is a row: v = x W^V"),
        ("[8.5, 0.5]  #", "[5.5, 0.5]  #", "far from equal"),
        ("[8.5, 0.5]  #", "[2.5, 0.5]  #", "it sees itself alone"),
        ("[[1, 4], [3, 10], [5, 16]]", "[[1, 2], [3, 4], [5, 6]]", "multiply them by W^K"),
        ("[[1, 4], [3, 10], [5, 16]]", "[[1, 4], [3, 10], [5, None]]", "fill in a number"),
    ],
    "K5": [
        ("2 * layers", "layers", "keys or values, not both"),
        ("kv_heads * head *", "heads * head *", "kv_heads heads"),
        ("2 * layers *", "2 *", "every layer keeps its own"),
        ("batch * ", "", "the batch is missing"),
        (" * bytes_per_number", "", "multiply by the bytes"),
        ("head = width // heads", "head = width", "it has width / heads numbers"),
        ("return 2", "return 1.5 * 2", "queries are counted"),
        ("return 2", "return '2'", ""),
    ],
}  # fmt: skip


@pytest.fixture(scope="module")
def sandbox():
    with CodeSandbox() as sandbox:
        yield sandbox


def written(tag, old, new):
    """The answer with one thing in it changed."""
    exercise = exercises()[tag]
    if tag == "A9":
        match = eval(exercise.answer.split("MATCH = ")[1])
        inverse = [match.index(n) + 1 for n in range(1, 6)]
        assert inverse != match
        old = old.format(match=match)
        new = new.format(inverse=inverse, swapped=[match[1], match[0], *match[2:]])
    assert old in exercise.answer, f"{old!r} does not stand in the answer of {tag}"
    return exercise.answer.replace(old, new)


@pytest.mark.sampled
@pytest.mark.parametrize("tag", MISTAKES)
def test_what_is_wrong_is_said(tag, sandbox):
    for old, new, words in MISTAKES[tag]:
        grade = grade_in(sandbox, exercises()[tag], written(tag, old, new))
        said = "\n".join(check.words for check in grade.checks if not check.passed)
        assert not grade.passed, f"{new!r} passed"
        assert words in said, f"{new!r} got: {said}"
        assert INCOMPARABLE_WORDS not in said or not words
        assert all(bool(check.words) != check.passed for check in grade.checks)


def test_every_exercise_has_at_least_three():
    assert set(MISTAKES) == set(exercises())
    assert min(len([m for m in wrong if m[2]]) for wrong in MISTAKES.values()) >= 3
