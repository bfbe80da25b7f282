"""Analysis across ranks that reads no files: matching, clocks, capture windows."""
