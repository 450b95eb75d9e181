"""For each cause: ways in which people write it, and the same thing written rightly."""

HEAD = """
import asyncio
import tinker
from tinker import types
import tinker_cookbook
from tinker_cookbook import checkpoint_utils, cli_utils, renderers, weights
from tinker_cookbook.renderers import get_renderer
from tinker_cookbook.supervised import train
"""

# (cause, script): HEAD is put before each.
FAULTS: list[tuple[str, str]] = []
NEIGHBOURS: list[str] = []


def case(cause: str, *faulty: str, healthy: tuple[str, ...] = ()) -> None:
    FAULTS.extend((cause, code) for code in faulty)
    NEIGHBOURS.extend(healthy)


case(
    "wait-before-submit",
    """
def train(tc: tinker.TrainingClient, batches, adam):
    for batch in batches:
        tc.forward_backward(batch, "cross_entropy").result()
        tc.optim_step(adam).result()
""",
    """
async def train(training_client, batches, adam):
    for batch in batches:
        out = await training_client.forward_backward(batch, loss_fn="cross_entropy")
        await training_client.optim_step(adam)
        print(out.metrics)
""",
    """
async def train(training_client, batches, adam):
    for batch in batches:
        future = await training_client.forward_backward_async(batch, "cross_entropy")
        out = await future
        step = await training_client.optim_step_async(adam)
        await step
""",
    """
async def train(training_client, batches, adam):
    for batch in batches:
        out = await (await training_client.forward_backward_async(batch, "cross_entropy"))
        await (await training_client.optim_step_async(adam))
""",
    """
async def train(tc, batches, adam):
    for batch in batches:
        fb = await tc.forward_backward_async(batch, "cross_entropy")
        out = await fb.result_async()
        opt = await tc.optim_step_async(adam)
        await opt.result_async()
""",
    """
class Trainer:
    def __init__(self):
        self.client = tinker.ServiceClient().create_lora_training_client(base_model="m").result()

    def backward(self, batch):
        return self.client.forward_backward(batch, "cross_entropy").result()

    def step(self, adam):
        return self.client.optim_step(adam).result()

    def fit(self, batches, adam):
        for batch in batches:
            self.backward(batch)
            self.step(adam)
""",
    """
def backward(tc, batch):
    future = tc.forward_backward(batch, "cross_entropy")
    return future.result()

def train(tc, batches, adam):
    for batch in batches:
        loss = backward(tc, batch).metrics["loss:sum"]
        future = tc.optim_step(adam)
        future.result()
        print(loss)
""",
    """
def accumulate(tc: tinker.TrainingClient, parts, adam):
    for part in parts:
        tc.forward_backward(part, "cross_entropy").result()
    tc.optim_step(adam).result()
""",
    """
async def accumulate(tc: tinker.TrainingClient, parts, adam):
    outs = [await tc.forward_backward(part, "cross_entropy") for part in parts]
    await tc.optim_step(adam)
    return outs
""",
    """
async def accumulate(tc: tinker.TrainingClient, parts, adam):
    outs = await asyncio.gather(*[tc.forward_backward(part, "cross_entropy") for part in parts])
    await tc.optim_step(adam)
""",
    """
def custom(tc: tinker.TrainingClient, data, loss, adam):
    out = tc.forward_backward_custom(data, loss).result()
    tc.optim_step(adam).result()
""",
    """
svc = tinker.ServiceClient()
client = svc.create_lora_training_client(base_model="m", rank=8).result()
for batch in load():
    fb = client.forward_backward(data=batch, loss_fn="cross_entropy")
    result = fb.result()
    print(result.metrics)
    opt = client.optim_step(types.AdamParams(learning_rate=1e-4))
    opt.result()
client.save_state("end").result()
""",
    """
def evaluate(tc: tinker.TrainingClient, batches):
    return [tc.forward(batch, "cross_entropy").result().metrics for batch in batches]
""",
    """
async def run(tc: tinker.TrainingClient, batches, adam):
    for batch in batches:
        task = asyncio.create_task(tc.forward_backward(batch, "cross_entropy").coroutine())
        await task
        await tc.optim_step(adam)
""",
    healthy=(
        """
def evaluate(tc: tinker.TrainingClient, batches):
    futures = [tc.forward(batch, "cross_entropy") for batch in batches]
    return [future.result().metrics for future in futures]
""",
        """
async def train(tc: tinker.TrainingClient, batches, adam):
    for batch in batches:
        fb = tc.forward_backward(batch, "cross_entropy")
        opt = tc.optim_step(adam)
        await fb
        await opt
        await tc.save_state("latest", ttl_seconds=86400)
""",
    ),
)

case(
    "coroutine-result",
    """
def train(tc: tinker.TrainingClient, batch, adam):
    fb = tc.forward_backward_async(batch, "cross_entropy")
    opt = tc.optim_step_async(adam)
    print(fb.result(), opt.result())
""",
    """
def draw(sampling_client, prompt, params):
    return sampling_client.sample_async(prompt, 1, params).result()
""",
    """
def draw(sampler: tinker.SamplingClient, prompts, params):
    futures = [sampler.sample_async(p, 1, params) for p in prompts]
    return [future.result() for future in futures]
""",
    """
def save(tc: tinker.TrainingClient):
    return tc.save_state_async("x").result().path
""",
    """
async def one(tc: tinker.TrainingClient, batch):
    return await tc.forward_backward(batch, "cross_entropy")

def train(tc, batch):
    return one(tc, batch).result()
""",
    healthy=(
        """
def train(tc: tinker.TrainingClient, batch, adam):
    fb = tc.forward_backward(batch, "cross_entropy")
    opt = tc.optim_step(adam)
    print(fb.result(), opt.result())
""",
        """
async def one(tc: tinker.TrainingClient, batch):
    return await tc.forward_backward(batch, "cross_entropy")

def train(tc, batch, loop):
    return asyncio.run_coroutine_threadsafe(one(tc, batch), loop).result()
""",
    ),
)

