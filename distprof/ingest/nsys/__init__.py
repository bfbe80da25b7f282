"""Exports of Nsight Systems: a database of one or several processes, read as their traces."""
