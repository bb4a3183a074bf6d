#ifndef KVD_MODEL_CHECKPOINT_FAMILIES_FAMILIES_H
#define KVD_MODEL_CHECKPOINT_FAMILIES_FAMILIES_H

#include "model/checkpoint/family.h"

extern const kvd_family kvd_family_llama;
extern const kvd_family kvd_family_mistral;
extern const kvd_family kvd_family_qwen2;
extern const kvd_family kvd_family_qwen3;
extern const kvd_family kvd_family_qwen2_moe;
extern const kvd_family kvd_family_qwen3_moe;
extern const kvd_family kvd_family_mixtral;
extern const kvd_family kvd_family_gpt_oss;
extern const kvd_family kvd_family_phi3;
extern const kvd_family kvd_family_opt;
extern const kvd_family kvd_family_falcon;
extern const kvd_family kvd_family_gemma;
extern const kvd_family kvd_family_gemma2;
extern const kvd_family kvd_family_gemma3_text;
extern const kvd_family kvd_family_gemma3;
extern const kvd_family kvd_family_olmo2;
extern const kvd_family kvd_family_olmo3;
extern const kvd_family kvd_family_glm4;
extern const kvd_family kvd_family_glm;
extern const kvd_family kvd_family_starcoder2;
extern const kvd_family kvd_family_ministral;
extern const kvd_family kvd_family_seed_oss;
extern const kvd_family kvd_family_ernie4_5;
extern const kvd_family kvd_family_internlm3;
extern const kvd_family kvd_family_smollm3;
extern const kvd_family kvd_family_granite;
extern const kvd_family kvd_family_minicpm;
extern const kvd_family kvd_family_exaone4;
extern const kvd_family kvd_family_ministral3;
extern const kvd_family kvd_family_mistral3;
extern const kvd_family kvd_family_cohere;
extern const kvd_family kvd_family_cohere2;
extern const kvd_family kvd_family_glm4_moe;
extern const kvd_family kvd_family_deepseek_v2;
extern const kvd_family kvd_family_deepseek_v3;
extern const kvd_family kvd_family_gpt_neox;
extern const kvd_family kvd_family_stablelm;
extern const kvd_family kvd_family_nemotron;
extern const kvd_family kvd_family_arcee;
extern const kvd_family kvd_family_internlm2;
extern const kvd_family kvd_family_olmoe;
extern const kvd_family kvd_family_dots1;
extern const kvd_family kvd_family_solar_open;
extern const kvd_family kvd_family_minimax_m2;
extern const kvd_family kvd_family_glm4_moe_lite;
extern const kvd_family kvd_family_youtu;

/* Prefixes of tensor names in multimodal files: of the language model, and of other models. */
extern const char *const kvd_multimodal_bases[], *const kvd_multimodal_models[];

/* Numbers of tensors in kvd_llama_stored, without and with Qwen3's norms of Q and K. */
enum { KVD_LLAMA_STORED = 12, KVD_QWEN3_STORED = 14 };
extern const kvd_stored kvd_llama_stored[KVD_QWEN3_STORED];

/* Initialisers for families with Llama's tensor names. */
#define KVD_LLAMA_NAMES                                                                            \
    .base = "model.", .layers = "model.layers.", .ignored_layer = "self_attn.rotary_emb.inv_freq", \
    .ignored = "model.rotary_emb.inv_freq"
#define KVD_LLAMA_QKV                                                                              \
    {KVD_PART_Q, "self_attn.q_proj", KVD_ROWS_ALL, NULL},                                          \
        {KVD_PART_K, "self_attn.k_proj", KVD_ROWS_ALL, NULL},                                      \
    {                                                                                              \
        KVD_PART_V, "self_attn.v_proj", KVD_ROWS_ALL, NULL                                         \
    }
#define KVD_LLAMA_MLP                                                                              \
    {KVD_PART_GATE, "mlp.gate_proj", KVD_ROWS_ALL, NULL},                                          \
        {KVD_PART_UP, "mlp.up_proj", KVD_ROWS_ALL, NULL},                                          \
    {                                                                                              \
        KVD_PART_DOWN, "mlp.down_proj", KVD_ROWS_ALL, NULL                                         \
    }
#define KVD_LLAMA_ENDS                                                                             \
    {KVD_PART_EMBEDDING, "model.embed_tokens", KVD_ROWS_ALL, NULL},                                \
        {KVD_PART_NORM_FINAL, "model.norm", KVD_ROWS_ALL, NULL},                                   \
    {                                                                                              \
        KVD_PART_HEAD, "lm_head", KVD_ROWS_ALL, NULL                                               \
    }

#endif
