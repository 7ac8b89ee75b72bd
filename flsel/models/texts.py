"""Networks for texts: LEAF's for the next character, and a causal language model with LoRA."""

from __future__ import annotations

from typing import Any, cast

from torch import Tensor, nn

from flsel.errors import UserError, users_code


class NextCharacter(nn.Module):
    """LEAF's network for Shakespeare (Caldas et al. 2018): embedding, stacked LSTM, the last state's logits.

    Args:
        num_classes: C, the number of characters.
        vocabulary: Characters that may occur in inputs, >= C; LEAF's has 80.
        width: Numbers per embedded character.
        hidden: Numbers in a state; LEAF's has 256.
        layers: LSTMs on top of each other.
    """

    def __init__(
        self,
        num_classes: int | None = None,
        vocabulary: int = 80,
        width: int = 8,
        hidden: int = 256,
        layers: int = 2,
    ) -> None:
        super().__init__()
        if num_classes is None or num_classes > vocabulary:
            raise UserError(
                f"vocabulary must be at least the number of classes ({num_classes}), got {vocabulary}."
            )
        self.embedding = nn.Embedding(vocabulary, width)
        self.lstm = nn.LSTM(width, hidden, layers, batch_first=True)
        self.output = nn.Linear(hidden, num_classes)

    def forward(self, characters: Tensor) -> Tensor:
        """Map numbers of characters, int64 ``[B, L]``, to logits ``[B, C]`` of the next one."""
        states, _ = self.lstm(self.embedding(characters))
        return cast(Tensor, self.output(states[:, -1]))


def lora_causal(
    vocabulary: int = 32,
    width: int = 32,
    layers: int = 2,
    heads: int = 2,
    rank: int = 4,
    pretrained: str | None = None,
) -> nn.Module:
    """Build a causal language model whose LoRA factors alone are trained and sent.

    Args:
        vocabulary: Number of tokens of a GPT-2 with random weights.
        width: Numbers per token of that GPT-2.
        layers: Its blocks.
        heads: Its attention heads; they divide the width.
        rank: Rank of the factors at each linear layer.
        pretrained: A pretrained model instead: its folder, or its name on the Hugging Face hub.

    Raises:
        UserError: If transformers or peft are absent, or the model cannot be made.
    """
    try:
        import peft
        import transformers
    except ImportError as error:
        raise UserError(
            f'lora_causal needs the packages transformers and peft ({error}): pip install "flsel[lora]".'
        ) from None
    with users_code("lora_causal cannot make its model"):
        base: Any
        if pretrained is None:
            config = transformers.GPT2Config(
                vocab_size=vocabulary, n_positions=128, n_embd=width, n_layer=layers, n_head=heads,
                resid_pdrop=0.0, embd_pdrop=0.0, attn_pdrop=0.0,
                use_cache=False, bos_token_id=0, eos_token_id=0,
                initializer_range=0.3,  # as wide as factors of random weights need to move the outputs
            )  # fmt: skip
            base = transformers.GPT2LMHeadModel(config)
        else:
            base = transformers.AutoModelForCausalLM.from_pretrained(pretrained)
        factors = peft.LoraConfig(
            r=rank, lora_alpha=2 * rank, target_modules="all-linear", task_type="CAUSAL_LM"
        )
        return cast(nn.Module, peft.get_peft_model(base, factors))
