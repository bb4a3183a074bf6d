#include <math.h>
#include <stdio.h>
#include <string.h>

#include "common/rng.h"
#include "config_case.h"
#include "forward_case.h"
#include "model/pass/latent.h"
#include "model/pass/routing.h"
#include "unit.h"

static float normal(kvd_rng *rng)
{
    return (float)kvd_rng_normal(rng);
}

TEST(test_routing)
{
    static const struct {
        int experts, chosen, groups, groups_chosen;
        bool sigmoid, add_up;
        double scale;
    } cases[] = {{9, 3, 3, 2, false, false, 1.7},  {5, 5, 1, 1, false, false, 1},
                 {12, 4, 4, 2, true, true, 2.5},   {6, 2, 1, 1, true, false, 1},
                 {160, 6, 8, 3, false, false, 16}, {256, 8, 8, 4, true, true, 2.5}};
    kvd_rng rng;
    kvd_rng_seed(&rng, 5, 0);
    for (size_t i = 0; i < sizeof cases / sizeof *cases; i++)
        for (int run = 0; run < 200; run++) {
            const kvd_config c = {.n_experts = cases[i].experts,
                                  .n_chosen = cases[i].chosen,
                                  .expert_groups = cases[i].groups,
                                  .groups_chosen = cases[i].groups_chosen,
                                  .route_sigmoid = cases[i].sigmoid,
                                  .chosen_add_up = cases[i].add_up,
                                  .expert_scale = cases[i].scale};
            float logit[256], bias[256], factor[256], all[256] = {0};
            double wide[256], wide_bias[256], p[256], scratch[KVD_ROUTE_SCRATCH * 256];
            size_t expert[256];
            for (int e = 0; e < c.n_experts; e++) {
                logit[e] = run % 3 ? normal(&rng) : roundf(normal(&rng));
                bias[e] = run % 2 ? normal(&rng) : 0;
                wide[e] = (double)logit[e];
                wide_bias[e] = (double)bias[e];
            }
            kvd_route_groups(&c, logit, c.route_sigmoid ? bias : NULL, scratch, expert, factor);
            ref_route_groups(&c, wide, c.route_sigmoid ? wide_bias : NULL, p);
            for (int j = 0; j < c.n_chosen; j++) {
                assert_true(expert[j] < (size_t)c.n_experts && all[expert[j]] <= 0);
                all[expert[j]] = factor[j];
            }
            for (int e = 0; e < c.n_experts; e++)
                if (!(fabs((double)all[e] - p[e]) <= 1e-6 * c.expert_scale))
                    fail_msg("case %zu, run %d, expert %d: %g, reference %g", i, run, e,
                             (double)all[e], p[e]);
        }
}

/* The best expert must not be chosen if its group is not chosen. NaN logits must give NaN
 * factors. */
TEST(test_routing_by_hand)
{
    kvd_config c = {.n_experts = 4,
                    .n_chosen = 2,
                    .expert_groups = 2,
                    .groups_chosen = 1,
                    .route_sigmoid = true,
                    .chosen_add_up = true,
                    .expert_scale = 3};
    const float logit[] = {2, -9, 1, 1}, bias[] = {0, 0, 0, 0.5F}, nan[] = {NAN, NAN, NAN, NAN};
    size_t expert[2];
    float factor[2];
    double scratch[KVD_ROUTE_SCRATCH * 4];
    kvd_route_groups(&c, logit, bias, scratch, expert, factor);
    assert_int_equal(expert[0], 3);
    assert_int_equal(expert[1], 2);
    assert_true(fabsf(factor[0] - 1.5F) < 1e-6F && fabsf(factor[1] - 1.5F) < 1e-6F);
    c.route_sigmoid = c.chosen_add_up = false;
    kvd_route_groups(&c, logit, NULL, scratch, expert, factor);
    assert_int_equal(expert[0], 0);
    assert_int_equal(expert[1], 1);
    const double sum = exp(2) + exp(-9) + 2 * exp(1);
    assert_true(fabs((double)factor[0] - 3 * exp(2) / sum) < 1e-6);
    kvd_route_groups(&c, nan, NULL, scratch, expert, factor);
    assert_true(isnan(factor[0]) && isnan(factor[1]));
    /* A MiniMax-M2 model may have a single expert, whose group then has no second-best expert to
     * count. */
    c = (kvd_config){.n_experts = 1,
                     .n_chosen = 1,
                     .expert_groups = 1,
                     .groups_chosen = 1,
                     .expert_scale = 1,
                     .route_sigmoid = true,
                     .chosen_add_up = true};
    kvd_route_groups(&c, logit, NULL, scratch, expert, factor);
    assert_true(expert[0] == 0 && factor[0] == 1);
}

/* w_o must map the heads' attention outputs to the layer's output. w_v must map the layer's input
 * to the cached V, up to a constant factor. */
