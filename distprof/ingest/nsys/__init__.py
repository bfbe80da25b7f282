"""Exports of Nsight Systems: databases of one or several processes, read as their traces."""
