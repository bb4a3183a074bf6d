/* Tests the CUDA engine against the forward pass over whole sequences on one GPU. */
#include <math.h>
#include <string.h>

#include "dims_fixture.h"
#include "engine_case.h"
#include "make_checkpoint.h"
#include "model/checkpoint/shapes.h"
#include "temp_folder.h"

static const request long_ones[] = {{70, 9},  {1, 30},  {300, 3}, {64, 12}, {13, 70}, {129, 1},
                                    {200, 8}, {63, 20}, {40, 40}, {5, 64},  {1, 1},   {448, 33}};
static const request short_ones[] = {{17, 9}, {1, 20}, {30, 3}, {8, 12}, {13, 11}, {25, 1}};

static const request prompts_alone[] = {{200, 1}, {64, 1}, {1, 1},   {129, 1},
                                        {63, 1},  {77, 1}, {448, 1}, {320, 1}};
static const request two_pages[] = {{100, 1}, {64, 1}, {65, 1}, {127, 1}, {1, 1}, {72, 1}};
static const request one_page[] = {{30, 1}, {1, 1}, {59, 1}, {16, 1}, {33, 1}, {8, 1}};
static const setting by_tokens = {"prompts by tokens", 1, 0, false, true, true};

static const setting whole = {"whole prompts", 5, 0, false, false, false};
static const setting replayed = {"whole prompts, graphs, phases", 5, 0, true, true, false};
static const setting pieces = {"pieces of 48", 4, 48, true, false, false};
static const setting many = {"batch of 12, graphs, phases", 12, 0, true, true, false};
static const setting many_pieces = {
    "batch of 12, pieces of 100, phases", 12, 100, false, true, false};

typedef struct {
    const char *path, *name;
} subject;

static const subject small = {"data/models/kvdim-6m", "kvdim-6m"};

static void test_whole(const subject *m, int quick)
{
    kvd_err err = {""};
    kvd_checkpoint *const c = open_or_end(m->path);
    load l = load_make(c, long_ones, quick ? 5 : 12, 11);
    if (expect(&l, c, NULL, &err)) {
        test_result(0, m->name, "%s", err.msg);
    } else {
        const setting *const set[] = {&replayed, &pieces, &whole, &many, &many_pieces};
        for (size_t i = 0; i < (quick ? 2 : sizeof set / sizeof *set); i++)
            test(c, m->name, &l, NULL, "none", set[i]);
    }
    load_release(&l);
    kvd_checkpoint_close(c);
}

/* Models with head dimensions that the engine's kernels support. */
#define GPT_OSS                                                                                    \
    "\"architectures\":[\"GptOssForCausalLM\"],\"model_type\":\"gpt_oss\","                        \
    "\"attention_bias\":true,\"num_local_experts\":8,\"num_experts_per_tok\":3,"                   \
    "\"swiglu_limit\":7.0,\"rope_scaling\":{\"rope_type\":\"yarn\",\"factor\":4.0,"                \
    "\"beta_fast\":32.0,\"beta_slow\":1.0,\"original_max_position_embeddings\":256,"               \
    "\"truncate\":false},\"layer_types\":[\"sliding_attention\",\"full_attention\"],"
#define GEMMA                                                                                      \
    "\"hidden_activation\":\"gelu_pytorch_tanh\",\"hidden_size\":256,\"intermediate_size\":192,"   \
    "\"head_dim\":64,\"num_hidden_layers\":2,\"num_attention_heads\":4,\"num_key_value_heads\":2," \
    "\"max_position_embeddings\":1024,\"rope_theta\":10000.0,\"rms_norm_eps\":1e-06,"              \
    "\"vocab_size\":300,\"attention_bias\":false,"
