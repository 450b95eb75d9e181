"""Healthy training scripts in the styles in which people write them."""

STYLES: dict[str, str] = {}

STYLES["sync_script"] = """
import tinker
from tinker import types

svc = tinker.ServiceClient()
tc = svc.create_lora_training_client(base_model="Qwen/Qwen3-8B-Base", rank=16).result()
tokenizer = tc.get_tokenizer()

def datum(text):
    tokens = tokenizer.encode(text)
    return types.Datum(
        model_input=types.ModelInput.from_ints(tokens[:-1]),
        loss_fn_inputs={"target_tokens": tokens[1:], "weights": [1.0] * (len(tokens) - 1)},
    )

data = [datum(line) for line in open("lines.txt")]
for step in range(10):
    fb = tc.forward_backward(data, "cross_entropy")
    opt = tc.optim_step(types.AdamParams(learning_rate=1e-4))
    result = fb.result()
    opt.result()
    print(step, result.metrics["loss:sum"])
tc.save_state("final").result()
"""

STYLES["async_main"] = """
import asyncio
import tinker as tk

async def main():
    svc = tk.ServiceClient()
    tc = await svc.create_lora_training_client(base_model="meta-llama/Llama-3.1-8B", rank=8)
    params = tk.AdamParams(learning_rate=1e-4)
    for batch in load():
        fb = tc.forward_backward(batch, "cross_entropy")
        opt = tc.optim_step(params)
        out, _ = await asyncio.gather(fb, opt)
        print(out.metrics)
    path = (await tc.save_weights_for_sampler("final")).path
    sampler = await svc.create_sampling_client(model_path=path)
    replies = await asyncio.gather(*[sampler.sample(p, 1, PARAMS) for p in PROMPTS])
    print(replies)

if __name__ == "__main__":
    asyncio.run(main())
"""

STYLES["trainer_class"] = """
from tinker import AdamParams, ServiceClient

class Trainer:
    def __init__(self, model, lr):
        self.service = ServiceClient()
        self.tc = self.service.create_lora_training_client(base_model=model, rank=32).result()
        self.sampler = self.tc.save_weights_and_get_sampling_client().result()
        self.lr = lr

    def step(self, batch):
        fb = self.tc.forward_backward(batch, loss_fn="ppo")
        opt = self.tc.optim_step(AdamParams(learning_rate=self.lr))
        return fb.result(), opt.result()

    def refresh(self):
        self.sampler = self.tc.save_weights_and_get_sampling_client().result()

    def rollouts(self, prompts, params):
        futures = [self.sampler.sample(p, num_samples=4, sampling_params=params) for p in prompts]
        return [future.result() for future in futures]

    def train(self, batches, params):
        for prompts in batches:
            self.refresh()
            self.step(make_batch(self.rollouts(prompts, params)))
        self.tc.save_state("final").result()

if __name__ == "__main__":
    Trainer("Qwen/Qwen3-8B", 1e-4).train(load(), None)
"""

STYLES["helpers_and_old_submits"] = """
import asyncio
import tinker
from tinker import types

async def train_step(training_client: tinker.TrainingClient, batch, adam):
    fb = await training_client.forward_backward_async(batch, "cross_entropy")
    opt = await training_client.optim_step_async(adam)
    loss = await fb
    await opt
    return loss

async def evaluate(sampling_client, prompts, params):
    async def one(prompt):
        reply = await sampling_client.sample_async(prompt, 1, params)
        return reply.sequences[0].tokens
    return await asyncio.gather(*(one(p) for p in prompts))
"""

STYLES["rl_loop"] = """
import tinker
from tinker_cookbook import checkpoint_utils, model_info, renderers

def main(config):
    svc = tinker.ServiceClient(base_url=config.base_url)
    tc = svc.create_lora_training_client(base_model=config.model, rank=32).result()
    tokenizer = tc.get_tokenizer()
    name = model_info.get_recommended_renderer_name(config.model)
    renderer = renderers.get_renderer(name, tokenizer)
    for index in range(config.steps):
        sampler = tc.save_weights_and_get_sampling_client().result()
        futures = []
        for row in rows(index):
            prompt = renderer.build_generation_prompt(row["messages"])
            futures.append(sampler.sample(prompt, num_samples=8, sampling_params=config.params))
        data = []
        for row, future in zip(rows(index), futures):
            for sequence in future.result().sequences:
                message, ending = renderer.parse_response(sequence.tokens)
                if ending.is_clean and not ending.is_stop_sequence:
                    print("eos")
                data.append(to_datum(row, sequence, reward(message)))
        fb = tc.forward_backward(data, loss_fn="importance_sampling")
        step = tc.optim_step(tinker.AdamParams(learning_rate=1e-5))
        fb.result(), step.result()
        if index % 20 == 0:
            checkpoint_utils.save_checkpoint(tc, f"{index:06d}", config.log_path, {"batch": index})
"""

