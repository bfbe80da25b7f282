"""What devices and links can do: the hardware sheet, which ``distprof.toml`` can extend."""

from distprof.hardware.sheet import Gpu, Link, Sheet, load_sheet, parse_bandwidth

__all__ = ["Gpu", "Link", "Sheet", "load_sheet", "parse_bandwidth"]
