"""The verbs ``distprof capture`` and ``distprof attach``. Importing them does not import torch."""
