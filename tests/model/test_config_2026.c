#include <stdio.h>

#include <math.h>

#include "model/checkpoint/family.h"

#include "config_case.h"
#include "unit.h"

/* config.json of google/gemma-2-27b */
static const char gemma2[] =
    "{'architectures':['Gemma2ForCausalLM'],'attention_bias':false,'attn_logit_softcapping':50.0,"
    "'bos_token_id':2,'cache_implementation':'hybrid','eos_token_id':1,"
    "'final_logit_softcapping':30.0,'head_dim':128,'hidden_act':'gelu_pytorch_tanh',"
    "'hidden_activation':'gelu_pytorch_tanh','hidden_size':4608,'intermediate_size':36864,"
    "'max_position_embeddings':8192,'model_type':'gemma2','num_attention_heads':32,"
    "'num_hidden_layers':46,'num_key_value_heads':16,'query_pre_attn_scalar':144,"
    "'rms_norm_eps':1e-06,'rope_theta':10000.0,'sliding_window':4096,'vocab_size':256000}";

/* configuration of google/gemma-2b, where "gelu" means tanh-approximated GELU */
static const char gemma[] =
    "{'architectures':['GemmaForCausalLM'],'attention_bias':false,'attention_dropout':0.0,"
    "'bos_token_id':2,'eos_token_id':1,'head_dim':256,'hidden_act':'gelu','hidden_size':2048,"
    "'intermediate_size':16384,'max_position_embeddings':8192,'model_type':'gemma',"
    "'num_attention_heads':8,'num_hidden_layers':18,'num_key_value_heads':1,'pad_token_id':0,"
    "'rms_norm_eps':1e-06,'rope_scaling':null,'rope_theta':10000.0,'vocab_size':256000}";

TEST(test_gemma)
{
    const kvd_config c = accept(gemma);
    assert_true(c.n_kv_heads == 1 && c.d_head == 256 && c.activation == KVD_GEGLU_TANH);
    assert_true(c.order == KVD_ORDER_BEFORE && c.norm_plus_one && c.tied_head && !c.qk_norm);
    assert_true(c.score_scale <= 0 && fabs(c.embed_scale - sqrt(2048)) < 1e-12);
    refuse_config(gemma, "'hidden_act':'gelu'", "'hidden_act':'silu'",
                  "'hidden_act' is 'silu', only 'gelu_pytorch_tanh' is supported");
    refuse_config(gemma, "'pad_token_id':0", "'use_bidirectional_attention':true",
                  "only causal attention is supported");
}

TEST(test_gemma2)
{
    const kvd_config c = accept(gemma2);
    assert_string_equal(c.family, "gemma2");
    assert_int_equal(c.n_layers, 46);
    assert_int_equal(c.n_kv_heads, 16);
    assert_int_equal(c.d_head, 128);
    assert_int_equal(c.activation, KVD_GEGLU_TANH);
    assert_int_equal(c.order, KVD_ORDER_AROUND);
    assert_true(c.norm_plus_one && c.tied_head && !c.qk_norm);
    assert_true(fabs(c.score_scale - 1 / 12.0) < 1e-15);
    assert_true(fabs(c.embed_scale - sqrt(4608)) < 1e-12);
    assert_true(c.score_softcap == 50 && c.logit_softcap == 30);
    for (int l = 0; l < c.n_layers; l++)
        assert_int_equal(kvd_config_window(&c, l), l % 2 ? 0 : 4096);
    refuse_config(gemma2, "'hidden_activation':'gelu_pytorch_tanh'", "'hidden_activation':'silu'",
                  "'hidden_activation' is 'silu', only 'gelu_pytorch_tanh' is supported");
    refuse_config(gemma2, "'rms_norm_eps':1e-06,", "", "'rms_norm_eps' is missing");
    refuse_config(gemma2, "'attention_bias':false", "'use_bidirectional_attention':true",
                  "'use_bidirectional_attention' is true, only causal attention is supported");
    refuse_config(gemma2, "'query_pre_attn_scalar':144", "'query_pre_attn_scalar':0",
                  "'query_pre_attn_scalar' is 0, not positive");
}

