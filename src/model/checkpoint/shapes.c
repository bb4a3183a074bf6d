#include "model/checkpoint/shapes.h"

#include <stdio.h>
#include <string.h>
#include <xxhash.h>

/* Parts of config.json files of published models. */
#define LLAMA                                                                                      \
    "{\"architectures\":[\"LlamaForCausalLM\"],\"model_type\":\"llama\",\"hidden_act\":\"silu\","
#define ROPE_31                                                                                       \
    "\"max_position_embeddings\":131072,\"rope_theta\":500000.0,\"rope_scaling\":{\"factor\":8.0,"    \
    "\"low_freq_factor\":1.0,\"high_freq_factor\":4.0,\"original_max_position_embeddings\":8192,"     \
    "\"rope_type\":\"llama3\"},\"rms_norm_eps\":1e-05,\"vocab_size\":128256,\"bos_token_id\":128000," \
    "\"eos_token_id\":128001,\"tie_word_embeddings\":false}"
#define LLAMA_2                                                                                        \
    "\"max_position_embeddings\":4096,\"rms_norm_eps\":1e-05,\"vocab_size\":32000,\"bos_token_id\":1," \
    "\"eos_token_id\":2,\"tie_word_embeddings\":false}"
#define OPT                                                                                            \
    "{\"architectures\":[\"OPTForCausalLM\"],\"model_type\":\"opt\",\"activation_function\":\"relu\"," \
    "\"do_layer_norm_before\":true,\"max_position_embeddings\":2048,\"vocab_size\":50272,"             \
    "\"bos_token_id\":2,\"eos_token_id\":2,"
#define FALCON                                                                                             \
    "{\"architectures\":[\"FalconForCausalLM\"],\"model_type\":\"falcon\",\"alibi\":false,\"bias\":false," \
    "\"multi_query\":true,\"parallel_attn\":true,\"layer_norm_epsilon\":1e-05,\"vocab_size\":65024,"       \
    "\"bos_token_id\":11,\"eos_token_id\":11,"