case(
    "coroutine-never-awaited",
    """
async def save(tc: tinker.TrainingClient):
    tc.save_state_async("step-10")
""",
    healthy=(
        """
async def save(tc: tinker.TrainingClient):
    tc.save_state("step-10")
""",
    ),
)

case(
    "deprecated-async",
    """
async def draw(sampling_client, prompt, params):
    return await sampling_client.sample_async(prompt=prompt, num_samples=1, sampling_params=params)
""",
    """
async def start():
    svc = tinker.ServiceClient()
    return await svc.create_lora_training_client_async(base_model="m", rank=8)
""",
    """
async def train(tc, batches, adam):
    for batch in batches:
        fb = await tc.forward_backward_async(batch, "cross_entropy")
        opt = await tc.optim_step_async(adam)
        await fb
        await opt
""",
    healthy=(
        """
async def start():
    svc = tinker.ServiceClient()
    return await svc.create_lora_training_client(base_model="m", rank=8)
""",
    ),
)

case(
    "deprecated-call",
    """
svc = tinker.ServiceClient()
rest = svc.create_rest_client()
print(rest.list_training_runs().result())
""",
    """
def back(tc: tinker.TrainingClient, path):
    tc.load_state_with_optimizer(path).result()
""",
    healthy=("rest = tinker.RestClient()\nprint(rest.list_training_runs().result())\n",),
)

case(
    "client-future-unresolved",
    """
svc = tinker.ServiceClient()
tc = svc.create_lora_training_client(base_model="m", rank=8)
future = tc.forward_backward(load(), "cross_entropy")
print(future.result())
""",
    """
def draw(tc: tinker.TrainingClient, prompt, params):
    sampler = tc.save_weights_and_get_sampling_client()
    return sampler.sample(prompt, 1, params).result()
""",
    healthy=(
        """
def draw(tc: tinker.TrainingClient, prompt, params):
    sampler = tc.save_weights_and_get_sampling_client().result()
    return sampler.sample(prompt, 1, params).result()
""",
    ),
)

case(
    "sequential-samples",
    """
async def score(sampler: tinker.SamplingClient, prompts, params):
    out = []
    for prompt in prompts:
        out.append(await sampler.sample(prompt=prompt, num_samples=1, sampling_params=params))
    return out
""",
    """
def score(sampling_client, prompts, params):
    return [sampling_client.sample(p, 1, params).result() for p in prompts]
""",
    """
async def score(sampling_client, prompts, params):
    total = 0
    for index, prompt in enumerate(prompts):
        reply = await sampling_client.sample_async(prompt, 1, params)
        total += grade(index, reply)
    return total
""",
    """
async def ask(sampler, prompt, params):
    reply = await sampler.sample(prompt=prompt, num_samples=1, sampling_params=params)
    return reply.sequences[0].tokens

async def score(sampler, prompts, params):
    replies = []
    for prompt in prompts:
        replies.append(await ask(sampler, prompt, params))
    return replies
""",
    """
class Evaluator:
    def __init__(self, sampling_client: tinker.SamplingClient):
        self.sampling_client = sampling_client

    async def run(self, rows, params):
        for row in rows:
            future = self.sampling_client.sample(row["prompt"], 1, params)
            row["reply"] = await future
        return rows
""",
    """
def group(svc: tinker.ServiceClient, prompt, params):
    sampler = svc.create_sampling_client(base_model="m").result()
    return [sampler.sample(prompt, 1, params).result() for _ in range(8)]
""",
    """
def logprobs(sampler: tinker.SamplingClient, sequences):
    out = []
    for sequence in sequences:
        out.append(sampler.compute_logprobs(sequence).result())
    return out
""",
    """
async def late(sampler: tinker.SamplingClient, prompts, params):
    coroutines = [sampler.sample_async(p, 1, params) for p in prompts]
    return [await coroutine for coroutine in coroutines]
""",
    healthy=(
        """
def group(svc: tinker.ServiceClient, prompt, params):
    sampler = svc.create_sampling_client(base_model="m").result()
    return sampler.sample(prompt, 8, params).result()
""",
        """
def score(sampling_client, prompts, params):
    futures = [sampling_client.sample(p, 1, params) for p in prompts]
    return [future.result() for future in futures]
""",
    ),
)