/* config.json of google/gemma-3-1b-it */
static const char gemma3_text[] =
    "{'architectures':['Gemma3ForCausalLM'],'attention_bias':false,'attn_logit_softcapping':null,"
    "'bos_token_id':2,'cache_implementation':'hybrid','eos_token_id':[1,106],"
    "'final_logit_softcapping':null,'head_dim':256,'hidden_activation':'gelu_pytorch_tanh',"
    "'hidden_size':1152,'intermediate_size':6912,'max_position_embeddings':32768,"
    "'model_type':'gemma3_text','num_attention_heads':4,'num_hidden_layers':26,"
    "'num_key_value_heads':1,'query_pre_attn_scalar':256,'rms_norm_eps':1e-06,"
    "'rope_local_base_freq':10000,'rope_scaling':null,'rope_theta':1000000,'sliding_window':512,"
    "'sliding_window_pattern':6,'vocab_size':262144}";

/* config.json of google/gemma-3-27b-it, whose text_config omits defaults */
static const char gemma3[] =
    "{'architectures':['Gemma3ForConditionalGeneration'],'boi_token_index':255999,"
    "'eoi_token_index':256000,'eos_token_id':[1,106],'image_token_index':262144,"
    "'mm_tokens_per_image':256,'model_type':'gemma3','text_config':{'head_dim':128,"
    "'hidden_size':5376,'intermediate_size':21504,'model_type':'gemma3_text',"
    "'num_attention_heads':32,'num_hidden_layers':62,'num_key_value_heads':16,"
    "'query_pre_attn_scalar':168,'rope_scaling':{'factor':8.0,'rope_type':'linear'},"
    "'sliding_window':1024},'vision_config':{'hidden_size':1152}}";

TEST(test_gemma3)
{
    kvd_config c = accept(gemma3_text);
    assert_string_equal(c.family, "gemma3_text");
    assert_int_equal(c.d_head, 256);
    assert_true(c.score_softcap == 0 && c.logit_softcap == 0 && c.qk_norm);
    assert_true(c.rope_theta == 1e6 && c.rope_local_theta == 1e4);
    assert_int_equal(c.eos_id, 1);
    for (int l = 0; l < c.n_layers; l++)
        assert_int_equal(kvd_config_window(&c, l), (l + 1) % 6 ? 512 : 0);

    c = accept(gemma3);
    assert_string_equal(c.family, "gemma3");
    assert_int_equal(c.n_layers, 62);
    assert_int_equal(c.vocab_size, 262208);
    assert_int_equal(c.max_positions, 131072);
    assert_int_equal(c.d_head, 128);
    assert_true(c.tied_head);
    assert_int_equal(c.rope_scaling, KVD_ROPE_LINEAR);
    assert_true(c.rope_factor == 8 && c.rope_theta == 1e6 && c.rope_local_theta == 1e4);
    assert_true(fabs(c.score_scale - 1 / sqrt(168)) < 1e-15);

    /* Transformers 5 writes RoPE settings for each type of attention layer. */
    c = accept("{'model_type':'gemma3_text','hidden_size':64,'num_hidden_layers':2,"
               "'layer_types':['full_attention','sliding_attention'],'sliding_window':9,"
               "'rope_parameters':{'full_attention':{'rope_type':'linear','factor':2.0,"
               "'rope_theta':5000.0},'sliding_attention':{'rope_type':'default',"
               "'rope_theta':300.0}}}");
    assert_int_equal(kvd_config_window(&c, 0), 0);
    assert_int_equal(kvd_config_window(&c, 1), 9);
    assert_true(c.rope_factor == 2 && c.rope_theta == 5000 && c.rope_local_theta == 300);
    c = accept("{'model_type':'gemma3_text','hidden_size':64,'num_hidden_layers':2,"
               "'rope_local_base_freq':200,'rope_parameters':{'sliding_attention':{'rope_type':"
               "'default'}}}");
    assert_true(c.rope_local_theta == 200);

    refuse_config(gemma3, "'text_config'", "'other'", "'text_config' is missing");
    refuse_config(
        gemma3, "'sliding_window':1024", "'final_logit_softcapping':30",
        "text_config: 'final_logit_softcapping' is 30, which the Hugging Face library does not");
    refuse_config(gemma3, "'sliding_window':1024",
                  "'rope_parameters':{'sliding_attention':{'rope_type':'linear','factor':2}}",
                  "rope_parameters: sliding_attention: rope type 'linear'");
    /* Settings whose effect on this model is not known must be refused. */
    refuse_config(gemma3_text, "'rope_scaling':null",
                  "'rope_parameters':{'rope_type':'linear','factor':8}",
                  "'rope_parameters' has neither 'full_attention' nor 'sliding_attention'");
    refuse_config(gemma3_text, "'rope_scaling':null", "'rope_scaling':{'type':'linear','factor':8}",
                  "rope_scaling: the Hugging Face library does not read 'type' in this model");
    refuse_config(gemma3_text, "'attn_logit_softcapping':null", "'attn_logit_softcapping':50",
                  "'attn_logit_softcapping' is 50, which the Hugging Face library does not apply");
}

