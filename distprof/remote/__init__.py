"""Files behind URLs: object stores, web servers, and everything else that fsspec can open."""