case(
    "stale-sampler",
    """
def train(tc: tinker.TrainingClient, prompts, adam, params):
    sampler = tc.save_weights_and_get_sampling_client().result()
    for prompt in prompts:
        batch = build(sampler.sample(prompt, 8, params).result())
        fb, opt = tc.forward_backward(batch, "ppo"), tc.optim_step(adam)
        fb.result(), opt.result()
""",
    """
async def main():
    svc = tinker.ServiceClient()
    tc = await svc.create_lora_training_client(base_model="m", rank=8)
    path = (await tc.save_weights_for_sampler("step0")).path
    policy = await svc.create_sampling_client(model_path=path)
    for step in range(50):
        groups = await asyncio.gather(*[policy.sample(p, 8, PARAMS) for p in PROMPTS])
        fb = tc.forward_backward(build(groups), "importance_sampling")
        opt = tc.optim_step(ADAM)
        await fb
        await opt
        await tc.save_weights_for_sampler(f"step{step + 1}")
""",
    """
class Trainer:
    def __init__(self, tc: tinker.TrainingClient):
        self.tc = tc
        self.sampler = tc.save_weights_and_get_sampling_client().result()

    def update(self, batch, adam):
        fb = self.tc.forward_backward(batch, "ppo")
        opt = self.tc.optim_step(adam)
        fb.result(), opt.result()

    def train(self, prompts, params, adam):
        for prompt in prompts:
            self.update(build(self.sampler.sample(prompt, 8, params).result()), adam)
""",
    """
def evaluate_after(tc: tinker.TrainingClient, batches, adam, prompt, params):
    sampler = tc.save_weights_and_get_sampling_client().result()
    for batch in batches:
        fb, opt = tc.forward_backward(batch, "cross_entropy"), tc.optim_step(adam)
        fb.result(), opt.result()
    return sampler.sample(prompt, 1, params).result()
""",
    """
async def rl(training_client, sampling_client, prompts, adam, params):
    for prompt in prompts:
        reply = await sampling_client.sample(prompt=prompt, num_samples=8, sampling_params=params)
        fb = training_client.forward_backward(build(reply), "ppo")
        opt = training_client.optim_step(adam)
        await fb
        await opt
""",
    """
async def rl(training_client, prompts, adam, params):
    sampling_client = await training_client.save_weights_and_get_sampling_client_async()
    for prompt in prompts:
        reply = await sampling_client.sample_async(prompt, 8, params)
        fb = await training_client.forward_backward_async(build(reply), "ppo")
        opt = await training_client.optim_step_async(adam)
        await fb
        await opt
        new_client = await training_client.save_weights_and_get_sampling_client_async()
""",
    healthy=(
        """
def train(tc: tinker.TrainingClient, prompts, adam, params):
    for prompt in prompts:
        sampler = tc.save_weights_and_get_sampling_client().result()
        batch = build(sampler.sample(prompt, 8, params).result())
        fb, opt = tc.forward_backward(batch, "ppo"), tc.optim_step(adam)
        fb.result(), opt.result()
""",
        """
def distil(tc: tinker.TrainingClient, svc: tinker.ServiceClient, prompts, adam, params):
    teacher = svc.create_sampling_client(base_model="Qwen/Qwen3-32B").result()
    for chunk in prompts:
        replies = [f.result() for f in [teacher.sample(p, 1, params) for p in chunk]]
        fb, opt = tc.forward_backward(build(replies), "cross_entropy"), tc.optim_step(adam)
        fb.result(), opt.result()
""",
        """
async def rl(tc: tinker.TrainingClient, prompts, adam, params):
    sampler = await tc.save_weights_and_get_sampling_client(kind="inflight")
    for prompt in prompts:
        reply = await sampler.sample(prompt, 8, params)
        fb, opt = tc.forward_backward(build(reply), "ppo"), tc.optim_step(adam)
        await fb
        await opt
""",
    ),
)

case(
    "forward-without-backward",
    """
def train(tc: tinker.TrainingClient, batches, adam):
    for batch in batches:
        f = tc.forward(batch, "cross_entropy")
        o = tc.optim_step(adam)
        f.result(), o.result()
""",
    """
async def train(training_client, batches, adam):
    for batch in batches:
        fwd = await training_client.forward_async(batch, loss_fn="cross_entropy")
        opt = await training_client.optim_step_async(adam)
        await fwd
        await opt
""",
    healthy=(
        """
def train(tc: tinker.TrainingClient, batches, held_out, adam):
    for batch in batches:
        loss = tc.forward(held_out, "cross_entropy").result().metrics
        f = tc.forward_backward(batch, "cross_entropy")
        o = tc.optim_step(adam)
        f.result(), o.result()
""",
    ),
)

case(
    "encode-for-chat-model",
    """
svc = tinker.ServiceClient()
tc = svc.create_lora_training_client(base_model="openai/gpt-oss-20b", rank=8).result()
tokenizer = tc.get_tokenizer()

def datum(row):
    tokens = tokenizer.encode(row["question"] + row["answer"])
    return types.Datum(
        model_input=types.ModelInput.from_ints(tokens[:-1]),
        loss_fn_inputs={"target_tokens": tokens[1:]},
    )
""",
    """
from transformers import AutoTokenizer
MODEL = "Qwen/Qwen3-8B"
tok = AutoTokenizer.from_pretrained(MODEL)

async def ask(sampler: tinker.SamplingClient, question, params):
    prompt = tinker.ModelInput.from_ints(tok.encode(f"Question: {question}"))
    return await sampler.sample(prompt=prompt, num_samples=1, sampling_params=params)
""",
    """
MODEL = "meta-llama/Llama-3.1-8B-Instruct"

def ask(sampler: tinker.SamplingClient, tokenizer, question, params):
    ids = tokenizer.encode(question, add_special_tokens=True)
    return sampler.sample(types.ModelInput.from_ints(tokens=ids), 1, params).result()
""",
    healthy=(
        """
MODEL = "meta-llama/Llama-3.1-8B"

def ask(sampler: tinker.SamplingClient, tokenizer, question, params):
    ids = tokenizer.encode(question, add_special_tokens=True)
    return sampler.sample(types.ModelInput.from_ints(ids), 1, params).result()
""",
        """
MODEL = "Qwen/Qwen3-8B"

def ask(sampler: tinker.SamplingClient, tokenizer, messages, params):
    text = tokenizer.apply_chat_template(messages, tokenize=False, add_generation_prompt=True)
    ids = tokenizer.encode(text, add_special_tokens=False)
    return sampler.sample(types.ModelInput.from_ints(ids), 1, params).result()
""",
        """
MODEL = "Qwen/Qwen3-8B"

def ask(sampler: tinker.SamplingClient, tokenizer, renderer, messages, params):
    ids = renderer.build_generation_prompt(messages).to_ints() + tokenizer.encode("Sure:")
    return sampler.sample(types.ModelInput.from_ints(ids), 1, params).result()
""",
    ),
)

case(
    "hard-coded-renderer",
    """
def build(tokenizer):
    return renderers.get_renderer("llama3", tokenizer)
""",
    """
MODEL = "meta-llama/Llama-3.1-8B-Instruct"
RENDERER = "qwen3"
renderer = get_renderer(RENDERER, tokenizer_of(MODEL))
""",
    """
config = train.Config(
    recipe_name="x", model_name="Qwen/Qwen3-8B", renderer_name="qwen3", log_path="x",
    learning_rate=1e-4, dataset_builder=make(),
)
""",
    healthy=(
        """
from tinker_cookbook.model_info import get_recommended_renderer_name

def build(model_name, tokenizer):
    return renderers.get_renderer(get_recommended_renderer_name(model_name), tokenizer)
""",
    ),
)