/* config.json of allenai/OLMo-2-1124-7B and, further down, allenai/Olmo-3-1025-7B */
static const char olmo2[] =
    "{'architectures':['Olmo2ForCausalLM'],'attention_bias':false,'eos_token_id':100257,"
    "'hidden_act':'silu','hidden_size':4096,'intermediate_size':11008,"
    "'max_position_embeddings':4096,'model_type':'olmo2','num_attention_heads':32,"
    "'num_hidden_layers':32,'num_key_value_heads':32,'rms_norm_eps':1e-06,'rope_scaling':null,"
    "'rope_theta':500000,'tie_word_embeddings':false,'vocab_size':100352}";
static const char olmo3[] =
    "{'architectures':['Olmo3ForCausalLM'],'attention_bias':false,'eos_token_id':100257,"
    "'hidden_act':'silu','hidden_size':4096,'intermediate_size':11008,"
    "'max_position_embeddings':65536,'model_type':'olmo3','num_attention_heads':32,"
    "'num_hidden_layers':32,'num_key_value_heads':32,'rms_norm_eps':1e-06,"
    "'rope_scaling':{'attention_factor':1.2079441541679836,'beta_fast':32,'beta_slow':1,"
    "'factor':8.0,'original_max_position_embeddings':8192,'rope_type':'yarn'},"
    "'rope_theta':500000,'sliding_window':4096,'vocab_size':100278}";

TEST(test_olmo)
{
    kvd_config c = accept(olmo2);
    assert_int_equal(c.order, KVD_ORDER_BRANCH);
    assert_true(c.qk_norm && c.qk_norm_whole && !c.norm_plus_one && !c.tied_head);
    assert_true(c.rope_theta == 500000 && c.rope_local_theta == 0 && c.window == 0);
    c = accept(olmo3);
    assert_int_equal(c.rope_scaling, KVD_ROPE_YARN);
    assert_true(c.rope_factor == 8 && c.rope_theta == 500000 && c.rope_local_theta == 500000);
    assert_true(c.rope_attention_factor == 1.2079441541679836 && c.rope_truncate);
    assert_int_equal(c.rope_original_positions, 8192);
    for (int l = 0; l < c.n_layers; l++)
        assert_int_equal(kvd_config_window(&c, l), (l + 1) % 4 ? 4096 : 0);
    /* In layers with a sliding window, Transformers 5 always uses rope_theta = 500000, so another
     * value is refused. */
    refuse_config(olmo3, "'rope_theta':500000", "'rope_theta':10000",
                  "'rope_theta' is 10000, but the Hugging Face library takes 500000 in layers with "
                  "a window");
    refuse_config(olmo3, "'vocab_size'", "'rope_local_base_freq':1e4,'vocab_size'",
                  "'rope_local_base_freq' is set, which is not supported");
    refuse_config(olmo3, "'beta_fast':32", "'beta_fast':0.5",
                  "'beta_fast' 0.5 is below 'beta_slow' 1");
}

/* config.json of zai-org/GLM-4-9B-0414 */
static const char glm4[] =
    "{'architectures':['Glm4ForCausalLM'],'attention_bias':true,'attention_dropout':0.0,"
    "'eos_token_id':[151329,151336,151338],'head_dim':128,'hidden_act':'silu','hidden_size':4096,"
    "'intermediate_size':13696,'max_position_embeddings':32768,'model_type':'glm4',"
    "'num_attention_heads':32,'num_hidden_layers':40,'num_key_value_heads':2,"
    "'partial_rotary_factor':0.5,'rms_norm_eps':1e-05,'rope_theta':10000.0,"
    "'tie_word_embeddings':false,'vocab_size':151552}";