static const kvd_shape shapes[] = {
    {"llama-3.1-8b", "Llama 3.1 8B", "Hugging Face, meta-llama/Llama-3.1-8B, config.json",
     LLAMA "\"num_hidden_layers\":32,\"num_attention_heads\":32,\"num_key_value_heads\":8,"
           "\"hidden_size\":4096,\"intermediate_size\":14336," ROPE_31},
    {"llama-3.1-70b", "Llama 3.1 70B", "Hugging Face, meta-llama/Llama-3.1-70B, config.json",
     LLAMA "\"num_hidden_layers\":80,\"num_attention_heads\":64,\"num_key_value_heads\":8,"
           "\"hidden_size\":8192,\"intermediate_size\":28672," ROPE_31},
    {"llama-2-7b", "Llama 2 7B", "Hugging Face, meta-llama/Llama-2-7b-hf, config.json",
     LLAMA "\"num_hidden_layers\":32,\"num_attention_heads\":32,\"num_key_value_heads\":32,"
           "\"hidden_size\":4096,\"intermediate_size\":11008," LLAMA_2},
    {"llama-2-13b", "Llama 2 13B", "Hugging Face, meta-llama/Llama-2-13b-hf, config.json",
     LLAMA "\"num_hidden_layers\":40,\"num_attention_heads\":40,\"num_key_value_heads\":40,"
           "\"hidden_size\":5120,\"intermediate_size\":13824," LLAMA_2},
    {"llama-2-70b", "Llama 2 70B", "Hugging Face, meta-llama/Llama-2-70b-hf, config.json",
     LLAMA "\"num_hidden_layers\":80,\"num_attention_heads\":64,\"num_key_value_heads\":8,"
           "\"hidden_size\":8192,\"intermediate_size\":28672," LLAMA_2},
    {"yi-34b", "Yi 34B", "Hugging Face, 01-ai/Yi-34B, config.json",
     LLAMA
     "\"num_hidden_layers\":60,\"num_attention_heads\":56,\"num_key_value_heads\":8,"
     "\"hidden_size\":7168,\"intermediate_size\":20480,\"max_position_embeddings\":4096,"
     "\"rope_theta\":5000000.0,\"rms_norm_eps\":1e-05,\"vocab_size\":64000,\"bos_token_id\":1,"
     "\"eos_token_id\":2,\"tie_word_embeddings\":false}"},
    {"mistral-7b", "Mistral 7B v0.3", "Hugging Face, mistralai/Mistral-7B-v0.3, config.json",
     "{\"architectures\":[\"MistralForCausalLM\"],\"model_type\":\"mistral\",\"hidden_act\":\"silu\","
     "\"num_hidden_layers\":32,\"num_attention_heads\":32,\"num_key_value_heads\":8,\"hidden_size\":4096,"
     "\"intermediate_size\":14336,\"max_position_embeddings\":32768,\"rope_theta\":1000000.0,"
     "\"sliding_window\":null,\"rms_norm_eps\":1e-05,\"vocab_size\":32768,\"bos_token_id\":1,"
     "\"eos_token_id\":2,\"tie_word_embeddings\":false}"},
    {"phi-3-14b", "Phi-3 medium 14B (4K)",
     "Hugging Face, microsoft/Phi-3-medium-4k-instruct, config.json",
     "{\"architectures\":[\"Phi3ForCausalLM\"],\"model_type\":\"phi3\",\"hidden_act\":\"silu\","
     "\"num_hidden_layers\":40,\"num_attention_heads\":40,\"num_key_value_heads\":10,\"hidden_size\":5120,"
     "\"intermediate_size\":17920,\"max_position_embeddings\":4096,"
     "\"original_max_position_embeddings\":4096,\"rope_scaling\":null,\"rope_theta\":10000.0,"
     "\"sliding_window\":2047,\"attention_bias\":false,\"rms_norm_eps\":1e-05,\"vocab_size\":32064,"
     "\"bos_token_id\":1,\"eos_token_id\":32000,\"tie_word_embeddings\":false}"},
    {"qwen-2.5-7b", "Qwen2.5 7B", "Hugging Face, Qwen/Qwen2.5-7B, config.json",
     "{\"architectures\":[\"Qwen2ForCausalLM\"],\"model_type\":\"qwen2\",\"hidden_act\":\"silu\","
     "\"num_hidden_layers\":28,\"num_attention_heads\":28,\"num_key_value_heads\":4,\"hidden_size\":3584,"
     "\"intermediate_size\":18944,\"max_position_embeddings\":131072,\"max_window_layers\":28,"
     "\"sliding_window\":131072,\"use_sliding_window\":false,\"rope_theta\":1000000.0,"
     "\"rms_norm_eps\":1e-06,\"vocab_size\":152064,\"bos_token_id\":151643,\"eos_token_id\":151643,"
     "\"tie_word_embeddings\":false}"},
    {"qwen-3-8b", "Qwen3 8B", "Hugging Face, Qwen/Qwen3-8B, config.json",
     "{\"architectures\":[\"Qwen3ForCausalLM\"],\"model_type\":\"qwen3\",\"hidden_act\":\"silu\","
     "\"num_hidden_layers\":36,\"num_attention_heads\":32,\"num_key_value_heads\":8,\"head_dim\":128,"
     "\"hidden_size\":4096,\"intermediate_size\":12288,\"max_position_embeddings\":40960,"
     "\"max_window_layers\":36,\"sliding_window\":null,\"use_sliding_window\":false,"
     "\"attention_bias\":false,\"rope_scaling\":null,\"rope_theta\":1000000,\"rms_norm_eps\":1e-06,"
     "\"vocab_size\":151936,\"bos_token_id\":151643,\"eos_token_id\":151645,"
     "\"tie_word_embeddings\":false}"},
    {"qwen-3-30b-a3b", "Qwen3 30B-A3B", "Hugging Face, Qwen/Qwen3-30B-A3B, config.json",
     "{\"architectures\":[\"Qwen3MoeForCausalLM\"],\"model_type\":\"qwen3_moe\",\"hidden_act\":\"silu\","
     "\"num_hidden_layers\":48,\"num_attention_heads\":32,\"num_key_value_heads\":4,\"head_dim\":128,"
     "\"hidden_size\":2048,\"intermediate_size\":6144,\"moe_intermediate_size\":768,"
     "\"num_experts\":128,\"num_experts_per_tok\":8,\"norm_topk_prob\":true,"
     "\"decoder_sparse_step\":1,\"mlp_only_layers\":[],\"max_position_embeddings\":40960,"
     "\"max_window_layers\":48,\"sliding_window\":null,\"use_sliding_window\":false,"
     "\"attention_bias\":false,\"rope_scaling\":null,\"rope_theta\":1000000.0,\"rms_norm_eps\":1e-06,"
     "\"vocab_size\":151936,\"bos_token_id\":151643,\"eos_token_id\":151645,"
     "\"tie_word_embeddings\":false}"},
    {"mixtral-8x7b", "Mixtral 8x7B", "Hugging Face, mistralai/Mixtral-8x7B-v0.1, config.json",
     "{\"architectures\":[\"MixtralForCausalLM\"],\"model_type\":\"mixtral\",\"hidden_act\":\"silu\","
     "\"num_hidden_layers\":32,\"num_attention_heads\":32,\"num_key_value_heads\":8,\"hidden_size\":4096,"
     "\"intermediate_size\":14336,\"num_local_experts\":8,\"num_experts_per_tok\":2,"
     "\"max_position_embeddings\":32768,\"sliding_window\":null,\"rope_theta\":1000000.0,"
     "\"rms_norm_eps\":1e-05,\"vocab_size\":32000,\"bos_token_id\":1,\"eos_token_id\":2,"
     "\"tie_word_embeddings\":false}"},
    {"gpt-oss-20b", "gpt-oss 20B", "Hugging Face, openai/gpt-oss-20b, config.json",
     "{\"architectures\":[\"GptOssForCausalLM\"],\"model_type\":\"gpt_oss\",\"hidden_act\":\"silu\","
     "\"num_hidden_layers\":24,\"num_attention_heads\":64,\"num_key_value_heads\":8,\"head_dim\":64,"
     "\"hidden_size\":2880,\"intermediate_size\":2880,\"num_local_experts\":32,"
     "\"num_experts_per_tok\":4,\"swiglu_limit\":7.0,\"attention_bias\":true,"
     "\"max_position_embeddings\":131072,\"sliding_window\":128,\"rope_theta\":150000,"
     "\"rope_scaling\":{\"rope_type\":\"yarn\",\"factor\":32.0,\"beta_fast\":32.0,\"beta_slow\":1.0,"
     "\"original_max_position_embeddings\":4096,\"truncate\":false},\"rms_norm_eps\":1e-05,"
     "\"vocab_size\":201088,\"eos_token_id\":200002,\"tie_word_embeddings\":false}"},
    {"gemma-3-12b", "Gemma 3 12B", "Hugging Face, google/gemma-3-12b-it, config.json (text)",
     "{\"architectures\":[\"Gemma3ForCausalLM\"],\"model_type\":\"gemma3_text\","
     "\"hidden_activation\":\"gelu_pytorch_tanh\",\"num_hidden_layers\":48,"
     "\"num_attention_heads\":16,\"num_key_value_heads\":8,\"head_dim\":256,\"hidden_size\":3840,"
     "\"intermediate_size\":15360,\"max_position_embeddings\":131072,"
     "\"query_pre_attn_scalar\":256,\"sliding_window\":1024,\"sliding_window_pattern\":6,"
     "\"rope_theta\":1000000.0,\"rope_local_base_freq\":10000.0,"
     "\"rope_scaling\":{\"rope_type\":\"linear\",\"factor\":8.0},\"rms_norm_eps\":1e-06,"
     "\"vocab_size\":262208,\"bos_token_id\":2,\"eos_token_id\":1}"},
    {"opt-13b", "OPT 13B", "Hugging Face, facebook/opt-13b, config.json",
     OPT
     "\"num_hidden_layers\":40,\"num_attention_heads\":40,\"hidden_size\":5120,\"ffn_dim\":20480,"
     "\"word_embed_proj_dim\":5120}"},
    {"opt-66b", "OPT 66B", "Hugging Face, facebook/opt-66b, config.json",
     OPT
     "\"num_hidden_layers\":64,\"num_attention_heads\":72,\"hidden_size\":9216,\"ffn_dim\":36864,"
     "\"word_embed_proj_dim\":9216}"},
    {"falcon-7b", "Falcon 7B", "Hugging Face, tiiuae/falcon-7b, config.json",
     FALCON
     "\"new_decoder_architecture\":false,\"num_hidden_layers\":32,\"num_attention_heads\":71,"
     "\"hidden_size\":4544}"},
    {"falcon-40b", "Falcon 40B", "Hugging Face, tiiuae/falcon-40b, config.json",
     FALCON
     "\"new_decoder_architecture\":true,\"num_hidden_layers\":60,\"num_attention_heads\":128,"
     "\"num_kv_heads\":8,\"hidden_size\":8192}"},
    {"falcon-180b", "Falcon 180B", "Hugging Face, tiiuae/falcon-180B, config.json",
     FALCON
     "\"new_decoder_architecture\":true,\"num_hidden_layers\":80,\"num_attention_heads\":232,"
     "\"num_kv_heads\":8,\"hidden_size\":14848}"},
};
enum { N_SHAPES = sizeof shapes / sizeof shapes[0] };