case(
    "parse-success-truthiness",
    """
def reward(renderer, tokens):
    message, parse_success = renderer.parse_response(tokens)
    if not parse_success:
        return -1.0
    return grade(message)
""",
    """
def reward(renderer, tokens):
    message, ok = renderer.parse_response(tokens)
    return grade(message) if ok else 0.0
""",
    """
class Env:
    def step(self, action):
        message, success = self.renderer.parse_response(action)
        correct = bool(success) and check(message)
        return float(correct)
""",
    """
def reward(renderer, tokens):
    parsed = renderer.parse_response(tokens)
    if parsed[1]:
        return grade(parsed[0])
    return 0.0
""",
    """
def reward(renderer, tokens):
    message, ok = renderer.parse_response(tokens)
    if ok is False:
        return 0.0
    assert ok
    return grade(message)
""",
    healthy=(
        """
def reward(renderer, tokens):
    message, ending = renderer.parse_response(tokens)
    if not ending.is_clean:
        return -1.0
    return grade(message)
""",
        """
from tinker_cookbook.renderers import ParseTermination

def reward(renderer, tokens):
    message, ending = renderer.parse_response(tokens)
    if ending == ParseTermination.MALFORMED:
        return -1.0
    return grade(message)
""",
    ),
)

case(
    "missing-recipe-name",
    """
config = train.Config(log_path="x", model_name="m", dataset_builder=make(), learning_rate=1e-4)
""",
    """
from tinker_cookbook.rl.train import Config
config = Config(log_path="x", model_name="m", dataset_builder=make(), max_tokens=9, learning_rate=1)
""",
    """
import tinker_cookbook.preference.train_dpo as dpo
config = dpo.Config(log_path="x", model_name="m", dataset_builder=make())
""",
    """
import chz
blueprint = chz.Blueprint(train.Config).apply({"log_path": "x", "model_name": "m"})
asyncio.run(train.main(blueprint.make()))
""",
    healthy=(
        """
config = train.Config(recipe_name="mine", log_path="x", model_name="m", dataset_builder=make())
""",
        """
def build(**fields):
    return train.Config(log_path="x", **fields)
""",
    ),
)

case(
    "sampler-weights-download",
    """
weights.download(tinker_path="tinker://abc/sampler_weights/final", output_dir="adapter")
""",
    """
def fetch(tc: tinker.TrainingClient):
    path = tc.save_weights_for_sampler("final").result().path
    return weights.download(tinker_path=path, output_dir="adapter")
""",
    """
last = checkpoint_utils.get_last_checkpoint("runs/x")
weights.download(tinker_path=last.sampler_path, output_dir="adapter")
""",
    """
import subprocess
subprocess.run(["tinker", "checkpoint", "download", "tinker://abc/sampler_weights/final"])
""",
    """
from tinker_cookbook.weights import download
RUN = "abc"
download(tinker_path=f"tinker://{RUN}/sampler_weights/step-10", output_dir="adapter")
""",
    healthy=(
        """
weights.download(tinker_path="tinker://abc/weights/final", output_dir="adapter")
""",
        """
def fetch(tc: tinker.TrainingClient):
    path = tc.save_weights_external("final").result().path
    return weights.download(tinker_path=path, output_dir="adapter")
""",
    ),
)

case(
    "ask-log-dir",
    'cli_utils.check_log_dir("runs/x", behavior_if_exists="ask")\n',
    'cli_utils.check_log_dir("runs/x", "ask")\n',
    """
import chz

@chz.chz
class CLIConfig:
    behavior_if_log_dir_exists: cli_utils.LogdirBehavior = "ask"
""",
    healthy=('cli_utils.check_log_dir("runs/x", behavior_if_exists="raise")\n',),
)

case(
    "tensor-in-loss-config",
    """
import torch

def update(tc: tinker.TrainingClient, data, rewards):
    advantages = torch.tensor(rewards) - 0.5
    return tc.forward_backward(data, "ppo", loss_fn_config={"advantages": advantages})
""",
    """
import numpy as np

def update(tc: tinker.TrainingClient, data, x):
    config = {"clip_low_threshold": 0.8}
    config["scales"] = np.asarray(x)
    return tc.forward_backward(data, "ppo", config)
""",
    """
def update(tc: tinker.TrainingClient, data, x):
    return tc.forward_backward(data, "ppo", dict_of(x) or {"weights": x})
""",
    """
def update(tc: tinker.TrainingClient, data, masks):
    cfg = {"loss_mask": [float(m) for m in masks]}
    return tc.forward_backward(data=data, loss_fn="cross_entropy", loss_fn_config=cfg)
""",
    healthy=(
        """
import torch

def update(tc: tinker.TrainingClient, data, rewards):
    low = torch.tensor(rewards).min().item()
    return tc.forward_backward(data, "ppo", loss_fn_config={"clip_low_threshold": low})
""",
    ),
)

case(
    "loss-attribute",
    """
def train(tc: tinker.TrainingClient, batch, adam):
    fb, opt = tc.forward_backward(batch, "cross_entropy"), tc.optim_step(adam)
    print(fb.result().loss, opt.result())
""",
    """
async def train(training_client, batch, adam):
    fb = await training_client.forward_backward_async(batch, "cross_entropy")
    opt = await training_client.optim_step_async(adam)
    result = await fb
    await opt
    return result.loss.item()
""",
    """
def losses(tc: tinker.TrainingClient, batches):
    futures = [tc.forward(batch, "cross_entropy") for batch in batches]
    return [f.result().loss for f in futures]
""",
    healthy=(
        """
def train(tc: tinker.TrainingClient, batch, adam):
    fb, opt = tc.forward_backward(batch, "cross_entropy"), tc.optim_step(adam)
    print(fb.result().metrics["loss:sum"], opt.result())
""",
    ),
)

