"""Three epochs in the same order."""

from distprof.sections.settings.result import SettingsResult
from tests.rules.samples import Results, healthy, loader, settings


def results() -> Results:
    return {**healthy(), SettingsResult: settings(loaders=(loader(num_orders=1),))}