enum { GPT_OSS_SHAPE = 0 };
static const kvd_shape shape[] = {
#define SIZES                                                                                      \
    "\"hidden_act\":\"silu\",\"hidden_size\":256,\"intermediate_size\":192,\"head_dim\":64,"       \
    "\"num_hidden_layers\":2,\"num_attention_heads\":4,\"num_key_value_heads\":2,"                 \
    "\"max_position_embeddings\":1024,\"rope_theta\":10000.0,\"rms_norm_eps\":1e-05,"              \
    "\"vocab_size\":300,\"tie_word_embeddings\":false,"
    [GPT_OSS_SHAPE] = {"gpt_oss, long windows", "gpt_oss", "made up",
                       "{" SIZES GPT_OSS "\"sliding_window\":1024}"},
    {"glm", "glm", "made up",
     "{" SIZES "\"architectures\":[\"GlmForCausalLM\"],\"model_type\":\"glm\","
     "\"attention_bias\":true,\"partial_rotary_factor\":0.5}"},
    {"glm4", "glm4", "made up",
     "{" SIZES "\"architectures\":[\"Glm4ForCausalLM\"],\"model_type\":\"glm4\","
     "\"attention_bias\":false,\"partial_rotary_factor\":0.5}"},
    {"olmo2", "olmo2", "made up",
     "{" SIZES "\"architectures\":[\"Olmo2ForCausalLM\"],\"model_type\":\"olmo2\","
     "\"attention_bias\":false}"},
    {"mixtral", "mixtral", "made up",
     "{" SIZES "\"architectures\":[\"MixtralForCausalLM\"],\"model_type\":\"mixtral\","
     "\"num_local_experts\":8,\"num_experts_per_tok\":2,\"sliding_window\":null}"},
    {"qwen3_moe, a dense layer", "qwen3_moe", "made up",
     "{" SIZES "\"architectures\":[\"Qwen3MoeForCausalLM\"],\"model_type\":\"qwen3_moe\","
     "\"moe_intermediate_size\":80,\"num_experts\":24,\"num_experts_per_tok\":5,"
     "\"norm_topk_prob\":true,\"decoder_sparse_step\":1,\"mlp_only_layers\":[0],"
     "\"attention_bias\":false,\"use_sliding_window\":false}"},
    {"qwen2_moe, a shared expert", "qwen2_moe", "made up",
     "{" SIZES "\"architectures\":[\"Qwen2MoeForCausalLM\"],\"model_type\":\"qwen2_moe\","
     "\"moe_intermediate_size\":64,\"shared_expert_intermediate_size\":96,\"num_experts\":9,"
     "\"num_experts_per_tok\":3,\"norm_topk_prob\":false,\"decoder_sparse_step\":1,"
     "\"mlp_only_layers\":[],\"use_sliding_window\":false}"},
    {"gemma", "gemma", "made up",
     "{" GEMMA "\"architectures\":[\"GemmaForCausalLM\"],\"model_type\":\"gemma\"}"},
    {"gemma2 without caps of scores", "gemma2", "made up",
     "{" GEMMA "\"architectures\":[\"Gemma2ForCausalLM\"],\"model_type\":\"gemma2\","
     "\"attn_logit_softcapping\":null,\"final_logit_softcapping\":30.0,"
     "\"query_pre_attn_scalar\":100,\"sliding_window\":1024}"},
    {"phi3, partial RoPE", "phi3", "made up",
     "{" SIZES "\"architectures\":[\"Phi3ForCausalLM\"],\"model_type\":\"phi3\","
     "\"original_max_position_embeddings\":1024,\"partial_rotary_factor\":0.75,"
     "\"sliding_window\":null}"},
    {"smollm3", "smollm3", "made up",
     "{" SIZES "\"model_type\":\"smollm3\",\"no_rope_layers\":[1,0]}"},
    {"exaone4", "exaone4", "made up",
     "{" SIZES "\"model_type\":\"exaone4\",\"sliding_window\":1024,"
     "\"layer_types\":[\"full_attention\",\"sliding_attention\"]}"},
    {"granite", "granite", "made up",
     "{" SIZES "\"model_type\":\"granite\",\"embedding_multiplier\":3.0,"
     "\"attention_multiplier\":0.1,\"residual_multiplier\":0.4,\"logits_scaling\":2.0}"},
    {"cohere2", "cohere2", "made up",
     "{" SIZES "\"model_type\":\"cohere2\",\"layer_norm_eps\":1e-05,\"logit_scale\":0.5,"
     "\"sliding_window\":1024,\"sliding_window_pattern\":2}"},
    {"ernie4_5", "ernie4_5", "made up", "{" SIZES "\"model_type\":\"ernie4_5\"}"},
    {"glm4_moe", "glm4_moe", "made up",
     "{" SIZES "\"model_type\":\"glm4_moe\",\"attention_bias\":true,\"use_qk_norm\":true,"
     "\"moe_intermediate_size\":64,\"n_routed_experts\":12,\"num_experts_per_tok\":3,"
     "\"n_group\":3,\"topk_group\":2,\"n_shared_experts\":1,\"first_k_dense_replace\":1,"
     "\"routed_scaling_factor\":1.5,\"num_nextn_predict_layers\":0}"},
    {"gpt_neox", "gpt_neox", "made up",
     "{\"model_type\":\"gpt_neox\",\"hidden_size\":256,\"intermediate_size\":192,"
     "\"num_hidden_layers\":2,\"num_attention_heads\":4,\"max_position_embeddings\":1024,"
     "\"layer_norm_eps\":1e-05,\"vocab_size\":300,\"rotary_pct\":0.25}"},
    {"stablelm", "stablelm", "made up",
     "{" SIZES "\"model_type\":\"stablelm\",\"layer_norm_eps\":1e-05,\"use_qkv_bias\":true,"
     "\"use_parallel_residual\":true}"},
    {"nemotron", "nemotron", "made up",
     "{\"model_type\":\"nemotron\",\"hidden_size\":256,\"intermediate_size\":192,"
     "\"head_dim\":64,\"num_hidden_layers\":2,\"num_attention_heads\":4,"
     "\"num_key_value_heads\":2,\"max_position_embeddings\":1024,\"norm_eps\":1e-05,"
     "\"vocab_size\":300}"},
    {"olmoe", "olmoe", "made up",
     "{" SIZES "\"model_type\":\"olmoe\",\"num_experts\":8,\"num_experts_per_tok\":2}"},
    {"dots1", "dots1", "made up",
     "{" SIZES "\"model_type\":\"dots1\",\"moe_intermediate_size\":64,\"n_routed_experts\":8,"
     "\"num_experts_per_tok\":3,\"n_shared_experts\":2,\"first_k_dense_replace\":1}"},
    {"minimax_m2", "minimax_m2", "made up",
     "{" SIZES "\"model_type\":\"minimax_m2\",\"num_local_experts\":8,"
     "\"num_experts_per_tok\":2,\"rotary_dim\":32}"}};

