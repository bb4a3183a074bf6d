/* Tables of the supported model families, each ended by an entry without a name. */
#ifndef KVD_MODEL_CHECKPOINT_FAMILIES_FAMILIES_H
#define KVD_MODEL_CHECKPOINT_FAMILIES_FAMILIES_H

#include "model/checkpoint/family.h"

extern const kvd_family kvd_llama_families[];
extern const kvd_family kvd_qwen_families[];
extern const kvd_family kvd_opt_families[];
extern const kvd_family kvd_falcon_families[];
extern const kvd_family kvd_gemma_families[];
extern const kvd_family kvd_olmo_families[];
extern const kvd_family kvd_glm_families[];
extern const kvd_family kvd_gpt_oss_families[];
extern const kvd_family kvd_deepseek_families[];

/* Lists of prefixes of tensor names in multimodal files; each list ends with NULL.
 *
 * kvd_multimodal_bases   prefixes for the language model
 * kvd_multimodal_models  prefixes for ignored parts, such as the vision tower */
extern const char *const kvd_multimodal_bases[], *const kvd_multimodal_models[];

/* Initialises the members of a kvd_family whose tensor names have Llama's prefixes. */
#define KVD_LLAMA_FAMILY(NAME, ARCHITECTURE, READ, STORED)                                         \
    .name = NAME, .architecture = ARCHITECTURE, .read = READ, .stored = STORED, .base = "model.",  \
    .layers = "model.layers.", .ignored_layer = "self_attn.rotary_emb.inv_freq",                   \
    .ignored = "model.rotary_emb.inv_freq"
#define KVD_MULTIMODAL_NAMES                                                                       \
    .other_bases = kvd_multimodal_bases, .other_models = kvd_multimodal_models

#endif