TEST(test_glm)
{
    const kvd_config c = accept(glm4);
    assert_int_equal(c.order, KVD_ORDER_AROUND);
    assert_int_equal(c.rope_dims, 64);
    assert_int_equal(c.rope_layout, KVD_ROPE_INTERLEAVED);
    assert_true(c.bias_qkv && !c.bias_o);
    refuse_config(glm4, "'partial_rotary_factor':0.5", "'partial_rotary_factor':1.5",
                  "'partial_rotary_factor' is 1.5, more than 1");
    refuse_config(glm4, "'partial_rotary_factor':0.5", "'partial_rotary_factor':null",
                  "'partial_rotary_factor' is null");
    refuse_config(
        glm4, "'partial_rotary_factor':0.5", "'partial_rotary_factor':0.01",
        "'partial_rotary_factor' 0.01 of a head of 128 is 1 dimensions, RoPE needs an even");
}

/* config.json of bigcode/starcoder2-3b */
static const char starcoder2[] =
    "{'architectures':['Starcoder2ForCausalLM'],'activation_function':'gelu',"
    "'attention_dropout':0.1,'bos_token_id':0,'eos_token_id':0,'hidden_act':'gelu_pytorch_tanh',"
    "'hidden_size':3072,'intermediate_size':12288,'max_position_embeddings':16384,"
    "'mlp_type':'default','model_type':'starcoder2','norm_epsilon':1e-05,"
    "'norm_type':'layer_norm','num_attention_heads':24,'num_hidden_layers':30,"
    "'num_key_value_heads':2,'rope_theta':999999.4420358813,'sliding_window':4096,"
    "'use_bias':true,'vocab_size':49152}";

TEST(test_starcoder2)
{
    const kvd_config c = accept(starcoder2);
    assert_int_equal(c.norm, KVD_NORM_LAYER);
    assert_int_equal(c.activation, KVD_GELU_TANH);
    assert_true(c.bias_qkv && c.bias_o && c.bias_ffn && c.tied_head);
    assert_int_equal(kvd_config_window(&c, 29), 4096);
    refuse_config(starcoder2, "'norm_epsilon':1e-05,", "", "'norm_epsilon' is missing");
}

TEST(test_yarn)
{
    static const char qwen[] =
        "{'model_type':'qwen2','hidden_size':3584,'intermediate_size':18944,"
        "'max_position_embeddings':32768,'num_attention_heads':28,'num_hidden_layers':28,"
        "'num_key_value_heads':4,'rms_norm_eps':1e-06,'rope_theta':1000000.0,'vocab_size':152064,"
        "'rope_scaling':{'factor':4.0,'original_max_position_embeddings':32768,'type':'yarn'}}";
    const kvd_config c = accept(qwen);
    assert_true(c.rope_beta_fast == 32 && c.rope_beta_slow == 1 && c.rope_truncate);
    assert_true(fabs(c.rope_attention_factor - (0.1 * log(4) + 1)) < 1e-15);
    refuse_config(qwen, "'factor':4.0", "'factor':4.0,'short_factor':[1]",
                  "'short_factor' is not known for rope type 'yarn'");
    /* Accepts the entry "finetuned", which NousResearch/Yarn-Llama-2-7b-64k has in its RoPE
     * settings. */
    (void)accept(edit_config(qwen, "'factor':4.0", "'factor':4.0,'finetuned':true"));
    const kvd_config plain = accept(edit_config(
        qwen, "'original_max_position_embeddings':32768,'type':'yarn'", "'type':'dynamic'"));
    assert_true(plain.rope_scaling == KVD_ROPE_DEFAULT && plain.rope_theta == 1e6);
}

/* entries of config.json: sizes of a small model, for any family */
#define SIZES(layers)                                                                              \
    "'hidden_act':'silu','hidden_size':64,'intermediate_size':96,"                                 \
    "'num_hidden_layers':" #layers ",'num_attention_heads':4,'num_key_value_heads':2,"             \
    "'vocab_size':64,'max_position_embeddings':32768,'rms_norm_eps':1e-05,"

/* parts of config.json of HuggingFaceTB/SmolLM3-3B and LGAI-EXAONE/EXAONE-4.0-32B */
static const char smollm3[] =
    "{" SIZES(8) "'architectures':['SmolLM3ForCausalLM'],'model_type':'smollm3',"
                 "'no_rope_layer_interval':4,'no_rope_layers':[1,1,1,0,1,1,1,0],"
                 "'pretraining_tp':2,'rope_theta':5000000.0,'use_sliding_window':false,"
                 "'sliding_window':null,'max_window_layers':28}";