static void test_shapes(const request *r)
{
    for (size_t i = 0; i < sizeof shape / sizeof *shape; i++) {
        kvd_err err = {""};
        kvd_gpu_share share;
        kvd_checkpoint *const c = kvd_checkpoint_of_shape(&shape[i], 4, &err);
        if (!c) {
            test_result(0, shape[i].name, "%s", err.msg);
            continue;
        }
        load l = load_make(c, r, 6, 25 + i);
        if (kvd_gpu_share_of(kvd_checkpoint_config(c), KVD_GPU_SERVING, 0, n_gpus, &share, &err))
            printf("# %s: %s\n", shape[i].name, err.msg);
        else if (expect(&l, c, NULL, &err)) {
            test_result(0, shape[i].name, "%s", err.msg);
        } else {
            test(c, shape[i].name, &l, NULL, "none", &replayed);
            test(c, shape[i].name, &l, NULL, "none", &pieces);
        }
        load_release(&l);
        kvd_checkpoint_close(c);
    }
}

static void test_families(const request *r, const setting *first, const setting *second)
{
    static const char *const name[] = {
        "mistral-full",   "llama-biases", "qwen2-gqa",   "qwen3-gqa",  "qwen3-yarn",
        "opt-before",     "opt-after",    "falcon-mha",  "falcon-40b", "falcon-7b",
        "mistral-window", "qwen2-window", "phi3-window", "gemma-mha",  "gemma3-text"};
    for (size_t i = 0; i < sizeof name / sizeof *name; i++) {
        kvd_err err = {""};
        char path[128];
        (void)snprintf(path, sizeof path, "tests/data/families/%s", name[i]);
        kvd_checkpoint *const c = open_or_end(path);
        load l = load_make(c, r, 6, 12 + i);
        kvd_gpu_share share;
        bool refused = false;
        for (int k = 0; first->sequence && k < kvd_checkpoint_config(c)->n_layers; k++)
            refused = refused || kvd_config_window(kvd_checkpoint_config(c), k) > 0;
        if (refused ||
            kvd_gpu_share_of(kvd_checkpoint_config(c), KVD_GPU_SERVING, 0, n_gpus, &share, &err))
            printf("# %s: %s\n", name[i], refused ? "has attention windows" : err.msg);
        else if (expect(&l, c, NULL, &err)) {
            test_result(0, name[i], "%s", err.msg);
        } else {
            test(c, name[i], &l, NULL, "none", first);
            if (second)
                test(c, name[i], &l, NULL, "none", second);
        }
        load_release(&l);
        kvd_checkpoint_close(c);
    }
}

