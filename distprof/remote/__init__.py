"""Files behind URLs: object stores, web servers, and whatever else fsspec can open."""
