"""Rules about ras."""

from __future__ import annotations

from collections.abc import Iterator, Sequence

from distprof.artefacts.record import grouped
from distprof.bounds import table_beside
from distprof.escape import few_ranks
from distprof.rules.base import Draft, rule
from distprof.sections.ras import RasResult, TroubledRank
from distprof.sections.table import counted
from distprof.terms import Confidence, Severity
from distprof.units import capitalized, few_names, name_ranks

_MAX_NAMED = 3
_REMOTE = "Remote process error"


@rule("NET111", Severity.ERROR, costs_time=False)
def troubled_nccl_rank(ras: RasResult) -> Iterator[Draft]:
    """Ranks that do not answer NCCL's RAS, report an error, or have launched fewer collectives than
    others.
    """
    uneven = ("behind", "ahead")
    told = [one for one in ras.troubled if one.kind not in uneven or ras.stands is not False]
    alike = grouped([((one.kind, one.text), one) for one in told])
    for (kind, text), ranks in alike.items():
        yield _draft(kind, text, ranks, stands=ras.stands)
    if ras.num_behind and ras.stands is not False and not any(k in uneven for k, _ in alike):
        yield Draft(
            headline=f"{counted(ras.num_behind, 'rank')} launched fewer collectives than others",
            message="NCCL's output does not name them.",
            confidence=Confidence.INFERRED,
            evidence=("ras.num_behind",),
            severity=None if ras.stands else Severity.WARNING,
        )


def _draft(kind: str, text: str, troubled: Sequence[TroubledRank], *, stands: bool | None) -> Draft:
    ranks = sorted({one.rank for one in troubled if one.rank is not None})
    places = list(dict.fromkeys(one.place for one in troubled if one.place))
    where = f" ({few_names(places, _MAX_NAMED, '; ')})" if places else ""
    count = len(dict.fromkeys((one.rank, one.place) for one in troubled))
    who = name_ranks(ranks) if ranks else counted(count, "process")
    is_sure = kind in ("dead", "error") or (kind in ("behind", "ahead") and bool(stands))
    is_bad = is_sure and text != _REMOTE
    words = table_beside(__package__, "troubles.toml")[kind]
    message = words["message"].format(who=who, text=text, where=where)
    number = counted(count, "process" if not ranks else "rank")
    return Draft(
        headline=words["headline"].format(
            number=number, who=few_ranks(ranks) if ranks else "rank unknown"
        ),
        message=capitalized(f"{message}."),
        fix=words["fix"],
        confidence=Confidence.MEASURED if is_sure else Confidence.INFERRED,
        ranks=tuple(ranks),
        evidence=("ras.troubled",),
        severity=None if is_bad or kind == "unresponsive" else Severity.WARNING,
    )