case(
    "home-made-timeout",
    """
async def draw(sampler: tinker.SamplingClient, prompt, params):
    return await asyncio.wait_for(sampler.sample(prompt, 1, params), timeout=60)
""",
    """
def train(tc: tinker.TrainingClient, batch, adam):
    fb, opt = tc.forward_backward(batch, "cross_entropy"), tc.optim_step(adam)
    return fb.result(timeout=120), opt.result()
""",
    """
async def draw(sampling_client, prompt, params):
    async with asyncio.timeout(30):
        return await sampling_client.sample(prompt=prompt, num_samples=1, sampling_params=params)
""",
    """
async def rollout(sampler, prompt, params):
    return await sampler.sample(prompt=prompt, num_samples=1, sampling_params=params)

async def guarded(sampler, prompt, params):
    return await asyncio.wait_for(rollout(sampler, prompt, params), 60)
""",
    """
async def draw(sampler: tinker.SamplingClient, prompt, params):
    return await asyncio.wait_for(sampler.sample_async(prompt, 1, params), 60)
""",
    healthy=(
        """
def start(svc: tinker.ServiceClient):
    return svc.create_lora_training_client(base_model="m", rank=8).result(timeout=300)
""",
        """
async def graded(sandbox, sampler: tinker.SamplingClient, prompt, params):
    reply = await sampler.sample(prompt=prompt, num_samples=1, sampling_params=params)
    async with asyncio.timeout(30):
        return await sandbox.run(reply.sequences[0].tokens)
""",
    ),
)

case(
    "home-made-retry",
    """
import time

def draw(sampler: tinker.SamplingClient, prompt, params):
    for attempt in range(5):
        try:
            return sampler.sample(prompt, 1, params).result()
        except Exception:
            time.sleep(2**attempt)
""",
    """
from tenacity import retry, stop_after_attempt

@retry(stop=stop_after_attempt(3))
async def step(tc: tinker.TrainingClient, batch, adam):
    fb, opt = tc.forward_backward(batch, "cross_entropy"), tc.optim_step(adam)
    await fb
    await opt
""",
    """
import backoff

@backoff.on_exception(backoff.expo, Exception, max_tries=5)
def draw(sampler: tinker.SamplingClient, prompt, params):
    return sampler.sample(prompt, 1, params).result()
""",
    """
async def train(tc: tinker.TrainingClient, batches, adam):
    for batch in batches:
        while True:
            try:
                fb, opt = tc.forward_backward(batch, "cross_entropy"), tc.optim_step(adam)
                await fb
                await opt
                break
            except tinker.APIStatusError:
                await asyncio.sleep(5)
""",
    """
def with_retry(make, tries=3):
    for attempt in range(tries):
        try:
            return make()
        except Exception as error:
            print(error)

def draw(sampler: tinker.SamplingClient, prompt, params):
    return with_retry(lambda: sampler.sample(prompt, 1, params).result())
""",
    """
import tenacity

async def draw(sampler: tinker.SamplingClient, prompt, params):
    async for attempt in tenacity.AsyncRetrying():
        with attempt:
            return await sampler.sample(prompt, 1, params)
""",
    healthy=(
        """
def draw(sampler: tinker.SamplingClient, prompt, params):
    try:
        return sampler.sample(prompt, 1, params).result()
    except tinker.TinkerError as error:
        raise SystemExit(f"sampling failed: {error}")
""",
        """
import json

def valid(sampler: tinker.SamplingClient, prompt, params, tokenizer):
    for attempt in range(3):
        reply = sampler.sample(prompt, 1, params).result()
        try:
            return json.loads(tokenizer.decode(reply.sequences[0].tokens))
        except json.JSONDecodeError:
            continue
""",
    ),
)

case(
    "weights-only-resume",
    """
def start(svc: tinker.ServiceClient, args):
    if args.resume:
        return svc.create_training_client_from_state(args.path).result()
    return svc.create_lora_training_client(base_model="m", rank=8).result()
""",
    """
svc = tinker.ServiceClient()
last = checkpoint_utils.get_last_checkpoint("runs/x")
tc = svc.create_training_client_from_state(last.state_path).result()
for step in range(last.batch, 100):
    fb, opt = tc.forward_backward(load(step), "cross_entropy"), tc.optim_step(ADAM)
    fb.result(), opt.result()
tc.save_state("end").result()
""",
    """
async def go_on(svc: tinker.ServiceClient, resume_path):
    return await svc.create_training_client_from_state_async(resume_path)
""",
    """
def go_on(tc: tinker.TrainingClient, latest_checkpoint):
    tc.load_state(latest_checkpoint).result()
""",
    healthy=(
        """
def start(svc: tinker.ServiceClient, args):
    if args.resume:
        return svc.create_training_client_from_state_with_optimizer(args.path).result()
    return svc.create_training_client_from_state(args.sft_checkpoint).result()
""",
    ),
)

case(
    "state-path-for-sampling",
    """
svc = tinker.ServiceClient()
sampler = svc.create_sampling_client(model_path="tinker://abc/weights/final").result()
""",
    """
def draw(svc: tinker.ServiceClient, tc: tinker.TrainingClient, prompt, params):
    saved = tc.save_state("step").result()
    client = svc.create_sampling_client(model_path=saved.path).result()
    return client.sample(prompt, 1, params).result()
""",
    """
def draw(tc: tinker.TrainingClient):
    last = checkpoint_utils.get_last_checkpoint("runs/x")
    return tc.create_sampling_client(last.state_path).result()
""",
    healthy=(
        """
svc = tinker.ServiceClient()
sampler = svc.create_sampling_client(model_path="tinker://abc/sampler_weights/final").result()
""",
    ),
)

case(
    "sampler-path-for-training",
    """
svc = tinker.ServiceClient()
PATH = "tinker://abc/sampler_weights/final"
tc = svc.create_training_client_from_state(PATH).result()
""",
    """
async def start(svc: tinker.ServiceClient, tc: tinker.TrainingClient):
    saved = await tc.save_weights_for_sampler("x")
    return await svc.create_training_client_from_state_with_optimizer(path=saved.path)
""",
    """
def start(svc: tinker.ServiceClient):
    last = checkpoint_utils.get_last_checkpoint("runs/x")
    return svc.create_training_client_from_state_with_optimizer(last.sampler_path).result()
""",
    healthy=(
        """
svc = tinker.ServiceClient()
tc = svc.create_training_client_from_state("tinker://abc/weights/final").result()
""",
    ),
)

