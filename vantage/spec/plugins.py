"""Parts from outside the package: installed packages say where theirs are, a user names a file or module.

What is imported here calls ``vantage.register``. Nothing else is ever imported because of a part: no checkpoint and no
settings can name code to run.
"""

from __future__ import annotations

import importlib
import importlib.util
import os
import sys
import threading
import warnings
from importlib.metadata import entry_points
from pathlib import Path

from vantage.errors import BadInput

GROUP = "vantage.parts"  # of entry points: each names a module
VARIABLE = "VANTAGE_PARTS"  # files and modules, as PATH has folders; processes that we start inherit it


class _Once:
    """Whether plugins have been imported: by nobody, by a thread that is at it, or for good."""

    lock = threading.RLock()
    importing = False
    over = False


def load_plugins() -> None:
    """Import all parts from outside, when the first registry is asked, and once."""
    if _Once.over:
        return
    with _Once.lock:
        if _Once.over or _Once.importing:  # a plugin asks a registry while it is imported
            return
        _Once.importing = True
        try:
            _load_installed()
            for source in os.environ.get(VARIABLE, "").split(os.pathsep):
                if source:
                    load_parts(source)
            _Once.over = True
        finally:
            _Once.importing = False


def plugins_wanted() -> bool:
    """Whether there are parts from outside, imported or not. Asking imports none of them."""
    return bool(os.environ.get(VARIABLE)) or bool(entry_points(group=GROUP))


def use_parts(source: str) -> None:
    """Import a file or module of parts now, here and in every process that is started from here."""
    load_plugins()
    if _is_file(source):
        source = str(Path(source).resolve())
    load_parts(source)
    sources = [one for one in os.environ.get(VARIABLE, "").split(os.pathsep) if one]
    os.environ[VARIABLE] = os.pathsep.join(dict.fromkeys([*sources, source]))


def load_parts(source: str) -> None:
    """Import a file or a module, which registers its parts."""
    try:
        if _is_file(source):
            _load_file(Path(source).resolve())
        else:
            importlib.import_module(source)
    except BadInput:
        raise
    except Exception as e:
        raise BadInput(f"cannot take parts from {source}: {type(e).__name__}: {e}") from e


def _load_installed() -> None:
    for point in entry_points(group=GROUP):
        try:
            point.load()
        except Exception as e:  # somebody's package must not stop everything else
            warnings.warn(
                f"the parts of {point.value} (an installed package) are left out: {type(e).__name__}: {e}", stacklevel=3
            )


def _is_file(source: str) -> bool:
    return source.endswith(".py") or os.sep in source


def _is_at(origin: str | None, path: Path) -> bool:
    """Whether a module that Python finds is this very file: its folder may be on the path."""
    return origin is not None and Path(origin).resolve() == path.resolve()


def _load_file(path: Path) -> None:
    if not path.is_file():
        raise BadInput(f"there is no file {path} to take parts from")
    name = path.stem
    known = sys.modules.get(name)
    if known is not None and _is_at(getattr(known, "__file__", None), path):
        return
    if not name.isidentifier():
        raise BadInput(f"{path.name} cannot be imported, as {name!r} is no Python name: call it my_parts.py, say")
    other = importlib.util.find_spec(name) if known is None else known.__spec__
    origin = None if other is None else other.origin
    if known is not None or (other is not None and not _is_at(origin, path)):
        raise BadInput(f"{path.name} would hide another module {name!r} ({origin}): call the file something else")
    spec = importlib.util.spec_from_file_location(name, path)
    assert spec is not None
    assert spec.loader is not None
    module = importlib.util.module_from_spec(spec)
    sys.modules[name] = module
    try:
        spec.loader.exec_module(module)
    except BaseException:
        del sys.modules[name]
        raise
