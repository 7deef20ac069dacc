import signal

import torch
from hypothesis import settings

# The suite runs in several processes: one thread each. Without deadlines, since the machines of CI are shared.
torch.set_num_threads(1)
settings.register_profile("suite", deadline=None, derandomize=True, max_examples=60)
settings.load_profile("suite")

# A shell that starts the suite in the background has it ignore Ctrl-C, which some of the tests are about.
signal.signal(signal.SIGINT, signal.default_int_handler)