case(
    "name-on-ephemeral-sampler",
    """
def sampler(tc: tinker.TrainingClient):
    return tc.save_weights_and_get_sampling_client(name="step-100").result()
""",
    """
async def sampler(tc: tinker.TrainingClient, step):
    return await tc.save_weights_and_get_sampling_client(f"step-{step}")
""",
    healthy=(
        """
def sampler(tc: tinker.TrainingClient):
    return tc.save_weights_and_get_sampling_client(name=None).result()
""",
    ),
)

case(
    "short-ttl",
    """
def save(tc: tinker.TrainingClient):
    tc.save_state("x", ttl_seconds=600).result()
""",
    """
TTL = 30 * 60

def save(tc: tinker.TrainingClient):
    tc.save_weights_for_sampler("x", ttl_seconds=TTL).result()
""",
    """
config = train.Config(
    recipe_name="x", log_path="x", model_name="m", dataset_builder=make(), ttl_seconds=1800
)
""",
    healthy=(
        """
def save(tc: tinker.TrainingClient):
    tc.save_state("x", ttl_seconds=24 * 3600).result()
    tc.save_state("y", ttl_seconds=None).result()
""",
    ),
)

case(
    "no-permanent-save",
    """
svc = tinker.ServiceClient()
tc = svc.create_lora_training_client(base_model="m", rank=8).result()
for batch in load():
    fb, opt = tc.forward_backward(batch, "cross_entropy"), tc.optim_step(ADAM)
    fb.result(), opt.result()
sampler = tc.save_weights_and_get_sampling_client().result()
""",
    """
async def main():
    svc = tinker.ServiceClient()
    tc = await svc.create_lora_training_client(base_model="m", rank=8)
    for batch in load():
        fb, opt = tc.forward_backward(batch, "cross_entropy"), tc.optim_step(ADAM)
        await fb
        await opt
    await tc.save_state("final", ttl_seconds=7 * 24 * 3600)

if __name__ == "__main__":
    asyncio.run(main())
""",
    healthy=(
        """
async def main():
    svc = tinker.ServiceClient()
    tc = await svc.create_lora_training_client(base_model="m", rank=8)
    for step, batch in enumerate(load()):
        fb, opt = tc.forward_backward(batch, "cross_entropy"), tc.optim_step(ADAM)
        await fb
        await opt
        if step % 10 == 0:
            await tc.save_state(f"step-{step}", ttl_seconds=7 * 24 * 3600)
    await tc.save_state("final")

if __name__ == "__main__":
    asyncio.run(main())
""",
        """
from mylib import finish

svc = tinker.ServiceClient()
tc = svc.create_lora_training_client(base_model="m", rank=8).result()
for batch in load():
    fb, opt = tc.forward_backward(batch, "cross_entropy"), tc.optim_step(ADAM)
    fb.result(), opt.result()
finish(tc)
""",
    ),
)

case(
    "off-policy-importance-sampling",
    """
def train(tc: tinker.TrainingClient, prompts, adam, params):
    for prompt in prompts:
        sampler = tc.save_weights_and_get_sampling_client().result()
        batch = build(sampler.sample(prompt, 8, params).result())
        for epoch in range(4):
            fb, opt = tc.forward_backward(batch, "importance_sampling"), tc.optim_step(adam)
            fb.result(), opt.result()
""",
    """
async def train(tc: tinker.TrainingClient, steps, adam, params):
    for step in range(steps):
        data = await collect_rollouts(tc, step)
        for part in minibatches(data):
            fb = tc.forward_backward(part, loss_fn="importance_sampling")
            opt = tc.optim_step(adam)
            await fb
            await opt
""",
    """
async def train(tc: tinker.TrainingClient, data, adam, params):
    sampler = await tc.save_weights_and_get_sampling_client()
    for step, prompts in enumerate(data):
        if step % 8 == 0:
            sampler = await tc.save_weights_and_get_sampling_client()
        groups = await asyncio.gather(*[sampler.sample(p, 8, params) for p in prompts])
        fb = tc.forward_backward(build(groups), "importance_sampling")
        opt = tc.optim_step(adam)
        await fb
        await opt
""",
    """
from tinker_cookbook.rl.train import Config
config = Config(
    recipe_name="x", log_path="x", model_name="m", dataset_builder=make(), max_tokens=9,
    learning_rate=1e-5, num_substeps=4,
)
""",
    healthy=(
        """
def train(tc: tinker.TrainingClient, prompts, adam, params):
    for prompt in prompts:
        sampler = tc.save_weights_and_get_sampling_client().result()
        batch = build(sampler.sample(prompt, 8, params).result())
        for epoch in range(4):
            fb, opt = tc.forward_backward(batch, "ppo"), tc.optim_step(adam)
            fb.result(), opt.result()
""",
        """
async def train(tc: tinker.TrainingClient, steps, adam, params):
    for step in range(steps):
        data = await collect_rollouts(tc, step)
        futures = [tc.forward_backward(part, "importance_sampling") for part in split(data)]
        opt = tc.optim_step(adam)
        for future in futures:
            await future
        await opt
""",
    ),
)

case(
    "late-sampler-save",
    """
def train(tc: tinker.TrainingClient, batches, adam):
    for step, batch in enumerate(batches):
        fb, opt = tc.forward_backward(batch, "cross_entropy"), tc.optim_step(adam)
        fb.result(), opt.result()
        if step % 10 == 0:
            tc.save_weights_for_sampler(f"step-{step}")
""",
    """
async def train(tc: tinker.TrainingClient, batches, adam):
    saves = []
    for step, batch in enumerate(batches):
        fb, opt = tc.forward_backward(batch, "cross_entropy"), tc.optim_step(adam)
        saves.append(tc.save_weights_for_sampler(f"step-{step}"))
        await fb
        await opt
    await asyncio.gather(*saves)
""",
    healthy=(
        """
def train(tc: tinker.TrainingClient, batches, adam):
    for step, batch in enumerate(batches):
        fb, opt = tc.forward_backward(batch, "cross_entropy"), tc.optim_step(adam)
        fb.result(), opt.result()
        if step % 10 == 0:
            tc.save_weights_for_sampler(f"step-{step}").result()
""",
    ),
)