static const char exaone4[] =
    "{" SIZES(8) "'architectures':['Exaone4ForCausalLM'],'model_type':'exaone4',"
                 "'layer_types':['sliding_attention','sliding_attention','sliding_attention',"
                 "'full_attention','sliding_attention','sliding_attention','sliding_attention',"
                 "'full_attention'],'rope_theta':1000000,'sliding_window':4096,"
                 "'sliding_window_pattern':'LLLG'}";

TEST(test_layers_without_rope)
{
    const kvd_config s = accept(smollm3), e = accept(exaone4);
    const kvd_config by_interval = accept(edit_config(smollm3, "'no_rope_layers'", "'x'"));
    assert_true(s.tied_head && !e.tied_head && e.order == KVD_ORDER_BRANCH && e.qk_norm);
    for (int l = 0; l < 8; l++) {
        assert_int_equal(kvd_config_unrotated(&s, l), l % 4 == 3);
        assert_int_equal(kvd_config_unrotated(&by_interval, l), l % 4 == 3);
        assert_int_equal(kvd_config_unrotated(&e, l), l % 4 == 3);
        assert_int_equal(kvd_config_window(&e, l), l % 4 == 3 ? 0 : 4096);
    }
    refuse_config(smollm3, "[1,1,1,0,1,1,1,0]", "[1,1,1,0]", "'no_rope_layers' is no list of 8");
    refuse_config(smollm3, "[1,1,1,0,", "[1,1,1,2,", "no_rope_layers[3] is neither 0 nor 1");
    refuse_config(smollm3, "'use_sliding_window':false,'sliding_window':null",
                  "'use_sliding_window':true,'sliding_window':9", "'layer_types' is missing");
    refuse_config(exaone4, "'layer_types'", "'x'", "'sliding_window_pattern' is not an integer");
}

/* parts of config.json of ibm-granite/granite-3.3-2b-base and openbmb/MiniCPM-2B-sft-bf16 */
static const char granite[] =
    "{" SIZES(40) "'architectures':['GraniteForCausalLM'],'model_type':'granite',"
                  "'attention_bias':false,'attention_multiplier':0.015625,"
                  "'embedding_multiplier':12.0,'logits_scaling':8.0,'residual_multiplier':0.22,"
                  "'tie_word_embeddings':true}";
static const char minicpm[] =
    "{" SIZES(40) "'architectures':['MiniCPMForCausalLM'],'model_type':'minicpm',"
                  "'dim_model_base':16,'scale_depth':1.4,'scale_emb':12}";

TEST(test_multipliers)
{
    kvd_config c = accept(granite);
    assert_true(c.embed_scale == 12 && c.score_scale == 0.015625 && c.residual_scale == 0.22);
    assert_true(c.logit_scale == 0.125 && c.tied_head);
    c = accept(minicpm);
    assert_true(c.embed_scale == 12 && c.score_scale == 0 && c.logit_scale == 0.25 && c.tied_head);
    assert_true(fabs(c.residual_scale - 1.4 / sqrt(40)) < 1e-15);
    refuse_config(minicpm, "'scale_emb':12", "'mup_denominator':32",
                  "'mup_denominator' is 32, only 40, the number of layers, is supported");
    refuse_config(minicpm, "'scale_emb':12", "'sparse_config':{}", "'sparse_config' is set");
    refuse_config(granite, "'logits_scaling':8.0", "'logits_scaling':0", "not positive");
}

TEST(test_near_llama)
{
    kvd_config c =
        accept("{" SIZES(2) "'architectures':['InternLM3ForCausalLM'],'model_type':'internlm3',"
                            "'qkv_bias':true,'bias':false,'rope_scaling':{'factor':6.0,"
                            "'rope_type':'dynamic'}}");
    assert_true(c.bias_qkv && !c.bias_o && !c.bias_ffn && c.d_head == 128);
    c = accept("{" SIZES(2) "'architectures':['Ernie4_5_ForCausalLM'],'model_type':'ernie4_5',"
                            "'use_bias':false}");
    assert_true(c.rope_theta == 500000 && c.rope_layout == KVD_ROPE_INTERLEAVED && c.tied_head);
    c = accept("{" SIZES(2) "'model_type':'seed_oss','head_dim':null}");
    assert_true(c.bias_qkv && !c.bias_o && c.d_head == 16);
    c = accept("{" SIZES(2) "'model_type':'ministral','sliding_window':9,"
                            "'layer_types':['full_attention','sliding_attention']}");
    assert_true(kvd_config_window(&c, 0) == 0 && kvd_config_window(&c, 1) == 9);
}

