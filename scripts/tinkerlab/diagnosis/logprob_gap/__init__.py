"""Do sampler and trainer give the same tokens the same logprobs?"""
