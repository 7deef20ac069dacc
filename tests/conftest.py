import torch
from hypothesis import settings

# The suite runs in several processes: one thread each. Without deadlines, since the machines of CI are shared.
torch.set_num_threads(1)
settings.register_profile("suite", deadline=None, derandomize=True, max_examples=60)
settings.load_profile("suite")
