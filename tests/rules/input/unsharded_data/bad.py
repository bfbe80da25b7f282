"""Eight replicas begin with the same batch, drawn from the whole dataset."""

from distprof.sections.settings.result import SettingsResult
from distprof.sections.stragglers.result import MessagesResult
from tests.rules.samples import Results, changed, healthy, loader, settings


def results() -> Results:
    same = loader(sampler="SequentialSampler", is_plain=True, shuffle=None, num_first_batches=1)
    results = changed(healthy(), MessagesResult, ranks=())
    return {**results, SettingsResult: settings(loaders=(same,))}