static int make_dims(kvd_dims *d, kvd_spectrum *s, const kvd_config *c, const kvd_dims_method *m,
                     kvd_err *err)
{
    kvd_widths w;
    if (fixture_spectrum(s, c, 7, err) ||
        kvd_widths_alloc(&w, c->n_layers, c->n_kv_heads, c->d_head, err))
        return -1;
    for (int i = 0; i < c->n_layers * c->n_kv_heads; i++)
        for (int side = 0; side < 2; side++)
            w.kept[side][i] = c->d_head * (3 + (i * 5 + 3 * side + 1) % 6) / 8 - i % 3;
    const int status = kvd_dims_build(d, m, s, &w, err);
    kvd_widths_release(&w);
    return status;
}

static void test_dims_of(const kvd_checkpoint *c, const char *name, const request *r, size_t n,
                         const setting *const *set)
{
    static const kvd_dims_method *const method[] = {&kvd_dims_zack, &kvd_dims_balanced};
    for (size_t i = 0; i < 2; i++) {
        kvd_err err = {""};
        load l = load_make(c, r, n, 31);
        kvd_dims d = {0};
        kvd_spectrum s = {0};
        const kvd_plan plan = {.type = KVD_BF16, .dims = &d};
        if (make_dims(&d, &s, kvd_checkpoint_config(c), method[i], &err) ||
            expect(&l, c, &plan, &err))
            test_result(0, name, "%s", err.msg);
        else
            for (size_t k = 0; set[k]; k++)
                test(c, name, &l, &plan, method[i]->info.name, set[k]);
        kvd_dims_release(&d);
        kvd_spectrum_release(&s);
        load_release(&l);
    }
}

static void test_dims(const subject *model, const request *r, size_t n, const setting *const *set)
{
    kvd_checkpoint *const c = open_or_end(model->path);
    test_dims_of(c, model->name, r, n, set);
    kvd_checkpoint_close(c);
}

static const kvd_shape windowed[] = {
    {"mistral, window 100", "mistral", "made up",
     "{" SIZES "\"architectures\":[\"MistralForCausalLM\"],\"model_type\":\"mistral\","
     "\"sliding_window\":100}"},
    {"phi3, window 65", "phi3", "made up",
     "{" SIZES "\"architectures\":[\"Phi3ForCausalLM\"],\"model_type\":\"phi3\","
     "\"original_max_position_embeddings\":1024,\"sliding_window\":65}"},
    {"qwen2, window 17", "qwen2", "made up",
     "{" SIZES "\"architectures\":[\"Qwen2ForCausalLM\"],\"model_type\":\"qwen2\","
     "\"use_sliding_window\":true,\"max_window_layers\":1,\"sliding_window\":17}"},
    {"olmo3, window 70", "olmo3", "made up",
     "{" SIZES "\"architectures\":[\"Olmo3ForCausalLM\"],\"model_type\":\"olmo3\","
     "\"attention_bias\":false,\"sliding_window\":70,"
     "\"layer_types\":[\"sliding_attention\",\"full_attention\"],"
     "\"rope_scaling\":{\"rope_type\":\"yarn\",\"factor\":4.0,"
     "\"original_max_position_embeddings\":256}}"},
    {"gpt_oss, window 70", "gpt_oss", "made up", "{" SIZES GPT_OSS "\"sliding_window\":70}"},
    {"gemma3, window 40", "gemma3_text", "made up",
     "{" GEMMA "\"architectures\":[\"Gemma3ForCausalLM\"],\"model_type\":\"gemma3_text\","
     "\"query_pre_attn_scalar\":100,\"sliding_window\":40,\"rope_local_base_freq\":5000.0,"
     "\"layer_types\":[\"sliding_attention\",\"full_attention\"]}"}};

static const request beyond_windows[] = {{300, 100}, {70, 9},  {1, 120},
                                         {129, 3},   {200, 8}, {448, 33}};

