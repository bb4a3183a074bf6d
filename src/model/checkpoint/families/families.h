/* Declares every family, for the registry in family.c. */
#ifndef KVD_MODEL_CHECKPOINT_FAMILIES_FAMILIES_H
#define KVD_MODEL_CHECKPOINT_FAMILIES_FAMILIES_H

#include "model/checkpoint/config_json.h"
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
extern const kvd_family kvd_family_deepseek_v2;
extern const kvd_family kvd_family_deepseek_v3;

/*
 * Stored tensors of a Llama model, which other families share. The first KVD_LLAMA_STORED are
 * Llama's; the rest are Qwen3's norms of Q and K.
 */
enum { KVD_LLAMA_STORED = 12, KVD_QWEN3_STORED = 14 };
extern const kvd_stored kvd_llama_stored[KVD_QWEN3_STORED];
extern const char kvd_llama_ignored_layer[], kvd_llama_ignored[];

/* Helpers with which the families with routed experts read config.json. */

/* Keys of config.json, and values that an absent key has; 0: the key is required. */
typedef struct {
    const char *experts, *chosen, *width;
    int n_experts, n_chosen, d_expert;
} kvd_routed_keys;

/*
 * Reads the number of experts, how many of them a token uses, and the width of each. The number of
 * experts is read from its key, or from the other of num_experts and num_local_experts. The sizes
 * of the model must have been read before. Fails if the model has more layers than a configuration
 * can mark, or if a token uses more experts than there are.
 */
int kvd_cfg_routed(const json_t *root, const kvd_routed_keys *keys, kvd_config *c, kvd_err *err);

/*
 * Reads the layers without experts: those in the list mlp_only_layers, and with decoder_sparse_step
 * N those whose number, counted from 1, is not a multiple of N.
 */
int kvd_cfg_dense_layers(const json_t *root, kvd_config *c, kvd_err *err);

/* Sets rope_theta to `theta` if no place of the file states it. Call it after kvd_cfg_rope. */
void kvd_cfg_theta_or(const json_t *root, double theta, kvd_config *c);

#endif
