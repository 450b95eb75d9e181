"""AdamW against torch.optim.AdamW, with settings that change from step to step."""

from __future__ import annotations

import pytest
import torch

from tinkerlab.rehearsal.engine.optimizer import AdamW
from tinkerlab.rehearsal.engine.types import AdamSettings

SCHEDULES = {
    "defaults": [AdamSettings()] * 5,
    "changing rate": [AdamSettings(learning_rate=r) for r in (1e-2, 5e-3, 0.0, 2e-2, 1e-3)],
    "weight decay": [AdamSettings(learning_rate=1e-2, weight_decay=w) for w in (0.1, 0.5, 0, 1, 2)],
    "clipping": [
        AdamSettings(learning_rate=1e-2, grad_clip_norm=c) for c in (0.5, 1e9, 0.0, -1.0, 0.01)
    ],
    "betas and eps": [
        AdamSettings(learning_rate=1e-2, beta1=0.5, beta2=0.999, eps=1e-3),
        AdamSettings(learning_rate=1e-2, beta1=0.0, beta2=0.0, eps=1.0),
        AdamSettings(learning_rate=1e-2, beta1=0.99, beta2=0.9, eps=1e-8),
        AdamSettings(learning_rate=1e-2),
        AdamSettings(learning_rate=1e-2, weight_decay=0.3, grad_clip_norm=0.3),
    ],
}


@pytest.mark.parametrize("schedule", SCHEDULES.values(), ids=SCHEDULES)
@pytest.mark.parametrize("size", [7, 1 << 19])
def test_equals_torch(schedule: list[AdamSettings], size: int) -> None:
    generator = torch.Generator().manual_seed(0)
    start = torch.randn(size, generator=generator)
    mine, theirs = start.clone(), start.clone().requires_grad_(True)
    optimizer = AdamW()
    torch_optimizer = torch.optim.AdamW([theirs], foreach=False)
    for settings in schedule:
        gradient = torch.randn(size, generator=generator) * 3
        norm = optimizer.step(mine, gradient.clone(), settings)
        assert norm == pytest.approx(float(gradient.norm()), rel=1e-5)

        theirs.grad = gradient.clone()
        if settings.grad_clip_norm > 0:
            torch.nn.utils.clip_grad_norm_([theirs], settings.grad_clip_norm)
        torch_optimizer.param_groups[0].update(
            lr=settings.learning_rate,
            betas=(settings.beta1, settings.beta2),
            eps=settings.eps,
            weight_decay=settings.weight_decay,
        )
        torch_optimizer.step()
        torch.testing.assert_close(mine, theirs.detach(), rtol=1e-6, atol=1e-7)
    assert optimizer.steps == len(schedule)