/* Requests must hold whole pages; layers with a window only tokens the next query sees. */
static void test_held(const kvd_checkpoint *c, const char *name)
{
    enum { INPUT = 400, PIECE = 48, STEPS = 100, PAGE = 64 };
    static const kvd_plan none = {.type = KVD_BF16};
    const kvd_config *const m = kvd_checkpoint_config(c);
    const setting set = {"held", 1, PIECE, false, false, false};
    const kvd_engine_spec spec = spec_of(&set, INPUT + STEPS);
    const double page = 2.0 * 2 * PAGE * m->n_kv_heads * m->d_head;
    kvd_err err = {""};
    kvd_engine *const e = kvd_engine_open_cuda(c, &none, &spec, &err);
    uint32_t *const id = some_ids(INPUT + STEPS, (size_t)m->vocab_size, 3), token;
    int status = !e;
    size_t wrong = 0;
    double most = 0;
    for (size_t at = 0, n; !status && at < INPUT + STEPS; at += n) {
        n = at >= INPUT ? 1 : INPUT - at < PIECE ? INPUT - at : PIECE;
        const kvd_slice s = {.before = (uint32_t)at, .n = (uint32_t)n, .emits = at + n >= INPUT};
        const kvd_iteration it = {
            .n_slices = 1, .n_steps = at >= INPUT, .slice = &s, .n_tokens = n};
        double want = 0;
        for (int l = 0; l < m->n_layers; l++) {
            const size_t end = at + n, window = kvd_config_window(m, l),
                         first = window && end + 1 > window ? end + 1 - window : 0;
            want += page * (double)((end + PAGE - 1) / PAGE - first / PAGE);
        }
        status = e->step(e, &it, id + at, &token, NULL, &err);
        const double held = status ? 0 : e->held(e);
        wrong += fabs(held - want) > 0.5;
        most = fmax(most, held);
    }
    char text[160];
    (void)snprintf(text, sizeof text, "%s: at most %.0f bytes held, %zu counts are wrong", name,
                   most, wrong);
    test_result(!status && !wrong, "bytes of windows", "%s", status ? err.msg : text);
    if (e)
        e->free(e);
    free(id);
}

static void test_windowed(const kvd_shape *made, uint64_t seed, bool cuts, int quick)
{
    static const setting *const set[] = {&pieces, &replayed, &many, &many_pieces};
    static const setting *const some[] = {&pieces, &replayed, NULL};
    kvd_err err = {""};
    kvd_gpu_share share;
    kvd_checkpoint *const c = kvd_checkpoint_of_shape(made, 5, &err);
    if (!c) {
        test_result(0, made->name, "%s", err.msg);
        return;
    }
    if (kvd_gpu_share_of(kvd_checkpoint_config(c), KVD_GPU_SERVING, 0, n_gpus, &share, &err)) {
        printf("# %s: %s\n", made->name, err.msg);
        kvd_checkpoint_close(c);
        return;
    }
    load l = load_make(c, beyond_windows, quick ? 2 : 6, seed);
    if (expect(&l, c, NULL, &err))
        test_result(0, made->name, "%s", err.msg);
    else
        for (size_t k = 0; k < (quick ? 1 : sizeof set / sizeof *set); k++)
            test(c, made->name, &l, NULL, "none", set[k]);
    load_release(&l);
    if (cuts || (!quick && kvd_checkpoint_config(c)->sinks))
        test_dims_of(c, made->name, beyond_windows, 6, some);
    if (n_gpus == 1 && kvd_config_window(kvd_checkpoint_config(c), 0))
        test_held(c, made->name);
    kvd_checkpoint_close(c);
}

static void test_windows(int quick)
{
    for (size_t i = 0; i < (quick ? 2 : sizeof windowed / sizeof *windowed); i++)
        test_windowed(&windowed[i], 35 + i, !quick && i % 3 == 0, quick);
}

/* Models with heads of 256, which have their own attention kernels. */
static const kvd_shape wide_shape[] = {
#define WIDE_SIZES                                                                                 \
    "\"hidden_size\":256,\"intermediate_size\":192,\"head_dim\":256,\"num_hidden_layers\":3,"      \
    "\"max_position_embeddings\":1024,\"rms_norm_eps\":1e-06,\"vocab_size\":300,"
    {"gemma3, window 70", "gemma3", "made up",
     "{" WIDE_SIZES "\"architectures\":[\"Gemma3ForCausalLM\"],\"model_type\":\"gemma3_text\","
     "\"hidden_activation\":\"gelu_pytorch_tanh\",\"num_attention_heads\":4,"
     "\"num_key_value_heads\":2,\"query_pre_attn_scalar\":256,\"sliding_window\":70,"
     "\"layer_types\":[\"sliding_attention\",\"sliding_attention\",\"full_attention\"],"
     "\"rope_theta\":1000000.0,\"rope_local_base_freq\":10000.0}"},
    {"gemma", "gemma", "made up",
     "{" WIDE_SIZES "\"architectures\":[\"GemmaForCausalLM\"],\"model_type\":\"gemma\","
     "\"hidden_activation\":\"gelu_pytorch_tanh\",\"num_attention_heads\":8,"
     "\"num_key_value_heads\":1,\"rope_theta\":10000.0}"}};