STYLES["multi_turn"] = """
import tinker

async def play(sampler: tinker.SamplingClient, renderer, env, params):
    messages = [{"role": "user", "content": env.start()}]
    for _ in range(8):
        prompt = renderer.build_generation_prompt(messages)
        reply = await sampler.sample(prompt=prompt, num_samples=1, sampling_params=params)
        message, ending = renderer.parse_response(reply.sequences[0].tokens)
        messages.append(message)
        messages.append({"role": "user", "content": env.answer(message)})
    return messages

async def best_of(sampler: tinker.SamplingClient, prompt, params):
    for seed in range(16):
        reply = await sampler.sample(prompt=prompt, num_samples=1, sampling_params=params)
        if good(reply.sequences[0].tokens):
            return reply
"""

STYLES["gradient_guard"] = """
import math
import tinker

def train(tc: tinker.TrainingClient, batches, adam):
    for batch in batches:
        out = tc.forward_backward(batch, "cross_entropy").result()
        if math.isnan(out.metrics["loss:sum"]):
            raise SystemExit("NaN")
        tc.optim_step(adam).result()

def scaled(tc: tinker.TrainingClient, batches):
    for batch in batches:
        out = tc.forward_backward(batch, "cross_entropy").result()
        lr = 1e-4 / (1 + out.metrics["loss:sum"])
        tc.optim_step(tinker.AdamParams(learning_rate=lr)).result()
"""

STYLES["accumulate_and_pipeline"] = """
import tinker

def train(training_client: tinker.TrainingClient, batches, params):
    pending = None
    for batch in batches:
        futures = [training_client.forward_backward(part, "cross_entropy") for part in split(batch)]
        step = training_client.optim_step(params)
        if pending is not None:
            for future in pending[0]:
                print(future.result().metrics)
            pending[1].result()
        pending = futures, step
    for future in pending[0]:
        future.result()
    pending[1].result()
"""

STYLES["dpo_reference"] = """
import asyncio
import tinker

async def train(svc: tinker.ServiceClient, pairs, adam, loss):
    tc = await svc.create_lora_training_client(base_model="Qwen/Qwen3-8B", rank=32)
    reference = await tc.save_weights_and_get_sampling_client()
    for batch in pairs:
        ref = await asyncio.gather(*[reference.compute_logprobs(seq) for seq in batch.sequences])
        fb = tc.forward_backward_custom(batch.data(ref), loss)
        opt = tc.optim_step(adam)
        await fb
        await opt
    await tc.save_state("final")
"""

STYLES["resume_rightly"] = """
import tinker
from tinker_cookbook import checkpoint_utils

def start(svc: tinker.ServiceClient, cfg):
    last = checkpoint_utils.get_last_checkpoint(cfg.log_path)
    if last is not None:
        return svc.create_training_client_from_state_with_optimizer(last.state_path).result()
    if cfg.load_checkpoint_path:
        return svc.create_training_client_from_state(cfg.load_checkpoint_path).result()
    return svc.create_lora_training_client(base_model=cfg.model_name, rank=32).result()

def sample_it(svc: tinker.ServiceClient, cfg):
    last = checkpoint_utils.get_last_checkpoint(cfg.log_path, required_key="sampler_path")
    return svc.create_sampling_client(model_path=last.sampler_path).result()
"""

