"""Holds the examples that `--help` shows, of every command."""

from cyclopts import App

EXAMPLES: dict[str, tuple[str, ...]] = {
    "": ("headgate serve", "headgate serve --replica http://10.0.0.7:8000", "headgate init"),
    "epp": (
        "headgate epp --replica http://10.0.0.7:8000 --replica http://10.0.0.8:8000 --grpc-host 0.0.0.0",
        "headgate epp --config headgate.yaml",
        "headgate export envoy --config headgate.yaml --picker 10.0.0.5:9002",
    ),
    "serve": (
        "headgate serve --replica http://10.0.0.7:8000 --replica http://10.0.0.8:8000",
        "headgate serve --vllm meta-llama/Llama-3.1-8B-Instruct --engines 2 -- --max-num-seqs 64",
        "headgate serve --config headgate.yaml --watch",
        "headgate serve --config headgate.yaml --check",
        "headgate serve --log-format json --access-log",
    ),
    "engine": (
        "headgate engine --model /models/my.gguf --context 8192 --port 8001",
        "headgate engine --emulate h100-llama3-8b --port 8001",
    ),
    "init": ("headgate init", "headgate init --replica http://10.0.0.7:8000 --tenant acme --tenant nightly"),
    "key": ("headgate key", 'printf %s "$KEY" | headgate key --hash'),
    "why": ("headgate why 3f2a-17", "headgate why 3f2a-17 --json"),
    "slow": ("headgate slow --lane fast --last 15m", "headgate slow --by ttft --json"),
    "doctor": ("headgate doctor", "headgate doctor --url https://llm.example.com --gateway http://10.0.0.5:8000"),
    "top": ("headgate top", "headgate top --once"),
    "chat": ("headgate chat --url http://127.0.0.1:8000", 'echo "Say hello." | headgate chat'),
    "blame": ("headgate blame --last 1h", "headgate blame --lane fast --by e2e --json"),
    "incident": ("headgate incident ls",),
    "incident ls": ("headgate incident ls --json",),
    "incident show": ("headgate incident show --trace minute.json",),
    "incident record": ('headgate incident record --reason "slow since noon"',),
    "batch": ("headgate batch ls",),
    "batch ls": ("headgate batch ls --limit 100 --json",),
    "batch show": ("headgate batch show batch_6f1c2a",),
    "batch cancel": ("headgate batch cancel batch_6f1c2a",),
    "fleet": ("headgate fleet", "headgate fleet drain gpu-a"),
    "fleet add": ("headgate fleet add http://10.0.0.9:8000",),
    "fleet drain": ("headgate fleet drain gpu-a",),
    "fleet activate": ("headgate fleet activate gpu-a",),
    "fleet sleep": ("headgate fleet sleep local-2",),
    "fleet wake": ("headgate fleet wake local-2",),
    "fleet remove": ("headgate fleet remove gpu-a",),
    "fleet zero": ("headgate fleet zero --patience 5m",),
    "reload": ("headgate reload",),
    "rollout": ("headgate rollout start assistant v2", "headgate rollout status"),
    "rollout start": (
        "headgate rollout start assistant v2",
        "headgate rollout start assistant v2 --mode split --share 20%",
    ),
    "rollout status": ("headgate rollout status", "headgate rollout status assistant --json"),
    "rollout promote": ("headgate rollout promote assistant",),
    "rollout rollback": ("headgate rollout rollback assistant",),
    "bench": (
        "headgate bench --load poisson:rate=4,prompt=200,output=64 --duration 2m",
        "headgate bench http://10.0.0.5:8000 --load catalog:agent --json run.json --html run.html",
    ),
    "bench compare": ("headgate bench compare before.json after.json",),
    "tune": ("headgate tune http://10.0.0.7:8000 --sla ttft:500 --sla tpot:80",),
    "simulate": (
        "headgate simulate --load poisson:rate=20 --replicas 4 --duration 5m",
        "headgate simulate --load catalog:agent --config headgate.yaml --what-if other.yaml",
    ),
    "plan": ("headgate plan --load poisson:rate=20 --slo fast:ttft:p99:0.5 --price 2.5",),
    "replay": ("headgate replay events.log",),
    "fit": (
        "headgate fit steps.jsonl my-gpu.json",
        "headgate fit http://10.0.0.7:8000 my-gpu.json --budget 3m",
        "headgate fit sweep.csv my-gpu.json --like h200-llama3-8b",
    ),
    "export": ("headgate export schema > headgate.schema.json", "headgate export nginx --config headgate.yaml"),
    "export schema": ("headgate export schema > headgate.schema.json",),
    "export example": ("headgate export example > headgate.yaml",),
    "export prometheus-rules": ("headgate export prometheus-rules --config headgate.yaml > rules.yaml",),
    "export grafana": ("headgate export grafana > dashboard.json",),
    "export nginx": ("headgate export nginx --gateway 10.0.0.5:8000 > headgate.conf",),
    "export envoy": ("headgate export envoy --gateway 10.0.0.5:8000 > envoy.yaml",),
    "export alb": ("headgate export alb > template.yaml",),
    "export cloudflare": ("headgate export cloudflare --name llm.example.com > config.yml",),
    "export kubernetes": ("headgate export kubernetes --config headgate.yaml | kubectl apply -f -",),
    "export helm": ("headgate export helm chart --config headgate.yaml",),
    "export keda": ("headgate export keda --config headgate.yaml > scaledobject.yaml",),
    "export usage": ("headgate export usage --last 24h --format csv --out usage.csv",),
    "completion": (
        "headgate completion bash > ~/.local/share/bash-completion/completions/headgate",
        "headgate completion zsh > ~/.zfunc/_headgate",
        "headgate completion fish > ~/.config/fish/completions/headgate.fish",
    ),
}
"""By command, in the words that lead to it."""


def add_examples(app: App) -> None:
    for words, lines in EXAMPLES.items():
        found = app
        for word in words.split():
            found = found[word]
        told = "\n".join(f"    {line}" for line in lines)
        found.help_epilogue = f"{'Example' if len(lines) == 1 else 'Examples'}:\n\n{told}"