static void refused(const kvd_checkpoint *c, const kvd_plan *plan, const kvd_engine_spec *s,
                    const char *why)
{
    kvd_err err = {""};
    kvd_engine *const e = kvd_engine_open_cuda(c, plan, s, &err);
    test_result(!e && strstr(err.msg, why), "refused", "%s", e ? why : err.msg);
    if (e)
        e->free(e);
}

static void test_refused_wide(void)
{
    static const char *const text[] = {"turboquant", "expectedattention", "cake"};
    const setting set = {"refused", 3, 0, false, false, false};
    const kvd_engine_spec s = spec_of(&set, 60);
    kvd_err err = {""};
    kvd_checkpoint *const c = kvd_checkpoint_of_shape(&wide_shape[1], 5, &err);
    for (size_t i = 0; c && i < sizeof text / sizeof *text; i++) {
        kvd_method m;
        if (kvd_method_parse(text[i], &m, &err)) {
            test_result(0, "refused", "%s", err.msg);
            continue;
        }
        m.plan.type = KVD_BF16;
        refused(c, &m.plan, &s, "heads of 256: the CUDA engine's kernels of");
    }
    if (c)
        kvd_checkpoint_close(c);
    else
        test_result(0, wide_shape[1].name, "%s", err.msg);
}

static void test_wide(int quick)
{
    for (size_t i = 0; i < (quick ? 1 : sizeof wide_shape / sizeof *wide_shape); i++)
        test_windowed(&wide_shape[i], 45 + i, !quick, quick);
    if (!quick && n_gpus == 1)
        test_refused_wide();
}

static void test_context(const subject *m)
{
    static const kvd_plan none = {.type = KVD_BF16};
    kvd_err err = {""};
    kvd_checkpoint *const c = open_or_end(m->path);
    const setting set = {"context", 3, 0, true, false, false};
    const kvd_engine_spec spec = spec_of(&set, 1000);
    kvd_engine *const e = kvd_engine_open_cuda(c, &none, &spec, &err);
    const kvd_slice slice[] = {{.slot = 0, .before = 999, .n = 1, .emits = 1},
                               {.slot = 2, .before = 500, .n = 1, .emits = 1}};
    const kvd_iteration it = {.n_slices = 2, .n_steps = 2, .slice = slice, .n_tokens = 2};
    const uint32_t id[] = {5, 6};
    uint32_t first[2] = {0}, second[2] = {1};
    const int status =
        !e || e->step(e, &it, id, first, NULL, &err) || e->step(e, &it, id, second, NULL, &err);
    test_result(!status && !memcmp(first, second, sizeof first),
                "a context that was never computed", "%s",
                status ? err.msg : "the same tokens twice");
    if (e)
        e->free(e);
    kvd_checkpoint_close(c);
}

static void test_refused(void)
{
    const setting set = {"refused", 3, 0, false, false, false};
    const kvd_plan none = {.type = KVD_BF16}, wide = {.type = KVD_F32};
    kvd_plan tokens;
    kvd_method m;
    kvd_err err = {""};
    kvd_checkpoint *const c = open_or_end("data/models/kvdim-6m");
    kvd_engine_spec s = spec_of(&set, 100);
    if (kvd_method_parse("lower", &m, &err))
        test_result(0, "refused", "%s", err.msg);
    tokens = m.plan;
    tokens.type = KVD_BF16;
    refused(c, &tokens, &s, "lower");
    refused(c, &wide, &s, "f32");
    s.limits.pages = (size_t)1 << 30;
    refused(c, &none, &s, "1073741824 pages");
    s = spec_of(&set, 4096);
    refused(c, &none, &s, "1024");
    s = spec_of(&set, 100);
    s.n_gpus = 17;
    refused(c, &none, &s, "17 GPUs");
    s = spec_of(&set, 100);
    s.type = KVD_F32;
    refused(c, &none, &s, "f32");
    kvd_checkpoint_close(c);
    kvd_checkpoint *const odd = open_or_end("tests/data/families/mixtral-full");
    s = spec_of(&set, 100);
    s.graphs = true;
    refused(odd, &none, &s, "5 experts of 14 hidden units in a model of width 18: CUDA graphs");
    kvd_checkpoint_close(odd);
    kvd_checkpoint *const sinks = kvd_checkpoint_of_shape(&shape[GPT_OSS_SHAPE], 4, &err);
    if (!sinks || kvd_method_parse("leankv", &m, &err))
        test_result(0, "refused", "%s", err.msg);
    tokens = m.plan;
    tokens.type = KVD_BF16;
    s = spec_of(&set, 100);
    refused(sinks, &tokens, &s,
            "attention sinks, which the CUDA engine's kernels of 'sparsity' do");
    kvd_checkpoint_close(sinks);
}