STYLES["cookbook_config"] = """
import asyncio
import sys
import chz
from tinker_cookbook import cli_utils, model_info
from tinker_cookbook.rl import train

def build(model_name):
    renderer_name = model_info.get_recommended_renderer_name(model_name)
    return train.Config(
        recipe_name="mine",
        model_name=model_name,
        learning_rate=1e-5,
        dataset_builder=Builder(renderer_name=renderer_name),
        log_path="runs/mine",
        max_tokens=512,
    )

if __name__ == "__main__":
    config = build(sys.argv[1])
    cli_utils.check_log_dir(config.log_path, behavior_if_exists="resume")
    asyncio.run(train.main(config))
"""

STYLES["before_and_after"] = """
import tinker

svc = tinker.ServiceClient()
tc = svc.create_lora_training_client(base_model="Qwen/Qwen3-8B", rank=32).result()
first = tc.save_weights_and_get_sampling_client().result()

def ask(client, prompt, params):
    return client.sample(prompt, 1, params).result()

def compare(prompt, params, batches, adam):
    for batch in batches:
        fb, opt = tc.forward_backward(batch, "cross_entropy"), tc.optim_step(adam)
        fb.result(), opt.result()
    trained = tc.save_weights_and_get_sampling_client().result()
    print(ask(first, prompt, params), ask(trained, prompt, params))
"""

STYLES["periodic_refresh_clipped"] = """
import asyncio
import tinker

async def train(tc: tinker.TrainingClient, data, adam, params):
    sampler = await tc.save_weights_and_get_sampling_client()
    for step, prompts in enumerate(data):
        if step and step % 4 == 0:
            sampler = await tc.save_weights_and_get_sampling_client()
        groups = await asyncio.gather(*[sampler.sample(p, 8, params) for p in prompts])
        batch = build(groups)
        fb = tc.forward_backward(batch, "ppo", loss_fn_config={"clip_low_threshold": 0.8})
        opt = tc.optim_step(adam)
        await fb
        await opt
"""

STYLES["own_code_has_its_timeouts"] = """
import asyncio
import random
import time
import tinker

async def run_tests(sandbox, code):
    for attempt in range(3):
        try:
            return await asyncio.wait_for(sandbox.run(code), timeout=30)
        except asyncio.TimeoutError:
            await asyncio.sleep(1)

async def chat(sampler: tinker.SamplingClient, params):
    while True:
        try:
            prompt = build(input("> "))
            reply = await sampler.sample(prompt=prompt, num_samples=1, sampling_params=params)
            print(reply)
        except Exception as error:
            print(error)

def pick(rows):
    for _ in range(3):
        yield random.sample(rows, 4)

def batches(rows):
    for row in rows:
        try:
            yield parse(row)
        except ValueError:
            continue
"""

STYLES["torch_beside"] = """
import torch
import tinker

class Net(torch.nn.Module):
    def forward(self, x):
        return self.layer(x)

def fit(model, loader, optimizer):
    for x, y in loader:
        loss = torch.nn.functional.mse_loss(model.forward(x), y)
        loss.backward()
        optimizer.step()
        print(loss.item())

def update(tc: tinker.TrainingClient, data_D, params, eps: float):
    fb = tc.forward_backward(data_D, "ppo", {"clip_low_threshold": 1 - eps})
    opt = tc.optim_step(params)
    return fb.result().metrics["loss:sum"], opt.result()
"""

STYLES["bounded_workers"] = """
import asyncio
import tinker

async def worker(queue, sampler: tinker.SamplingClient, params, out):
    while True:
        prompt = await queue.get()
        try:
            out.append(await sampler.sample(prompt=prompt, num_samples=1, sampling_params=params))
        except ValueError:
            pass
        queue.task_done()

async def limited(sampler: tinker.SamplingClient, prompts, params):
    gate = asyncio.Semaphore(64)

    async def one(prompt):
        async with gate:
            return await sampler.sample(prompt=prompt, num_samples=1, sampling_params=params)

    tasks = [asyncio.create_task(one(p)) for p in prompts]
    return [await task for task in tasks]

async def chunks(sampler: tinker.SamplingClient, prompts, params):
    out = []
    for start in range(0, len(prompts), 64):
        futures = [sampler.sample(p, 1, params) for p in prompts[start : start + 64]]
        out += [await f for f in futures]
    return out

async def group(sampler: tinker.SamplingClient, prompts, params):
    async with asyncio.TaskGroup() as tasks:
        made = [tasks.create_task(sampler.sample(p, 1, params).coroutine()) for p in prompts]
    return [task.result() for task in made]
"""
