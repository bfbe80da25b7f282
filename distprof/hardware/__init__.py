"""The hardware sheet: peak speeds of GPUs and links, which ``distprof.toml`` can extend."""

from distprof.hardware.sheet import Gpu, Link, Sheet, load_sheet, parse_bandwidth

__all__ = ["Gpu", "Link", "Sheet", "load_sheet", "parse_bandwidth"]
