"""One epoch so far, and an evaluation that keeps its order."""

from distprof.sections.settings.result import SettingsResult
from tests.rules.samples import Results, healthy, loader, settings


def results() -> Results:
    loaders = (
        loader(num_epochs=1, num_orders=1),
        loader(shuffle=False, num_epochs=3, num_orders=1),
    )
    return {**healthy(), SettingsResult: settings(loaders=loaders)}
