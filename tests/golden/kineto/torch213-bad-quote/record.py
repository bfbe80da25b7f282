import sys

import torch
from torch.profiler import ProfilerActivity, profile, record_function

with profile(activities=[ProfilerActivity.CPU], record_shapes=True) as p:
    with record_function('load "train" split'):
        torch.randn(8, 8) @ torch.randn(8, 8)
    torch.ones(4).sum()
p.export_chrome_trace(sys.argv[1])
