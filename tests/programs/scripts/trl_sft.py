"""TRL's SFTTrainer on token sequences."""

import tempfile

import common
import datasets
from hf_trainer import Log
from tokenizers import Tokenizer, models
from transformers import PreTrainedTokenizerFast
from trl import SFTConfig, SFTTrainer


def main() -> None:
    common.start()
    words = {f"w{number}": number for number in range(common.VOCABULARY - 2)}
    words |= {"<pad>": common.VOCABULARY - 2, "<eos>": common.VOCABULARY - 1}
    tokenizer = PreTrainedTokenizerFast(
        tokenizer_object=Tokenizer(models.WordLevel(words, unk_token="w0")),
        pad_token="<pad>",
        eos_token="<eos>",
    )
    texts = common.Texts(1024, columns=False)
    rows = datasets.Dataset.from_dict(
        {"input_ids": [texts[number].tolist() for number in range(len(texts))]}
    )
    with tempfile.TemporaryDirectory() as folder:
        arguments = SFTConfig(
            folder,
            per_device_train_batch_size=4,
            max_steps=common.STEPS,
            max_length=common.LENGTH,
            logging_steps=1,
            save_strategy="no",
            report_to=[],
            use_cpu=True,
            bf16=False,
            gradient_checkpointing=False,
            disable_tqdm=True,
        )
        trainer = SFTTrainer(
            model=common.gpt2(),
            args=arguments,
            train_dataset=rows,
            processing_class=tokenizer,
            callbacks=[Log()],
        )
        trainer.train()


if __name__ == "__main__":
    main()
