"""Is the service there, does it take this key, and can this model be trained now?"""