/* config.json of CohereLabs/c4ai-command-r7b-12-2024, in part */
static const char cohere2[] =
    "{'architectures':['Cohere2ForCausalLM'],'model_type':'cohere2','hidden_act':'silu',"
    "'hidden_size':64,'intermediate_size':96,'num_hidden_layers':8,'num_attention_heads':4,"
    "'num_key_value_heads':2,'vocab_size':64,'max_position_embeddings':8192,"
    "'layer_norm_eps':1e-05,'logit_scale':0.25,'position_embedding_type':'rope_gptj',"
    "'rope_theta':50000,'rotary_pct':1.0,'sliding_window':4096,'sliding_window_pattern':4,"
    "'use_parallel_block':true}";

TEST(test_cohere)
{
    const kvd_config c = accept(cohere2);
    assert_true(c.norm == KVD_NORM_LAYER && c.norm_no_bias && c.shared_norm && c.tied_head);
    assert_true(c.order == KVD_ORDER_PARALLEL && c.rope_layout == KVD_ROPE_INTERLEAVED);
    assert_true(c.logit_scale == 0.25 && !c.bias_qkv);
    for (int l = 0; l < 8; l++) {
        assert_int_equal(kvd_config_unrotated(&c, l), l % 4 == 3);
        assert_int_equal(kvd_config_window(&c, l), l % 4 == 3 ? 0 : 4096);
    }
    refuse_config(cohere2, "'use_parallel_block'", "'use_qk_norm'",
                  "'use_qk_norm' is true, which is not supported");
    refuse_config(cohere2, "'sliding_window':4096", "'sliding_window':null",
                  "'sliding_window' is null, a cohere2 model needs one");
}

/* config.json of zai-org/GLM-4.5-Air, in part */
static const char glm4_moe[] =
    "{" SIZES(4) "'architectures':['Glm4MoeForCausalLM'],'model_type':'glm4_moe',"
                 "'attention_bias':true,'first_k_dense_replace':1,'head_dim':128,"
                 "'moe_intermediate_size':48,'n_group':1,'n_routed_experts':8,"
                 "'n_shared_experts':1,'norm_topk_prob':true,'num_experts_per_tok':3,"
                 "'num_nextn_predict_layers':1,'partial_rotary_factor':0.5,"
                 "'routed_scaling_factor':1.0,'topk_group':1,'use_qk_norm':false}";

TEST(test_glm4_moe)
{
    const kvd_config c = accept(glm4_moe);
    assert_true(c.d_head == 128 && c.rope_dims == 64 && c.rope_layout == KVD_ROPE_HALF);
    assert_true(c.bias_qkv && !c.bias_o && !c.qk_norm && !c.latent);
    assert_true(c.route_sigmoid && c.chosen_add_up && c.extra_layers == 1 && c.d_shared == 48);
    assert_true(!kvd_config_routed(&c, 0) && kvd_config_routed(&c, 1));
    refuse_config(glm4_moe, "'partial_rotary_factor':0.5", "'partial_rotary_factor':null",
                  "'partial_rotary_factor' is null");
    refuse_config(glm4_moe, "'n_group':1", "'n_group':3",
                  "8 experts do not form 'n_group' 3 groups of at least 2");
}

/* config.json of mistralai/Ministral-3-3B-Base-2512, in part */
static const char mistral3[] =
    "{'architectures':['Mistral3ForConditionalGeneration'],'model_type':'mistral3',"
    "'image_token_index':10,'text_config':{" SIZES(
        2) "'bos_token_id':1,'eos_token_id':2,'head_dim':128,'model_type':'ministral3',"
           "'rope_parameters':{'beta_fast':32.0,'beta_slow':1.0,'factor':16.0,"
           "'llama_4_scaling_beta':0.1,'mscale':1.0,'mscale_all_dim':1.0,"
           "'original_max_position_embeddings':16384,'rope_theta':1000000.0,'rope_type':'yarn',"
           "'type':'yarn'},'sliding_window':null,'tie_word_embeddings':true},"
           "'vision_config':{'model_type':'pixtral'}}";

