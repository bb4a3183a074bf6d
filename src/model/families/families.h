/* Every family, for the registry in family.c. */
#ifndef KVD_MODEL_FAMILIES_FAMILIES_H
#define KVD_MODEL_FAMILIES_FAMILIES_H

#include "model/family.h"

extern const kvd_family kvd_family_llama;
extern const kvd_family kvd_family_mistral;
extern const kvd_family kvd_family_qwen2;
extern const kvd_family kvd_family_qwen3;
extern const kvd_family kvd_family_phi3;
extern const kvd_family kvd_family_opt;
extern const kvd_family kvd_family_falcon;

/* Names of the tensors of a Llama model, which others share, and with Qwen3's norms of Q and K. */
enum { KVD_LLAMA_STORED = 12, KVD_QWEN3_STORED = 14 };
extern const kvd_stored kvd_llama_stored[KVD_QWEN3_STORED];
extern const char kvd_llama_ignored_layer[], kvd_llama_ignored[];

#endif
