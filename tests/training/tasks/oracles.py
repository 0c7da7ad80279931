"""Every task once more, the slow and plain way. An oracle reads the symbols of a prompt and says what follows.

It returns the length that the prompt has, the answer and the group, and raises AssertionError if no such prompt may
be. It shares no code with the generators.
"""

import re

GAP = "_"


def case(task, prompt):
    mark, *text = prompt
    line = "".join(text)
    assert line == line.strip()
    assert "  " not in line
    *words, last = line.split()
    assert all(len(word) <= task.longest_word for word in words)
    assert len(last) <= task.longest_word + 1
    return len(line), list({"<U>": line.upper(), "<L>": line.lower()}[mark]), {"<U>": "upper", "<L>": "lower"}[mark]


def ordering(task, prompt):
    values = [int(symbol) for symbol in prompt]
    assert len(set(values)) == len(values)
    if task.spread is not None:
        assert max(values) - min(values) < task.spread * len(values)
    moved = [i for i, (got, wanted) in enumerate(zip(values, sorted(values), strict=True)) if got != wanted]
    if not moved:
        return len(values), ["yes"], "ascending"
    first, second = moved
    assert second - first in task.distances
    return len(values), ["no"], f"swap {second - first}"


def copied(tokens, times):
    answer = []
    for turn in range(times):
        answer += ["<next>"] * (turn > 0) + tokens
    return answer


def copy(task, prompt):
    if task.kind == "replace":
        old, new, *rest = prompt
        assert set(rest) == {old}
        assert old != new
        return len(rest), copied([new for _ in rest], task.times), ""
    assert task.kind == "random" or len(set(prompt)) == 1
    return len(prompt), copied(prompt, task.times), ""


def reverse(task, prompt):
    return len(prompt), copied(list(reversed(prompt)), task.times), ""


def sort(task, prompt):
    separator = "" if task.written == "digits" else " "
    values = [int(word) for word in separator.join(prompt).split()]
    assert max(values) < task.values
    line = " ".join(str(value) for value in sorted(values))
    return len(values), list(line) if task.written == "digits" else line.split(), ""


def addition(task, prompt):
    plus = prompt.index("+")
    sides = [prompt[:plus], prompt[plus + 1 :]]
    hints = []
    if task.hints:
        assert sides[0][::2] == sides[1][::2]
        hints = [int(mark.strip("<>")) for mark in sides[0][::2]]
        sides = [side[1::2] for side in sides]
    if task.order == "reversed":
        sides, hints = [side[::-1] for side in sides], hints[::-1]
    assert all(len(side) == 1 or side[0] != "0" for side in sides)
    assert len(sides[0]) == len(sides[1])
    digits = list(str(sum(int("".join(side)) for side in sides)))
    if task.hints:
        units = hints[-1]  # the least of them, and one more for each place
        assert hints == list(range(units, units + len(hints)))[::-1]
        digits = [(f"<{units + place}>", digit) for place, digit in enumerate(digits[::-1])][::-1]
    else:
        digits = [(digit,) for digit in digits]
    if task.order == "reversed":
        digits = digits[::-1]
    return len(sides[0]), [symbol for digit in digits for symbol in digit], ""


def summation(task, prompt):
    total = 0
    for digit in prompt:
        total = (total + int(digit)) % task.modulus
    return len(prompt), [str(total)], ""


def parity(task, prompt):
    return len(prompt), ["1" if prompt.count("1") % 2 else "0"], ""


def modular_arithmetic(task, prompt):
    text = "".join(prompt)
    assert task.brackets or not set(text) & set("()")
    if task.brackets:
        assert text.count("(") == text.count(")") == sum(map(text.count, "+-*"))
    return len(re.findall(r"\d+", text)), [str(eval(text) % task.modulus)], ""


def duplicate_string(task, prompt):
    return len(prompt), [*prompt, *prompt], ""


def missing_duplicate(task, prompt):
    half, odd = divmod(len(prompt), 2)
    assert not odd
    (gap,) = [i for i, letter in enumerate(prompt) if letter == GAP]
    pairs = list(zip(prompt[:half], prompt[half:], strict=True))
    assert all(a == b for a, b in pairs if GAP not in (a, b))
    return half, [prompt[gap - half if gap >= half else gap + half]], ""


def odds_first(task, prompt):
    odds = [letter for number, letter in enumerate(prompt, 1) if number % 2 == 1]
    evens = [letter for number, letter in enumerate(prompt, 1) if number % 2 == 0]
    return len(prompt), odds + evens, ""


def bucket_sort(task, prompt):
    return len(prompt), [letter for letter in task.symbols for _ in range(prompt.count(letter))], ""


def even_pairs(task, prompt):
    return len(prompt), ["yes" if prompt[0] == prompt[-1] else "no"], ""


def cycle_navigation(task, prompt):
    ring = list(range(task.places))
    for step in prompt:
        if step == "+":
            ring = ring[1:] + ring[:1]
        elif step == "-":
            ring = ring[-1:] + ring[:-1]
    return len(prompt), [str(ring[0])], ""