TEST(test_mistral3)
{
    const kvd_config c = accept(mistral3);
    assert_string_equal(c.family, "mistral3");
    assert_true(c.d_head == 128 && c.tied_head && c.bos_id == 1 && c.eos_id == 2);
    assert_true(c.rope_scaling == KVD_ROPE_YARN && c.rope_attention_factor == 1);
    assert_int_equal(c.max_positions, 16384);
    refuse_config(mistral3, "'ministral3'", "'mistral'",
                  "'llama_4_scaling_beta' is not known for rope type 'yarn'");
    refuse_config(mistral3, "'rope_parameters'", "'rope'",
                  "text_config: 'rope_parameters' and 'rope_scaling' are missing");
    refuse_config(mistral3, "'ministral3'", "'ministral4'",
                  "text_config: model_type is 'ministral4', only 'mistral' and 'ministral3'");
    refuse_config(mistral3, "'head_dim':128", "'quantization_config':{'quant_method':'fp8'}",
                  "text_config: 'quantization_config' is set");
}

/* Entries of config.json of EleutherAI/pythia-1b */
static const char pythia[] =
    "{'hidden_act':'gelu','hidden_size':64,'intermediate_size':96,'num_hidden_layers':2,"
    "'num_attention_heads':4,'vocab_size':64,'max_position_embeddings':2048,"
    "'architectures':['GPTNeoXForCausalLM'],'model_type':'gpt_neox','layer_norm_eps':1e-05,"
    "'rotary_emb_base':5000,'rotary_pct':0.5,'use_parallel_residual':true}";

TEST(test_gpt_neox)
{
    kvd_config c = accept(pythia);
    assert_true(c.norm == KVD_NORM_LAYER && c.order == KVD_ORDER_PARALLEL && !c.shared_norm);
    assert_true(c.activation == KVD_GELU && c.bias_qkv && c.bias_o && c.bias_ffn);
    assert_true(c.rope_dims == c.d_head / 2 && c.rope_theta == 5000 && c.n_kv_heads == c.n_heads);
    assert_true(kvd_family_knows(&c, "gpt_neox.layers.1.attention.masked_bias"));
    assert_true(kvd_family_knows(&c, "gpt_neox.layers.1.attention.bias"));
    assert_false(kvd_family_knows(&c, "gpt_neox.layers.1.attention.masked"));
    refuse_config(pythia, "'rotary_pct':0.5", "'rotary_pct':1.5",
                  "'rotary_pct' is 1.5, more than 1");
    refuse_config(pythia, "'rotary_pct':0.5", "'rotary_pct':0.01", "is 0 dimensions");
    refuse_config(pythia, "'rotary_pct':0.5", "'head_dim':6",
                  "'head_dim' is 6, only hidden_size / num_attention_heads");
    refuse_config(pythia, "'rotary_pct':0.5", "'partial_rotary_factor':0.5",
                  "'partial_rotary_factor' is 0.5, but 'rotary_pct', which a gpt_neox model uses, "
                  "is 0.25 by default");
    refuse_config(pythia, "'rotary_pct':0.5", "'rotary_pct':0.5,'rope_theta':10000",
                  "'rope_theta' is 10000, but 'rotary_emb_base', which a gpt_neox model uses, is "
                  "5000");
    refuse_config(pythia, "'gelu'", "'silu'", "'hidden_act' is 'silu'");
}

TEST(test_variants_of_llama)
{
    kvd_config c = accept("{" SIZES(2) "'model_type':'stablelm','layer_norm_eps':1e-05,"
                                       "'use_parallel_residual':true}");
    assert_true(c.shared_norm && c.rope_dims == c.d_head / 4 && c.activation == KVD_SWIGLU);
    refuse_config("{" SIZES(2) "'model_type':'stablelm','layer_norm_eps':1e-05}",
                  "'layer_norm_eps'", "'qk_layernorm':true,'layer_norm_eps'",
                  "'qk_layernorm' is true, layer norms of Q and K are not supported");
    c = accept(
        edit_config("{" SIZES(2) "'model_type':'nemotron','norm_eps':1e-05}", "'silu'", "'relu2'"));
    assert_true(c.norm_plus_one && c.norm == KVD_NORM_LAYER && c.activation == KVD_RELU2);
    assert_true(c.rope_dims == c.d_head / 2 && !kvd_config_gated(&c));
    c = accept(edit_config("{" SIZES(2) "'model_type':'arcee'}", "'silu'", "'relu2'"));
    assert_true(c.norm == KVD_NORM_RMS && c.activation == KVD_RELU2 && !c.rope_dims);
    c = accept("{" SIZES(2) "'model_type':'internlm2','bias':false,"
                            "'rope_scaling':{'type':'dynamic','factor':2.0}}");
    assert_true(!c.bias_qkv && c.rope_scaling == KVD_ROPE_DEFAULT);
}