size_t kvd_shape_count(void)
{
    return N_SHAPES;
}

const kvd_shape *kvd_shape_at(size_t i)
{
    return &shapes[i];
}

const kvd_shape *kvd_shape_find(const char *name, kvd_err *err)
{
    char list[512] = "";
    size_t at = 0;
    for (size_t i = 0; i < N_SHAPES; i++) {
        if (strcmp(shapes[i].name, name) == 0)
            return &shapes[i];
        if (at < sizeof list)
            at += (size_t)snprintf(list + at, sizeof list - at, "%s%s", i ? ", " : "",
                                   shapes[i].name);
    }
    kvd_fail(err, "no shape '%s': there are %s", name, list);
    return NULL;
}

kvd_checkpoint *kvd_checkpoint_of_shape(const kvd_shape *s, uint64_t seed, kvd_err *err)
{
    char path[128], text[8192], hash[40];
    kvd_config config;
    if (kvd_config_parse(s->name, s->json, strlen(s->json), &config, err))
        return NULL;
    /* In "random weights 1", the number is the version of the random generator. */
    const int n = snprintf(text, sizeof text, "random weights 1, seed %llu\n%s",
                           (unsigned long long)seed, s->json);
    if (snprintf(path, sizeof path, "shape:%s", s->name) >= (int)sizeof path ||
        n >= (int)sizeof text) {
        kvd_fail(err, "shape '%.40s': a name of %zu bytes or a configuration of %zu is too long",
                 s->name, strlen(s->name), strlen(s->json));
        return NULL;
    }
    const XXH128_hash_t h = XXH3_128bits(text, (size_t)n);
    (void)snprintf(hash, sizeof hash, "xxh3:%016llx%016llx", (unsigned long long)h.high64,
                   (unsigned long long)h.low64);
    return kvd_checkpoint_random(path, hash, &config, seed, err);
}
