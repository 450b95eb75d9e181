"""Distillation: a student learns a teacher's distribution, on its own samples or the teacher's."""