TEST(test_routed_variants)
{
    static const char experts[] = "'n_routed_experts':8,'num_experts_per_tok':2,"
                                  "'moe_intermediate_size':24,'n_shared_experts':1";
    char text[1024];
    static const char olmoe[] = "{" SIZES(2) "'model_type':'olmoe','num_experts':8,"
                                             "'num_experts_per_tok':2,'clip_qkv':null}";
    kvd_config c = accept(olmoe);
    assert_true(c.qk_norm_whole && c.n_experts == 8 && !c.chosen_add_up && !c.route_sigmoid);
    refuse_config(olmoe, "'clip_qkv':null", "'clip_qkv':4.0", "'clip_qkv' is set");
    (void)snprintf(text, sizeof text,
                   "{" SIZES(4) "'model_type':'dots1',%s,'sliding_window':9,'max_window_layers':3}",
                   experts);
    c = accept(text);
    assert_true(c.qk_norm && c.route_sigmoid && !c.chosen_add_up && c.d_shared == 24);
    assert_true(kvd_config_window(&c, 2) == 0 && kvd_config_window(&c, 3) == 9);
    (void)snprintf(text, sizeof text, "{" SIZES(2) "'model_type':'solar_open',%s}", experts);
    c = accept(text);
    assert_true(c.d_head == 128 && c.rope_theta == 1e6 && kvd_config_routed(&c, 0));
    c = accept("{" SIZES(2) "'model_type':'minimax_m2','num_local_experts':8,"
                            "'num_experts_per_tok':2,'head_dim':32,'rotary_dim':16,"
                            "'scoring_func':'sigmoid','use_qk_norm':true}");
    assert_true(c.qk_norm_whole && c.rope_dims == 16 && c.route_sigmoid && c.chosen_add_up);
    assert_true(c.rope_theta == 5e6 && c.d_expert > 0 && !c.d_shared);
}

TEST(test_latent_variants)
{
    static const char lite[] =
        "{" SIZES(3) "'model_type':'glm4_moe_lite','n_routed_experts':8,"
                     "'mlp_layer_types':['dense','sparse','dense'],'routed_scaling_factor':1.8}";
    const char *const heads = "'num_key_value_heads':2";
    char text[1024];
    kvd_config c = accept(edit_config(lite, heads, "'num_key_value_heads':4"));
    assert_true(c.latent == 512 && c.d_nope == 192 && c.d_value == 256 && c.q_rank == 768);
    (void)snprintf(text, sizeof text, "%s", edit_config(lite, heads, "'num_key_value_heads':4"));
    c = accept(edit_config(text, "'rms_norm_eps':1e-05,", ""));
    assert_true(c.norm_eps == 1e-5);
    assert_true(!kvd_config_routed(&c, 0) && kvd_config_routed(&c, 1) && !kvd_config_routed(&c, 2));
    refuse_config(text, "'dense','sparse'", "'sparse'", "'mlp_layer_types' is no list of 3 layers");
    refuse_config(text, "'sparse'", "'moe'",
                  "mlp_layer_types[1] is 'moe', expected 'dense' or 'sparse'");
    c = accept(
        edit_config("{" SIZES(2) "'model_type':'kimi_k2','architectures':['DeepseekV3ForCausalLM'"
                                 "],'n_group':1,'topk_group':1}",
                    heads, "'num_key_value_heads':4"));
    assert_string_equal(c.family, "deepseek_v3");
    c = accept(edit_config("{" SIZES(2) "'model_type':'youtu'}", heads, "'num_key_value_heads':4"));
    assert_true(c.latent == 512 && c.q_rank == 1536 && c.tied_head && !c.n_experts);
}

TEST_MAIN(NULL, NULL)
