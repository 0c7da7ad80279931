"""The colours of figures and reports, by day and by night, and the style sheet that all reports share."""

from __future__ import annotations

from importlib import resources

# By entry, for light and for dark paper; each at least 3:1 against its paper. report.css is written from these.
LIGHT = ("#0060a8", "#c4451c", "#00785a", "#9c3d8f", "#8a6100", "#1a7f9c", "#b0284f", "#555c66")
DARK = ("#6bb5f0", "#ff9466", "#4fcba3", "#e39adb", "#e0b24d", "#66cfe8", "#ff8aa8", "#b3bac4")
PAPER = ("#ffffff", "#15181d")
# From low to high: dark blue to yellow, by lightness alone, so that it reads in any eye and in print (after cividis).
SCALE = ("#00224e", "#2b446e", "#575c6d", "#7d7c78", "#a59c74", "#d2c060", "#fee838")


def report_css() -> str:
    """The style of our reports. The colours of lines are written down once, above."""
    text = resources.files("vantage.figures").joinpath("report.css").read_text(encoding="utf-8")
    for name, colours in (("LIGHT", LIGHT), ("DARK", DARK)):
        text = text.replace(f"/* {name} */", " ".join(f"--s{i}: {colour};" for i, colour in enumerate(colours)))
    return text


def shade(share: float) -> tuple[str, str]:
    """The colour of a cell between 0 and 1, and the ink that reads best on it."""
    at = min(max(share, 0.0), 1.0) * (len(SCALE) - 1)
    i = min(int(at), len(SCALE) - 2)
    mixed = [round(a + (b - a) * (at - i)) for a, b in zip(_rgb(SCALE[i]), _rgb(SCALE[i + 1]), strict=True)]
    colour = "#" + "".join(f"{part:02x}" for part in mixed)
    return colour, max(("#000000", "#ffffff"), key=lambda ink: contrast(colour, ink))


def contrast(a: str, b: str) -> float:
    """Of two colours, as WCAG counts it: 4.5 for text, 3 for lines."""
    light, dark = sorted((_luminance(a), _luminance(b)), reverse=True)
    return (light + 0.05) / (dark + 0.05)


def _rgb(colour: str) -> tuple[int, int, int]:
    return int(colour[1:3], 16), int(colour[3:5], 16), int(colour[5:7], 16)


def _luminance(colour: str) -> float:
    parts = [part / 255 for part in _rgb(colour)]
    r, g, b = (part / 12.92 if part <= 0.04045 else ((part + 0.055) / 1.055) ** 2.4 for part in parts)
    return 0.2126 * r + 0.7152 * g + 0.0722 * b