# Further ways in which the same things are written.
case(
    "sequential-samples",
    """
from tinker_cookbook.completers import TinkerTokenCompleter

async def score(svc: tinker.ServiceClient, prompts, stop):
    sampler = await svc.create_sampling_client(base_model="m")
    policy = TinkerTokenCompleter(sampler, max_tokens=64)
    return [await policy(prompt, stop) for prompt in prompts]
""",
    """
from tinker_cookbook.rl.rollouts import do_group_rollout

async def collect(builders, policy):
    groups = []
    for builder in builders:
        groups.append(await do_group_rollout(builder, policy))
    return groups
""",
    healthy=(
        """
from tinker_cookbook.rl.rollouts import do_group_rollout

async def collect(builders, policy):
    return await asyncio.gather(*[do_group_rollout(builder, policy) for builder in builders])
""",
    ),
)
case(
    "stale-sampler",
    """
from tinker_cookbook.completers import TinkerTokenCompleter
from tinker_cookbook.rl.rollouts import do_group_rollout

async def train(tc: tinker.TrainingClient, batches, adam):
    sampler = await tc.save_weights_and_get_sampling_client()
    policy = TinkerTokenCompleter(sampler, max_tokens=64)
    for builders in batches:
        groups = await asyncio.gather(*[do_group_rollout(b, policy) for b in builders])
        fb, opt = tc.forward_backward(build(groups), "ppo"), tc.optim_step(adam)
        await fb
        await opt
""",
)
case(
    "blocking-result-in-async",
    """
async def one(sampler: tinker.SamplingClient, prompt, params):
    return sampler.sample(prompt, 1, params).result()

async def score(sampler, prompts, params):
    return await asyncio.gather(*[one(sampler, p, params) for p in prompts])
""",
    healthy=(
        """
async def one(sampler: tinker.SamplingClient, prompt, params):
    future = sampler.sample(prompt, 1, params)
    await future
    return future.result()

async def score(sampler, prompts, params):
    return await asyncio.gather(*[one(sampler, p, params) for p in prompts])
""",
    ),
)
case(
    "home-made-timeout",
    """
async def draw(sampler: tinker.SamplingClient, prompts, params):
    tasks = [asyncio.create_task(sampler.sample(p, 1, params).coroutine()) for p in prompts]
    done, pending = await asyncio.wait(tasks, timeout=30)
    return done
""",
)
case(
    "home-made-retry",
    """
from helpers import retry_async

async def draw(sampler: tinker.SamplingClient, prompt, params):
    return await retry_async(lambda: sampler.sample(prompt, 1, params), tries=3)
""",
)
case(
    "encode-for-chat-model",
    """
MODEL = "moonshotai/Kimi-K2-Thinking"

def ask(sampler: tinker.SamplingClient, tokenizer, question, params):
    ids = tokenizer(question)["input_ids"]
    return sampler.sample(types.ModelInput.from_ints(ids), 1, params).result()
""",
)
case(
    "hard-coded-renderer",
    """
import chz

@chz.chz
class CLIConfig:
    model_name: str = "Qwen/Qwen3-8B"
    renderer_name: str = "qwen3"
""",
)
case(
    "parse-success-truthiness",
    """
def rewards(renderer, samples):
    parsed = [renderer.parse_response(tokens) for tokens in samples]
    return [grade(message) for message, ok in parsed if ok]
""",
    """
def reward(renderer, tokens):
    message, format_ok = renderer.parse_response(tokens)
    return 0.1 * format_ok + grade(message)
""",
)
case(
    "sampler-path-for-training",
    """
config = train.Config(
    recipe_name="x", log_path="x", model_name="m", dataset_builder=make(),
    load_checkpoint_path="tinker://abc/sampler_weights/000100",
)
""",
)
case(
    "state-path-for-sampling",
    """
from tinker_cookbook.eval.inspect_utils import InspectAPIFromTinkerSampling
api = InspectAPIFromTinkerSampling(renderer_name=NAME, model_path="tinker://abc/weights/000100")
""",
)
case(
    "short-ttl",
    """
def save(tc: tinker.TrainingClient):
    tc.save_state("x", 900).result()
""",
)

case(
    "stale-sampler",
    """
async def main(prompts, adam, params):
    svc = tinker.ServiceClient()
    tc = await svc.create_lora_training_client(base_model="m", rank=8)
    sampler = await svc.create_sampling_client(base_model="m")
    for step, prompt in enumerate(prompts):
        reply = await sampler.sample(prompt=prompt, num_samples=8, sampling_params=params)
        fb = tc.forward_backward(build(reply), "importance_sampling")
        opt = tc.optim_step(adam)
        await fb
        await opt
        await tc.save_weights_for_sampler(f"{step}")
""",
)
case(
    "home-made-timeout",
    """
async def draw(sampler: tinker.SamplingClient, prompts, params):
    both = asyncio.gather(*[sampler.sample(p, 1, params) for p in prompts])
    return await asyncio.wait_for(
        asyncio.gather(*[sampler.sample(p, 1, params) for p in prompts]), timeout=60
    )
""",
)
case(
    "home-made-retry",
    """
def with_retries(function):
    return function

@with_retries
def draw(sampler: tinker.SamplingClient, prompt, params):
    return sampler.sample(prompt, 1, params).result()
""",
)
case(
    "no-permanent-save",
    """
import chz

@chz.chz
class Config:
    lr: float = 1e-4

async def main(config: Config):
    svc = tinker.ServiceClient()
    tc = await svc.create_lora_training_client(base_model="m", rank=8)
    for batch in load():
        fb, opt = tc.forward_backward(batch, "cross_entropy"), tc.optim_step(ADAM)
        await fb
        await opt

if __name__ == "__main__":
    asyncio.run(chz.nested_entrypoint(main))
""",
)
case(
    "encode-for-chat-model",
    """
import argparse
parser = argparse.ArgumentParser()
parser.add_argument("--model", default="Qwen/Qwen3-30B-A3B-Instruct-2507")

def prompt(tokenizer, question):
    text = f"User: {question}\\n\\nAssistant:"
    return tinker.ModelInput(chunks=[types.EncodedTextChunk(tokens=tokenizer.encode(text))])
""",
)
case(
    "parse-success-truthiness",
    """
def rate(renderer, samples):
    right = 0
    for tokens in samples:
        message, ok = renderer.parse_response(tokens)
        right += ok
    return right
""",
)