/* A NaN weight must be reported with request and token position. */
static void test_nonfinite(void)
{
    static const struct {
        const char *tensor;
        size_t i;
        /* expected parts of the errors; NULL: no error */
        const char *prompts, *step;
    } bad[] = {
        {"model.embed_tokens.weight", 17 * 64 + 3, NULL,
         "embedding: activation of request 5 at position 6"},
        {"model.embed_tokens.weight", 13 * 64 + 3,
         "embedding: activation of request 5 at position 2", NULL},
        {"model.layers.1.mlp.down_proj.weight", 5,
         "layer 1: activation of request 3 at position 11", NULL},
        {"model.layers.0.self_attn.v_proj.weight", 3,
         "layer 0: activation of request 3 at position 0", NULL},
        {"model.norm.weight", 0, "final norm: activation of request 3 at position 11", NULL},
    };
    static const kvd_plan none = {.type = KVD_BF16};
    static const kvd_slice prompt[] = {{.request = 3, .n = 12, .emits = 1},
                                       {.request = 5, .slot = 1, .n = 6, .emits = 1}};
    static const kvd_slice step = {.request = 5, .slot = 1, .before = 6, .n = 1, .emits = 1};
    static const uint32_t id[] = {1, 2, 3, 4, 5, 6, 7, 8, 9, 10, 11, 12, 11, 12, 13, 14, 15, 16},
                          last = 17;
    const kvd_iteration prompts = {.n_slices = 2, .slice = prompt, .n_tokens = 18};
    const kvd_iteration steps = {.n_slices = 1, .n_steps = 1, .slice = &step, .n_tokens = 1};
    const setting set = {"not finite", 2, 0, true, false, false};
    const kvd_engine_spec spec = spec_of(&set, 64);
    made_spec s = MADE_SPEC_DEFAULTS;
    s.tied = false;
    for (size_t i = 0; i < sizeof bad / sizeof *bad; i++) {
        char path[64], file[128];
        kvd_err err = {""};
        uint32_t token[2];
        (void)snprintf(path, sizeof path, "%s/bad-%zu", temp_folder(), i);
        (void)snprintf(file, sizeof file, "%s/model.safetensors", path);
        kvd_engine *e = NULL;
        if (!make_checkpoint(path, &s, &err) &&
            !made_poke(file, bad[i].tensor, bad[i].i, NAN, &err)) {
            kvd_checkpoint *const c = open_or_end(path);
            e = kvd_engine_open_cuda(c, &none, &spec, &err);
            kvd_checkpoint_close(c);
        }
        const char *const want = bad[i].prompts ? bad[i].prompts : bad[i].step;
        const int first = e && e->step(e, &prompts, id, token, NULL, &err);
        const int second = e && !first && e->step(e, &steps, &last, token, NULL, &err);
        test_result((bad[i].prompts ? first : second) && strstr(err.msg, want), "not finite", "%s",
                    err.msg);
        if (e)
            e->free(e);
    }
}

static void test_refused_on_two(void)
{
    const setting set = {"refused", 3, 0, false, false, false};
    const kvd_plan none = {.type = KVD_BF16};
    kvd_checkpoint *const c = open_or_end("tests/data/families/falcon-7b");
    const kvd_engine_spec s = spec_of(&set, 100);
    kvd_engine_spec alone = s;
    kvd_plan tokens;
    kvd_method m;
    kvd_err err = {""};
    if (kvd_method_parse("kvzip", &m, &err))
        test_result(0, "refused", "%s", err.msg);
    tokens = m.plan;
    tokens.type = KVD_BF16;
    refused(c, &none, &s, "1 KV heads do not divide by 2 GPUs");
    alone.sequence = true;
    refused(c, &none, &alone, "one at a time, not 3");
    refused(c, &tokens, &alone, "on one GPU, 2 were asked for");
    kvd_checkpoint_close(c);
}

/* With 2,600 tokens, GPUs sum one half of the rows while they multiply the other half. */
static void test_halves(const subject *m)
{
    static const request r[] = {{900, 2}, {900, 3}, {800, 1}, {70, 4}};
    static const setting set = {"2600 tokens at once, phases", 3, 0, true, true, false};
    kvd_err err = {""};
    kvd_checkpoint *const c = open_or_end(m->path);
    load l = load_make(c, r, 4, 17);
    if (expect(&l, c, NULL, &err))
        test_result(0, m->name, "%s", err.msg);
    else
        test(c, m->name, &l, NULL, "none", &set);
    load_release(&l);
    kvd_checkpoint_close(c);
}