TEST(test_matrices)
{
    static const char *const names[] = {"deepseek-v2", "deepseek-v3-plain"};
    enum { ROWS = 3 };
    for (size_t i = 0; i < 2; i++) {
        kvd_err err = {""};
        char path[128];
        (void)snprintf(path, sizeof path, "tests/data/families/%s", names[i]);
        kvd_checkpoint *const checkpoint = open_checkpoint(path);
        const kvd_config *const c = kvd_checkpoint_config(checkpoint);
        const size_t d = (size_t)c->d_head, m = (size_t)c->d_model, heads = (size_t)c->n_heads,
                     rope = (size_t)c->rope_dims;
        kvd_weight part[KVD_LAYER_WEIGHTS];
        kvd_layer_weights w;
        kvd_rng rng;
        kvd_rng_seed(&rng, 9, 0);
        OK(kvd_layer_find(checkpoint, 0, part, &err));
        float *const buffer = unit_alloc((kvd_layer_buffer_size(part) + 1) * sizeof *buffer),
                     *const w_o = unit_alloc(heads * d * m * sizeof *w_o),
                     *const w_v = unit_alloc(d * m * sizeof *w_v);
        float *const o = unit_alloc(ROWS * heads * d * sizeof *o), *const y = unit_alloc(ROWS * m *
                                                                                         sizeof *y);
        float *const scratch = unit_alloc(ROWS * kvd_layer_scratch(c) * sizeof *scratch);
        float *const x = unit_alloc(ROWS * m * sizeof *x),
                     *const v = unit_alloc(ROWS * d * sizeof *v),
                     *const k = unit_alloc(ROWS * d * sizeof *k);
        kvd_layer_load(part, buffer, &w);
        kvd_forward *const f = open_forward(checkpoint, 1, 1);
        OK(kvd_forward_weights_o(f, 0, w_o, &err));
        OK(kvd_forward_weights_v(f, 0, w_v, &err));
        for (size_t j = 0; j < ROWS * heads * d; j++)
            o[j] = normal(&rng);
        for (size_t j = 0; j < ROWS * m; j++)
            x[j] = normal(&rng);
        kvd_layer_output(c, &w, o, ROWS, scratch, y, 0);
        for (size_t r = 0; r < ROWS; r++)
            for (size_t to = 0; to < m; to++) {
                double sum = 0;
                for (size_t j = 0; j < heads * d; j++)
                    sum += (double)o[r * heads * d + j] * (double)w_o[j * m + to];
                if (!(fabs(sum - (double)y[r * m + to]) < 1e-4))
                    fail_msg("row %zu, column %zu: %g, %g", r, to, sum, (double)y[r * m + to]);
            }
        const kvd_layer_qkv out = {.q = o, .k = k, .v = v};
        kvd_latent_project(c, &w, x, ROWS, scratch, &out);
        for (size_t r = 0; r < ROWS; r++) {
            double dot = 0, square = 0, other = 0;
            for (size_t j = 0; j < d; j++) {
                double sum = 0;
                for (size_t from = 0; from < m; from++)
                    sum += (double)w_v[j * m + from] * (double)x[r * m + from];
                assert_true(j >= rope || (sum >= 0 && sum <= 0 && fabsf(v[r * d + j]) <= 0));
                assert_true(j < rope || fabsf(k[r * d + j] - v[r * d + j]) <= 0);
                dot += sum * (double)v[r * d + j];
                square += sum * sum;
                other += (double)v[r * d + j] * (double)v[r * d + j];
            }
            assert_true(fabs(dot - sqrt(square * other)) < 1e-5 * dot);
        }
    }
}

/* config.json of deepseek-ai/DeepSeek-V2-Lite */
static const char v2_lite[] =
    "{'architectures':['DeepseekV2ForCausalLM'],'attention_bias':false,'attention_dropout':0.0,"
    "'aux_loss_alpha':0.001,'bos_token_id':100000,'eos_token_id':100001,"
    "'first_k_dense_replace':1,'hidden_act':'silu','hidden_size':2048,'intermediate_size':10944,"
    "'kv_lora_rank':512,'max_position_embeddings':163840,'model_type':'deepseek_v2',"
    "'moe_intermediate_size':1408,'moe_layer_freq':1,'n_group':1,'n_routed_experts':64,"
    "'n_shared_experts':2,'norm_topk_prob':false,'num_attention_heads':16,"
    "'num_experts_per_tok':6,'num_hidden_layers':27,'num_key_value_heads':16,'pretraining_tp':1,"
    "'q_lora_rank':null,'qk_nope_head_dim':128,'qk_rope_head_dim':64,'rms_norm_eps':1e-06,"
    "'rope_scaling':{'beta_fast':32,'beta_slow':1,'factor':40,'mscale':0.707,"
    "'mscale_all_dim':0.707,'original_max_position_embeddings':4096,'type':'yarn'},"
    "'rope_theta':10000,'routed_scaling_factor':1.0,'scoring_func':'softmax','seq_aux':true,"
    "'tie_word_embeddings':false,'topk_group':1,'topk_method':'greedy','torch_dtype':'bfloat16',"
    "'use_cache':true,'v_head_dim':128,'vocab_size':102400}";

