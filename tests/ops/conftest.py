"""What is collected here: the CUDA tests only where there is a GPU."""

import torch

collect_ignore = [] if torch.cuda.is_available() else ["test_cuda.py"]
