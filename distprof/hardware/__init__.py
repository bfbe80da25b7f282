"""The hardware sheet: peak speeds of GPUs and links. ``distprof.toml`` can extend it."""

from distprof.hardware.sheet import Gpu, Link, Sheet, load_sheet, parse_bandwidth

__all__ = ["Gpu", "Link", "Sheet", "load_sheet", "parse_bandwidth"]
