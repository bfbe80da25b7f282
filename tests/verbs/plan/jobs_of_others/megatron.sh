#!/bin/bash
# GPT-3 175B on eight nodes
torchrun --nproc_per_node 8 --nnodes 8 pretrain_gpt.py \
    --tensor-model-parallel-size 8 \
    --pipeline-model-parallel-size 8 \
    --num-layers-per-virtual-pipeline-stage 4 \
    --num-layers 96 --hidden-size 12288 --num-attention-heads 96 \
    --seq-length 2048 --micro-batch-size 1 --global-batch-size 16 \
    --sequence-parallel --use-distributed-optimizer \
    --recompute-granularity selective --vocab-size 50257 \
    --lr $LR --bf16