/* config.json of deepseek-ai/DeepSeek-V3, without quantization_config */
static const char v3[] =
    "{'architectures':['DeepseekV3ForCausalLM'],'attention_bias':false,'bos_token_id':0,"
    "'eos_token_id':1,'ep_size':1,'first_k_dense_replace':3,'hidden_act':'silu',"
    "'hidden_size':7168,'intermediate_size':18432,'kv_lora_rank':512,"
    "'max_position_embeddings':163840,'model_type':'deepseek_v3','moe_intermediate_size':2048,"
    "'moe_layer_freq':1,'n_group':8,'n_routed_experts':256,'n_shared_experts':1,"
    "'norm_topk_prob':true,'num_attention_heads':128,'num_experts_per_tok':8,"
    "'num_hidden_layers':61,'num_key_value_heads':128,'num_nextn_predict_layers':1,"
    "'q_lora_rank':1536,'qk_nope_head_dim':128,'qk_rope_head_dim':64,'rms_norm_eps':1e-06,"
    "'rope_scaling':{'beta_fast':32,'beta_slow':1,'factor':40,'mscale':1.0,'mscale_all_dim':1.0,"
    "'original_max_position_embeddings':4096,'type':'yarn'},'rope_theta':10000,"
    "'routed_scaling_factor':2.5,'scoring_func':'sigmoid','tie_word_embeddings':false,"
    "'topk_group':4,'topk_method':'noaux_tc','v_head_dim':128,'vocab_size':129280}";

TEST(test_configurations)
{
    kvd_config c = accept(v2_lite);
    assert_true(c.n_kv_heads == 1 && c.d_head == 576 && c.latent == 512 && c.rope_dims == 64);
    assert_true(c.d_nope == 128 && c.d_value == 128 && c.q_rank == 0 && c.d_shared == 2816);
    assert_true(!kvd_config_routed(&c, 0) && kvd_config_routed(&c, 1));
    assert_int_equal(kvd_config_cached(&c), 576);
    const double mscale = 0.1 * 0.707 * log(40) + 1;
    assert_true(fabs(c.score_scale - mscale * mscale / sqrt(192)) < 1e-12);
    assert_true(fabs(c.rope_attention_factor - 1) < 1e-12);
    assert_true(c.expert_groups == 1 && !c.route_sigmoid && !c.chosen_add_up);
    c = accept(v3);
    assert_true(c.q_rank == 1536 && c.expert_groups == 8 && c.groups_chosen == 4);
    assert_true(c.route_sigmoid && c.chosen_add_up && c.extra_layers == 1);
    assert_true(!kvd_config_routed(&c, 2) && kvd_config_routed(&c, 3));
    assert_int_equal(c.rope_layout, KVD_ROPE_INTERLEAVED);
    assert_true(kvd_family_knows(&c, "model.layers.61.embed_tokens.weight"));
    assert_false(kvd_family_knows(&c, "model.layers.62.embed_tokens.weight"));
    /* copy of the configuration v3 without layers for multi-token prediction */
    char without[sizeof v3];
    memcpy(without, v3, sizeof v3);
    strstr(without, "_predict_layers':1")[strlen("_predict_layers':")] = '0';
    assert_int_equal(accept(without).extra_layers, 0);
    assert_true(kvd_family_knows(&c, "model.layers.3.mlp.gate.e_score_correction_bias"));
    assert_false(kvd_family_knows(&c, "model.layers.2.mlp.gate.e_score_correction_bias"));

    refuse_config(
        v2_lite, "'topk_method':'greedy'", "'topk_method':'noaux_tc'",
        "'topk_method' is 'noaux_tc', only 'greedy' and 'group_limited_greedy' are supported");
    refuse_config(v2_lite, "'norm_topk_prob':false", "'norm_topk_prob':true",
                  "'norm_topk_prob' is true, which the library ignores");
    refuse_config(v2_lite, "'num_key_value_heads':16", "'num_key_value_heads':4",
                  "'num_key_value_heads' is 4, latent attention expands to all 16 query heads");
    refuse_config(v2_lite, "'attention_bias':false", "'attention_bias':true",
                  "'attention_bias' is true, biases of latent attention are not supported");
    refuse_config(v2_lite, "'moe_layer_freq':1", "'moe_layer_freq':2",
                  "'moe_layer_freq' is 2, only 1 is supported");
    refuse_config(v2_lite, "'qk_rope_head_dim':64", "'qk_rope_head_dim':64,'head_dim':192",
                  "'head_dim' is 192, latent attention needs 'qk_rope_head_dim', 64");
    refuse_config(v2_lite, "'qk_rope_head_dim':64", "'qk_rope_head_dim':63",
                  "'qk_rope_head_dim' is 63, RoPE needs an even number");
    refuse_config(v3, "'scoring_func':'sigmoid'", "'scoring_func':'softmax'",
                  "'scoring_func' is 'softmax', only 'sigmoid' is supported");
    refuse_config(v3, "'n_group':8", "'n_group':7", "256 experts do not form 'n_group' 7 groups");
    refuse_config(v3, "'topk_group':4", "'topk_group':9", "'topk_group' is 9 of 8 groups");
    refuse_config(v3, "'ep_size':1", "'quantization_config':{'quant_method':'fp8'}",
                  "'quantization_config' is set, which is not supported");
}

TEST_MAIN(NULL, NULL)