case(
    "sequential-samples",
    """
def score(sampler: tinker.SamplingClient, prompts, params):
    return list(map(lambda p: sampler.sample(p, 1, params).result(), prompts))
""",
    """
async def score(sampler: tinker.SamplingClient, prompts, params):
    index = 0
    replies = []
    while index < len(prompts):
        replies.append(await sampler.sample(prompts[index], 1, params))
        index += 1
    return replies
""",
    healthy=(
        """
def compare(svc: tinker.ServiceClient, prompt, params):
    for path in find_checkpoints():
        sampler = svc.create_sampling_client(model_path=path).result()
        print(sampler.sample(prompt, 8, params).result())

def temperatures(sampler: tinker.SamplingClient, prompt):
    for value in (0.0, 0.5, 1.0):
        params = types.SamplingParams(temperature=value)
        print(sampler.sample(prompt, 8, params).result())

async def stream(sampler: tinker.SamplingClient, lines, params):
    async for prompt in lines:
        print(await sampler.sample(prompt=prompt, num_samples=1, sampling_params=params))

async def mapped(sampler: tinker.SamplingClient, prompts, params):
    async def one(prompt):
        return await sampler.sample(prompt=prompt, num_samples=1, sampling_params=params)
    return await asyncio.gather(*map(one, prompts))
""",
    ),
)
case(
    "stale-sampler",
    healthy=(
        """
svc = tinker.ServiceClient()
tc = svc.create_lora_training_client(base_model="m", rank=8).result()
sampler = tc.save_weights_and_get_sampling_client().result()

def renew():
    global sampler
    sampler = tc.save_weights_and_get_sampling_client().result()

def main(prompts, params, adam):
    for prompt in prompts:
        batch = build(sampler.sample(prompt, 8, params).result())
        fb, opt = tc.forward_backward(batch, "ppo"), tc.optim_step(adam)
        fb.result(), opt.result()
        renew()
""",
    ),
)

case(
    "home-made-retry",
    """
import time

def patient(function, left=3):
    while left:
        try:
            return function()
        except Exception:
            left -= 1
            time.sleep(1)

def train(tc: tinker.TrainingClient, batch, adam):
    fb, opt = tc.forward_backward(batch, "cross_entropy"), tc.optim_step(adam)
    return patient(fb.result), patient(opt.result)
""",
    healthy=(
        """
async def train(tc: tinker.TrainingClient, batch, adam):
    fb, opt = tc.forward_backward(batch, "cross_entropy"), tc.optim_step(adam)
    return await asyncio.to_thread(fb.result), await asyncio.to_thread(opt.result)
""",
    ),
)
case(
    "wait-before-submit",
    """
async def train(tc: tinker.TrainingClient, batches, adam):
    for batch in batches:
        fb = tc.forward_backward(batch, "cross_entropy")
        await asyncio.to_thread(fb.result)
        opt = tc.optim_step(adam)
        await asyncio.to_thread(opt.result)
""",
)

case(
    "stale-sampler",
    """
async def main(prompts):
    svc = tinker.ServiceClient()
    tc = await svc.create_lora_training_client(base_model="m", rank=8)
    path = (await tc.save_weights_for_sampler("step0")).path
    for step, prompt in enumerate(prompts):
        sampler = await svc.create_sampling_client(model_path=path)
        reply = await sampler.sample(prompt=prompt, num_samples=8, sampling_params=PARAMS)
        fb, opt = tc.forward_backward(build(reply), "ppo"), tc.optim_step(ADAM)
        await fb
        await opt
        await tc.save_weights_for_sampler(f"step{step + 1}")
""",
    """
from myproject import evaluate

def train(tc: tinker.TrainingClient, batches, adam):
    sampler = tc.save_weights_and_get_sampling_client().result()
    for step, batch in enumerate(batches):
        fb, opt = tc.forward_backward(batch, "cross_entropy"), tc.optim_step(adam)
        fb.result(), opt.result()
        if step % 10 == 0:
            print(evaluate(sampler, "test.jsonl"))
""",
    healthy=(
        """
from myproject import compare

def train(tc: tinker.TrainingClient, batches, adam):
    first = tc.save_weights_and_get_sampling_client().result()
    for batch in batches:
        fb, opt = tc.forward_backward(batch, "cross_entropy"), tc.optim_step(adam)
        fb.result(), opt.result()
    last = tc.save_weights_and_get_sampling_client().result()
    print(compare(first, last))
""",
        """
async def main(prompts):
    svc = tinker.ServiceClient()
    tc = await svc.create_lora_training_client(base_model="m", rank=8)
    path = (await tc.save_weights_for_sampler("step0")).path
    for step, prompt in enumerate(prompts):
        sampler = await svc.create_sampling_client(model_path=path)
        reply = await sampler.sample(prompt=prompt, num_samples=8, sampling_params=PARAMS)
        fb, opt = tc.forward_backward(build(reply), "ppo"), tc.optim_step(ADAM)
        await fb
        await opt
        path = (await tc.save_weights_for_sampler(f"step{step + 1}")).path
""",
    ),
)
