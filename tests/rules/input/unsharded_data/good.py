"""A plain sampler over a part of the data that each rank cut for itself."""

from distprof.sections.settings.result import SettingsResult
from distprof.sections.stragglers.result import MessagesResult
from tests.rules.samples import Results, changed, healthy, loader, settings


def results() -> Results:
    other = loader(sampler="SequentialSampler", is_plain=True, shuffle=None)
    results = changed(healthy(), MessagesResult, ranks=())
    return {**results, SettingsResult: settings(loaders=(other,))}
