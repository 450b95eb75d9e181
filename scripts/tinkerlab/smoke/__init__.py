"""Families of models x training methods: one short real run of each, judged, in one report."""