def stack(task, prompt):
    line = "".join(prompt)
    values, actions = re.fullmatch(r"([01]+)((?:<pop>|<push[01]>)*)", line).groups()
    for action in re.findall(r"<\w+>", actions):
        values = values[:-1] if action == "<pop>" else values + action[5]
    return len(prompt), [*values[::-1], "."], ""


def clause(words):
    """What one clause of a command does, from its last word on."""
    if words[-1] in ("twice", "thrice"):
        return clause(words[:-1]) * {"twice": 2, "thrice": 3}[words[-1]]
    if words[-1] in ("left", "right"):
        turn = [words[-1][0].upper() + "TURN"]
        verb = [] if words[0] == "turn" else [words[0].upper()]
        return {"opposite": turn * 2 + verb, "around": (turn + verb) * 4, words[0]: turn + verb}[words[-2]]
    (verb,) = words
    assert verb in ("walk", "look", "run", "jump")
    return [verb.upper()]


def scan(task, prompt):
    first, *rest = re.split(r" (and|after) ", " ".join(prompt))
    done = clause(first.split())
    for joined, words in zip(rest[::2], rest[1::2], strict=True):
        done = [*done, *clause(words.split())] if joined == "and" else [*clause(words.split()), *done]
    if task.count == "actions":
        assert len(rest) <= 2
        return len(done), done, ""
    return 1 + len(rest) // 2, done, ""


def quarter(place, places):
    return next(f"depth {low}-{low + 25}%" for low in (75, 50, 25, 0) if place / places >= low / 100)


def lookup(task, prompt):
    *pairs, asked = prompt
    entries = dict(zip(pairs[::2], pairs[1::2], strict=True))
    assert len(entries) == len(pairs) // 2
    return len(entries), [entries[asked]], quarter(list(entries).index(asked), len(entries))


FILLER = "the grass is green . the sky is blue . the sun is yellow . here we go . there and back again . "


def passkey(task, prompt):
    *context, asked = prompt
    codes, filler, before = {}, [], {}
    while context:
        word, *context = context
        if word.startswith("<key"):
            assert word not in codes
            codes[word], context = context[: task.digits], context[task.digits :]
            before[word] = len(filler)
        else:
            filler.append(word)
    assert len(codes) == task.needles
    assert " ".join(filler) in FILLER * (2 + len(filler) // len(FILLER.split()))
    return len(prompt), codes[asked], quarter(before[asked], len(filler) + 1)


def multi_needle(task, prompt):
    text, asked = prompt[: -task.needles], prompt[-task.needles :]
    codes, filler = {}, []
    while text:
        word, *text = text
        if word.startswith("<key"):
            assert word not in codes
            codes[word], text = text[: task.digits], text[task.digits :]
        else:
            filler.append(word)
    assert sorted(codes) == sorted(asked)
    assert len(codes) == task.needles
    assert " ".join(filler) in FILLER * (2 + len(filler) // len(FILLER.split()))
    return len(prompt), [digit for mark in asked for digit in codes[mark]], ""


ORACLES = {
    "case": case,
    "ordering": ordering,
    "copy": copy,
    "reverse": reverse,
    "sort": sort,
    "addition": addition,
    "summation": summation,
    "parity": parity,
    "modular-arithmetic": modular_arithmetic,
    "duplicate-string": duplicate_string,
    "missing-duplicate": missing_duplicate,
    "odds-first": odds_first,
    "bucket-sort": bucket_sort,
    "even-pairs": even_pairs,
    "cycle-navigation": cycle_navigation,
    "stack": stack,
    "scan": scan,
    "lookup": lookup,
    "passkey": passkey,
    "multi-needle": multi_needle,
}

# every task, with its defaults and with each of its choices
VARIANTS = [(name, {}) for name in ORACLES]
VARIANTS += [
    ("case", {"letters": 3, "longest_word": 1}),
    ("ordering", {"values": 256, "spread": 2, "distances": (1, 5)}),
    ("ordering", {"distances": (7,), "values": 80}),
    ("copy", {"kind": "one"}),
    ("copy", {"kind": "replace", "tokens": 2}),
    ("copy", {"times": 2, "tokens": 40}),
    ("copy", {"kind": "one", "times": 3}),
    ("reverse", {"times": 2, "tokens": 9}),
    ("sort", {"written": "digits", "values": 1000}),
    ("addition", {"order": "reversed"}),
    ("addition", {"order": "reversed", "hints": 100}),
    ("addition", {"hints": 100}),
    ("summation", {"modulus": 3}),
    ("modular-arithmetic", {"brackets": True}),
    ("modular-arithmetic", {"modulus": 12}),
    ("duplicate-string", {"tokens": 4}),
    ("missing-duplicate", {"tokens": 5}),
    ("odds-first", {"tokens": 3}),
    ("bucket-sort", {"tokens": 2}),
    ("cycle-navigation", {"places": 3}),
    ("scan", {"count": "actions"}),
    ("lookup", {"keys": 64, "values": 2}),
    ("passkey", {"needles": 4, "digits": 3}),
    ("multi-needle", {"needles": 2, "digits": 3}),
]


def title(variant):
    name, parameters = variant
    return "-".join([name, *(f"{key}={value}" for key, value in parameters.items())])