static const subject grouped = {"tests/data/families/qwen2-gqa", "qwen2-gqa"};

static void test_on(const subject *m, int gpus, int quick, const setting *const *some,
                    const setting *const *more)
{
    use_gpus(gpus);
    test_whole(m, quick);
    test_dims(m, long_ones, quick ? 4 : 12, quick ? some : more);
    if (gpus <= 2)
        test_dims(&grouped, short_ones, 6, some);
    test_context(m);
    test_windows(quick);
    test_wide(quick);
    if (quick)
        return;
    test_families(short_ones, &replayed, &pieces);
    test_shapes(short_ones);
    test_halves(m);
    if (gpus == 1)
        test_refused();
    else if (gpus == 2)
        test_refused_on_two();
    if (gpus <= 2)
        test_nonfinite();
}

static void test_by_tokens(const subject *m, int gpus, int quick)
{
    static const setting *const set[] = {&by_tokens, NULL};
    kvd_err err = {""};
    kvd_checkpoint *const c = open_or_end(m->path);
    load l = load_make(c, prompts_alone, 8, 11);
    use_gpus(gpus);
    if (expect(&l, c, NULL, &err))
        test_result(0, m->name, "%s", err.msg);
    else
        test(c, m->name, &l, NULL, "none", &by_tokens);
    load_release(&l);
    kvd_checkpoint_close(c);
    test_dims(m, prompts_alone, quick ? 4 : 8, set);
    if (!quick && gpus == 2) {
        test_dims(&grouped, two_pages, 6, set);
        test_families(one_page, &by_tokens, NULL);
    }
}

static void test_on_four(const setting *const *set)
{
    char path[64];
    const subject made = {path, "made"};
    kvd_err err = {""};
    made_spec s = MADE_SPEC_DEFAULTS;
    s.layers = 4;
    s.heads = 24;
    s.kv_heads = 8;
    s.d_head = 64;
    s.d_model = 256;
    s.ffn = 512;
    s.positions = 1024;
    use_gpus(4);
    (void)snprintf(path, sizeof path, "%s/made", temp_folder());
    if (make_checkpoint(path, &s, &err)) {
        test_result(0, made.name, "%s", err.msg);
    } else {
        test_on(&made, 4, 0, set, set);
        test_by_tokens(&made, 4, 0);
    }
}

/*
 * usage: gpu_engine [quick] [one|windows|wide|two|halves|tokens|four]
 * quick    small cases
 * one      one GPU
 * windows  one GPU, sliding windows
 * wide     one GPU, heads of 256
 * two      two GPUs
 * halves   two GPUs, sums during products
 * tokens   two GPUs divide prompts by tokens
 * four     four GPUs
 */
int main(int argc, char **argv)
{
    static const setting *const some[] = {&replayed, &pieces, NULL};
    static const setting *const more[] = {&replayed, &pieces, &many, &many_pieces, NULL};
    const int quick = argc > 1 && strcmp(argv[1], "quick") == 0;
    const char *const which = argc > 1 + quick ? argv[argc - 1] : "all";
    const int all = strcmp(which, "all") == 0, four = strcmp(which, "four") == 0;
    const int devices = gpu_devices("engine", 1);
    if (!devices)
        return 0;
    if (all || strcmp(which, "one") == 0)
        test_on(&small, 1, quick, some, more);
    if (strcmp(which, "windows") == 0) {
        test_windows(quick);
        return failures ? 1 : 0;
    }
    if (strcmp(which, "wide") == 0) {
        test_wide(quick);
        return failures ? 1 : 0;
    }
    if (devices < 2 && strcmp(which, "one") != 0)
        printf("skip engine on 2 GPUs: %d device\n", devices);
    if (devices > 1 && (all || strcmp(which, "two") == 0))
        test_on(&small, 2, quick, some, more);
    if (devices > 1 && strcmp(which, "halves") == 0) {
        use_gpus(2);
        test_halves(&small);
    }
    if (devices > 1 && (all || strcmp(which, "tokens") == 0))
        test_by_tokens(&small, 2, quick);
    if (devices > 3 && (four || (all && !quick)))
        test_on_four(some);
    else if (four || (all && devices > 1))
        printf("skip engine on 4 GPUs: %d devices\n", devices);
    return failures ? 1 : 0;
}
