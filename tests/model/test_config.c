#include <math.h>
#include <stdio.h>
#include <string.h>

#include "config_case.h"
#include "unit.h"

/* parts of the smallest valid config.json, without braces */
static const char family[] = "'architectures':['LlamaForCausalLM'],'model_type':'llama'";
static const char sizes[] =
    "'num_hidden_layers':3,'num_attention_heads':8,'hidden_size':64,'intermediate_size':100,"
    "'vocab_size':512,'max_position_embeddings':256";
static const char eps[] = "'rms_norm_eps':1e-5";

/* Returns the JSON object {a,b,c}, where a, b and c are lists of members. The next call overwrites
 * the returned text. */
static const char *object(const char *a, const char *b, const char *c)
{
    static char text[4096];
    (void)snprintf(text, sizeof text, "{%s,%s,%s}", a, b, c);
    return text;
}

/* Returns the smallest valid config.json with the additional entries `more`. */
static const char *with(const char *more)
{
    char rest[2048];
    (void)snprintf(rest, sizeof rest, "%s%s%s", eps, more[0] ? "," : "", more);
    return object(family, sizes, rest);
}

static kvd_config accept_with(const char *more)
{
    return accept(with(more));
}

TEST(test_defaults)
{
    const kvd_config c = accept_with("");
    assert_string_equal(c.family, "llama");
    assert_int_equal(c.n_layers, 3);
    assert_int_equal(c.n_heads, 8);
    assert_int_equal(c.n_kv_heads, 8);
    assert_int_equal(c.d_head, 8);
    assert_int_equal(c.d_model, 64);
    assert_int_equal(c.d_ffn, 100);
    assert_int_equal(c.vocab_size, 512);
    assert_int_equal(c.max_positions, 256);
    assert_true(c.norm_eps == 1e-5);
    assert_true(c.rope_theta == 10000);
    assert_int_equal(c.rope_layout, KVD_ROPE_HALF);
    assert_int_equal(c.rope_scaling, KVD_ROPE_DEFAULT);
    assert_false(c.tied_head);
    assert_int_equal(c.bos_id, -1);
    assert_int_equal(c.eos_id, -1);
    assert_int_equal(kvd_config_group(&c), 1);
}

TEST(test_given)
{
    kvd_config c = accept_with(
        "'num_key_value_heads':2,'head_dim':16,'tie_word_embeddings':true,'bos_token_id':5,"
        "'eos_token_id':[7,8],'rope_theta':500000,'hidden_act':'silu','attention_bias':false,"
        "'mlp_bias':false,'pretraining_tp':1,'rope_scaling':null,'sliding_window':null,"
        "'layer_types':['full_attention'],'something_new':{'a':[1]}");
    assert_int_equal(c.n_kv_heads, 2);
    assert_int_equal(kvd_config_group(&c), 4);
    assert_int_equal(c.d_head, 16); /* the file states 16; hidden_size / heads would be 8 */
    assert_true(c.tied_head);
    assert_int_equal(c.bos_id, 5);
    assert_int_equal(c.eos_id, 7);
    assert_true(kvd_config_is_eos(&c, 7) && kvd_config_is_eos(&c, 8) && !kvd_config_is_eos(&c, 5));
    assert_true(c.rope_theta == 500000);

    c = accept_with(
        "'head_dim':null,'num_key_value_heads':null,'bos_token_id':null,'eos_token_id':0");
    assert_int_equal(c.d_head, 8);
    assert_int_equal(c.n_kv_heads, 8);
    assert_int_equal(c.eos_id, 0);
}

TEST(test_rope)
{
    kvd_config c = accept_with("'rope_parameters':{'rope_theta':1e6,'rope_type':'default'}");
    assert_true(c.rope_theta == 1e6);
    c = accept_with(
        "'rope_theta':1000000.0,'rope_parameters':{'rope_theta':1000000,'type':'default'}");
    assert_true(c.rope_theta == 1e6);
    c = accept_with("'rope_scaling':{'type':'linear','factor':4}");
    assert_int_equal(c.rope_scaling, KVD_ROPE_LINEAR);
    assert_true(c.rope_factor == 4);
    assert_true(c.rope_theta == 10000);
    /* Accepts config.json of Llama 3.2 1B: first as published, then as newer Transformers write
     * it. */
    c = accept_with(
        "'rope_theta':500000.0,'rope_scaling':{'factor':32.0,'high_freq_factor':4.0,"
        "'low_freq_factor':1.0,'original_max_position_embeddings':8192,'rope_type':'llama3'}");
    const kvd_config d = accept_with(
        "'rope_parameters':{'factor':32.0,'high_freq_factor':4.0,'rope_theta':500000.0,"
        "'low_freq_factor':1.0,'original_max_position_embeddings':8192,'rope_type':'llama3'}");
    assert_int_equal(c.rope_scaling, KVD_ROPE_LLAMA3);
    assert_true(c.rope_factor == 32 && c.rope_low_freq_factor == 1 && c.rope_high_freq_factor == 4);
    assert_int_equal(c.rope_original_positions, 8192);
    assert_true(c.rope_theta == 500000);
    assert_int_equal(d.rope_scaling, c.rope_scaling);
    assert_true(d.rope_factor == c.rope_factor && d.rope_theta == c.rope_theta);
}

TEST(test_refused)
{
    static const char *const bad[][2] = {
        {"'head_dim':7", "'c': the head size is 7, RoPE needs an even one"},
        {"'head_dim':0", "'head_dim' is 0, not within 1 to 16777216"},
        {"'head_dim':16777216",
         "num_attention_heads 8 times head size 16777216 is more than 16777216"},
        {"'head_dim':'8'", "'head_dim' is not an integer"},
        {"'num_key_value_heads':3",
         "num_attention_heads 8 is not a multiple of num_key_value_heads 3"},
        {"'num_key_value_heads':16",
         "num_attention_heads 8 is not a multiple of num_key_value_heads 16"},
        {"'num_key_value_heads':-1", "'num_key_value_heads' is -1, not within"},
        {"'num_key_value_heads':2.0", "'num_key_value_heads' is not an integer"},
        {"'num_key_value_heads':true", "'num_key_value_heads' is not an integer"},
        {"'hidden_act':'gelu'", "'hidden_act' is 'gelu', only 'silu' is supported"},
        {"'hidden_act':1", "'hidden_act' is 'not a string'"},
        {"'attention_bias':1", "'attention_bias' is not true or false"},
        {"'mlp_bias':0", "'mlp_bias' is not true or false"},
        {"'pretraining_tp':2", "'pretraining_tp' is not 1"},
        {"'sliding_window':4096", "'sliding_window' is set, which is not supported"},
        {"'quantization_config':{}", "'quantization_config' is set, which is not supported"},
        {"'quantization_config':{'quant_method':'awq'}", "(quant_method 'awq'): give a"},
        {"'partial_rotary_factor':0.5", "'partial_rotary_factor' is not 1"},
        {"'layer_types':['full_attention','sliding_attention']",
         "layer_types[1] is 'sliding_attention', but 'sliding_window' is not set"},
        {"'tie_word_embeddings':'yes'", "'tie_word_embeddings' is not true or false"},
        {"'bos_token_id':512", "'bos_token_id' is 512, not an id of the vocabulary of 512"},
        {"'eos_token_id':-1", "'eos_token_id' is -1, not an id"},
        {"'eos_token_id':[]", "'eos_token_id' is neither an integer nor a list of integers"},
        {"'eos_token_id':['a']", "'eos_token_id' is neither an integer nor a list of integers"},
        {"'rope_theta':1e300",
         "the top level: 'rope_theta' is 1e+300, outside the range of float32"},
        {"'rope_theta':0", "the top level: 'rope_theta' is 0, not positive and finite"},
        {"'rope_theta':-1e4", "'rope_theta' is -10000, not positive and finite"},
        {"'rope_theta':'1'", "'rope_theta' is not a number"},
        {"'rope_theta':1e999", "real number overflow"},
        {"'rope_theta':NaN", "invalid token"},
        {"'rope_theta':1,'rope_parameters':{'rope_theta':2}",
         "rope_theta is 1 in the top level and 2 in rope_parameters"},
        {"'rope_theta':1,'rope_scaling':{'rope_theta':2}",
         "rope_theta is 1 in the top level and 2 in rope_scaling"},
        {"'rope_scaling':{'rope_type':'default'},'rope_parameters':{'rope_theta':2}",
         "'rope_scaling' and 'rope_parameters' are both there and differ"},
        {"'rope_scaling':2", "rope_scaling: not an object"},
        {"'rope_scaling':{'rope_type':'mrope','factor':2}",
         "rope_scaling: rope type 'mrope', only default, linear, llama3, longrope and yarn are supported"},
        {"'rope_scaling':{'type':'ntk','factor':2}", "rope type 'ntk', only default"},
        {"'rope_scaling':{'type':'dynamic'}", "rope_scaling: 'factor' is missing"},
        {"'rope_scaling':{'type':'dynamic','factor':2,'alpha':1000}",
         "'alpha' is not known for rope type 'dynamic'"},
        {"'is_causal':false", "'is_causal' is false, only causal attention is supported"},
        {"'is_causal':null", "'is_causal' is null: give true or false, or leave it out"},
        {"'rope_scaling':{'type':'linear','rope_type':'llama3'}",
         "'rope_type' is 'llama3' and 'type' is 'linear'"},
        {"'rope_scaling':{'type':1}", "the rope type is not a string"},
        {"'rope_scaling':{'type':'linear'}", "rope_scaling: 'factor' is missing"},
        {"'rope_scaling':{'type':'linear','factor':0.5}", "'factor' is 0.5, less than 1"},
        {"'rope_scaling':{'factor':2}", "'factor' is not known for rope type 'default'"},
        {"'rope_scaling':{'type':'linear','factor':2,'attention_factor':2}",
         "'attention_factor' is not known for rope type 'linear'"},
        {"'rope_parameters':{'rope_theta':1,'partial_rotary_factor':0.25}",
         "rope_parameters: 'partial_rotary_factor' is not 1"},
        {"'rope_scaling':{'type':'llama3','factor':2,'low_freq_factor':1,'high_freq_factor':4}",
         "'original_max_position_embeddings' is missing"},
        {"'rope_scaling':{'type':'llama3','factor':2,'low_freq_factor':4,'high_freq_factor':4,"
         "'original_max_position_embeddings':8}",
         "'high_freq_factor' 4 is not above 'low_freq_factor' 4"},
        {"'vocab_size':512", "duplicate object key"},
        {"'rope_scaling':{'factor':1,'factor':2}", "duplicate object key"},
    };
    for (size_t i = 0; i < sizeof bad / sizeof bad[0]; i++)
        refuse(with(bad[i][0]), bad[i][1]);
}

TEST(test_refused_whole)
{
    static const char *const families[][2] = {
        {"'a':1", "neither 'architectures' nor 'model_type' says what model this is"},
        {"'architectures':['BertForMaskedLM']",
         "architectures is 'BertForMaskedLM', supported are LlamaForCausalLM"},
        {"'architectures':['BertForMaskedLM'],'model_type':'bert'",
         "model_type is 'bert', supported are llama"},
        {"'architectures':['LlamaForCausalLM'],'model_type':'bert'", "model_type is 'bert'"},
        {"'architectures':['LlamaForSequenceClassification'],'model_type':'llama'",
         "architectures is 'LlamaForSequenceClassification', model_type 'llama' requires LlamaForCausalLM"},
        {"'architectures':[]", "architectures is ''"},
        {"'architectures':'LlamaForCausalLM'", "'architectures' is not a list"},
        {"'architectures':[1]", "architectures[0] is not a string"},
        {"'model_type':1", "'model_type' is not a string"},
    };
    for (size_t i = 0; i < sizeof families / sizeof families[0]; i++)
        refuse(object(families[i][0], sizes, eps), families[i][1]);
    (void)accept(object("'model_type':'llama'", sizes, eps));
    (void)accept(object("'architectures':['X','LlamaForCausalLM']", sizes, eps));

    static const char *const wholes[][2] = {
        {"", "'c', line 1: '[' or '{' expected"},
        {"[]", "'c': not a JSON object"},
        {"{'model_type':'llama'}", "'num_hidden_layers' is missing"},
        {"{\n'a':}", "'c', line 2: unexpected token near '}'"},
    };
    for (size_t i = 0; i < sizeof wholes / sizeof wholes[0]; i++)
        refuse(wholes[i][0], wholes[i][1]);
}

TEST(test_sizes)
{
    static const char *const keys[] = {"num_hidden_layers", "num_attention_heads",
                                       "hidden_size",       "intermediate_size",
                                       "vocab_size",        "max_position_embeddings"};
    static const char *const values[][2] = {
        {"null", "is missing"},
        {"0", "is 0, not within 1 to 16777216"},
        {"-8", "is -8, not within 1 to 16777216"},
        {"16777217", "is 16777217, not within 1 to 16777216"},
        {"9223372036854775807", "is 9223372036854775807, not within"},
        {"8.0", "is not an integer"},
        {"'8'", "is not an integer"},
        {"[8]", "is not an integer"}};
    for (size_t k = 0; k < 6; k++)
        for (size_t v = 0; v < sizeof values / sizeof values[0]; v++) {
            char text[1024] = "'a':1", want[128];
            for (size_t i = 0, at = strlen(text); i < 6; i++)
                at += (size_t)snprintf(text + at, sizeof text - at, ",'%s':%s", keys[i],
                                       i == k ? values[v][0] : "8");
            (void)snprintf(want, sizeof want, "'c': '%s' %s", keys[k], values[v][1]);
            refuse(object(family, eps, text), want);
        }
    refuse(object(family, eps,
                  "'num_hidden_layers':1,'num_attention_heads':3,'hidden_size':8,"
                  "'intermediate_size':8,'vocab_size':8,'max_position_embeddings':8"),
           "hidden_size 8 is not a multiple of num_attention_heads 3");
    static const char *const norms[][2] = {
        {"'a':1", "'rms_norm_eps' is missing"},
        {"'rms_norm_eps':0", "'rms_norm_eps' is 0, not positive"},
        {"'rms_norm_eps':1e-320", "'rms_norm_eps' is 9.99989e-321, outside the range of float32"},
        {"'rms_norm_eps':1e308", "'rms_norm_eps' is 1e+308, outside the range of float32"},
        {"'rms_norm_eps':1000", "the epsilon of the norms is 1000, not below 1"},
        {"'rms_norm_eps':-1e-5", "'rms_norm_eps' is -1e-05, not positive"},
        {"'rms_norm_eps':'1e-5'", "'rms_norm_eps' is not a number"}};
    for (size_t i = 0; i < sizeof norms / sizeof norms[0]; i++)
        refuse(object(family, sizes, norms[i][0]), norms[i][1]);
}

TEST(test_demo_file)
{
    kvd_config c;
    kvd_err err = {""};
    OK(kvd_config_read("data/models/kvdim-6m/config.json", &c, &err));
    assert_int_equal(c.n_layers, 6);
    assert_int_equal(c.n_heads, 4);
    assert_int_equal(c.n_kv_heads, 2);
    assert_int_equal(c.d_head, 64);
    assert_int_equal(c.d_model, 256);
    assert_int_equal(c.d_ffn, 704);
    assert_int_equal(c.vocab_size, 8192);
    assert_int_equal(c.max_positions, 1024);
    assert_true(c.tied_head);
    assert_int_equal(c.bos_id, 0);
    assert_int_equal(c.eos_id, 1);
    FAILS(kvd_config_read("data/models/none.json", &c, &err),
          "cannot open 'data/models/none.json': No such file or directory");
}

/* config.json of Mistral 7B 0.1 */
static const char mistral_01[] =
    "{'architectures':['MistralForCausalLM'],'model_type':'mistral','bos_token_id':1,"
    "'eos_token_id':2,'hidden_act':'silu','hidden_size':4096,'intermediate_size':14336,"
    "'max_position_embeddings':32768,'num_attention_heads':32,'num_hidden_layers':32,"
    "'num_key_value_heads':8,'rms_norm_eps':1e-05,'rope_theta':10000.0,'sliding_window':4096,"
    "'tie_word_embeddings':false,'vocab_size':32000}";
static const char qwen25[] =
    "{'architectures':['Qwen2ForCausalLM'],'model_type':'qwen2','attention_dropout':0.0,"
    "'bos_token_id':151643,'eos_token_id':151645,'hidden_act':'silu','hidden_size':896,"
    "'intermediate_size':4864,'max_position_embeddings':32768,'max_window_layers':21,"
    "'num_attention_heads':14,'num_hidden_layers':24,'num_key_value_heads':2,"
    "'rms_norm_eps':1e-06,'rope_theta':1000000.0,'sliding_window':32768,"
    "'tie_word_embeddings':true,'use_sliding_window':false,'vocab_size':151936}";
static const char qwen3[] =
    "{'architectures':['Qwen3ForCausalLM'],'model_type':'qwen3','attention_bias':false,"
    "'bos_token_id':151643,'eos_token_id':151645,'head_dim':128,'hidden_act':'silu',"
    "'hidden_size':1024,'intermediate_size':3072,'max_position_embeddings':40960,"
    "'max_window_layers':28,'num_attention_heads':16,'num_hidden_layers':28,"
    "'num_key_value_heads':8,'rms_norm_eps':1e-06,'rope_scaling':null,'rope_theta':1000000,"
    "'sliding_window':null,'tie_word_embeddings':true,'use_sliding_window':false,"
    "'vocab_size':151936}";
static const char falcon_7b[] =
    "{'alibi':false,'apply_residual_connection_post_layernorm':false,"
    "'architectures':['FalconForCausalLM'],'bias':false,'bos_token_id':11,'eos_token_id':11,"
    "'hidden_size':4544,'layer_norm_epsilon':1e-05,'model_type':'falcon','multi_query':true,"
    "'new_decoder_architecture':false,'num_attention_heads':71,'num_hidden_layers':32,"
    "'num_kv_heads':71,'parallel_attn':true,'vocab_size':65024}";
static const char falcon_180b[] =
    "{'alibi':false,'architectures':['FalconForCausalLM'],'bias':false,'hidden_size':14848,"
    "'layer_norm_epsilon':1e-05,'model_type':'falcon','multi_query':true,"
    "'new_decoder_architecture':true,'num_attention_heads':232,'num_hidden_layers':80,"
    "'num_kv_heads':8,'parallel_attn':true,'vocab_size':65024}";
static const char opt_350m[] =
    "{'_remove_final_layer_norm':false,'activation_function':'relu',"
    "'architectures':['OPTForCausalLM'],'bos_token_id':2,'do_layer_norm_before':false,"
    "'eos_token_id':2,'ffn_dim':4096,'hidden_size':1024,'max_position_embeddings':2048,"
    "'model_type':'opt','num_attention_heads':16,'num_hidden_layers':24,'prefix':'</s>',"
    "'vocab_size':50272,'word_embed_proj_dim':512}";
static const char opt_13b[] =
    "{'activation_function':'relu','architectures':['OPTForCausalLM'],'bos_token_id':2,"
    "'do_layer_norm_before':true,'eos_token_id':2,'ffn_dim':20480,'hidden_size':5120,"
    "'max_position_embeddings':2048,'model_type':'opt','num_attention_heads':40,"
    "'num_hidden_layers':40,'vocab_size':50272,'word_embed_proj_dim':5120}";
/* configuration of a small Phi-3, whose heads of 4 dimensions need two LongRoPE factors */
static const char phi3[] =
    "{'architectures':['Phi3ForCausalLM'],'model_type':'phi3','bos_token_id':1,'eos_token_id':[3,"
    "4],'hidden_act':'silu','hidden_size':16,'intermediate_size':32,"
    "'max_position_embeddings':131072,'num_attention_heads':4,'num_hidden_layers':3,"
    "'original_max_position_embeddings':4096,'rms_norm_eps':1e-05,'rope_theta':10000.0,"
    "'rope_scaling':{'long_factor':[1.5,64.25],'short_factor':[1.0,1.25],'type':'longrope'},"
    "'sliding_window':262144,'tie_word_embeddings':false,'vocab_size':64}";

TEST(test_mistral)
{
    kvd_config c = accept(mistral_01);
    assert_string_equal(c.family, "mistral");
    assert_int_equal(c.n_kv_heads, 8);
    assert_int_equal(c.d_head, 128);
    for (int l = 0; l < 32; l++)
        assert_int_equal(kvd_config_window(&c, l), 4096);
    assert_int_equal(kvd_config_d_embed(&c), 4096);
    /* Entries that are missing take Transformers' defaults. If sliding_window is null, attention
     * has no sliding window. */
    c = accept(edit_config(mistral_01, "'sliding_window':4096,", ""));
    assert_int_equal(kvd_config_window(&c, 31), 4096);
    c = accept(edit_config(mistral_01, "'sliding_window':4096,", "'sliding_window':null,"));
    assert_int_equal(kvd_config_window(&c, 31), 0);
    c = accept(edit_config(mistral_01, "'num_key_value_heads':8,", ""));
    assert_int_equal(c.n_kv_heads, 8);
    c = accept(edit_config(mistral_01, "'num_key_value_heads':8,", "'num_key_value_heads':null,"));
    assert_int_equal(c.n_kv_heads, 32);
    refuse_config(mistral_01, "'sliding_window':4096", "'sliding_window':0",
                  "'sliding_window' is 0, not within");
    refuse_config(mistral_01, "'num_hidden_layers':32", "'num_hidden_layers':513",
                  "513 layers, at most 512 when some of them have a window");
    refuse_config(mistral_01, "", "'layer_types':['full_attention'],",
                  "layer_types[0] is 'full_attention', but 'sliding_window' is set");
    refuse_config(mistral_01, "", "'quantization_config':{'bits':4},",
                  "'quantization_config' is set, which is not supported");
    refuse_config(
        mistral_01, "MistralFor", "LlamaFor",
        "architectures is 'LlamaForCausalLM', model_type 'mistral' requires MistralForCausalLM");
}

TEST(test_qwen)
{
    kvd_config c = accept(qwen25);
    assert_true(c.bias_qkv && !c.bias_o && !c.bias_ffn && !c.qk_norm && c.tied_head);
    assert_int_equal(c.d_head, 64);
    assert_int_equal(kvd_config_window(&c, 23), 0);
    c = accept(edit_config(qwen25, "'use_sliding_window':false", "'use_sliding_window':true"));
    assert_int_equal(kvd_config_window(&c, 20), 0);
    assert_int_equal(kvd_config_window(&c, 21), 32768);
    c = accept(edit_config(qwen3, "", "'rope_parameters':null,"));
    assert_true(c.qk_norm && !c.bias_qkv && !c.bias_o);
    /* The file gives a head size that is twice hidden_size / num_attention_heads. */
    assert_int_equal(c.d_head, 128);
    c = accept(edit_config(qwen3, "'head_dim':128,", ""));
    assert_int_equal(c.d_head, 128);
    c = accept(edit_config(qwen3, "'attention_bias':false", "'attention_bias':true"));
    assert_true(c.bias_qkv && c.bias_o && !c.bias_ffn);
    refuse_config(qwen25, "'max_window_layers':21", "'max_window_layers':-1",
                  "'max_window_layers' is not an integer from 0 on");
    refuse_config(qwen25, "", "'layer_types':['full_attention'],",
                  "'layer_types' names 1 layers, the model has 24");
    const char *three = edit_config(qwen25, "'num_hidden_layers':24", "'num_hidden_layers':3");
    char text[2048];
    (void)snprintf(text, sizeof text, "%s", three);
    static const char types[] =
        "'layer_types':['full_attention','sliding_attention','full_attention'],";
    refuse_config(text, "", types, "layer_types[1] is 'sliding_attention', but no window is set");
    (void)snprintf(text, sizeof text, "%s", edit_config(text, "w':false", "w':true"));
    c = accept(edit_config(text, "", types));
    assert_int_equal(kvd_config_window(&c, 0), 0);
    assert_int_equal(kvd_config_window(&c, 1), 32768);
    assert_int_equal(kvd_config_window(&c, 2), 0);
    refuse_config(text, "", "'layer_types':[1,2,3],", "layer_types[0] is 'not a string'");
    refuse_config(text, "", "'layer_types':{},", "'layer_types' is not a list");
}

TEST(test_phi3)
{
    kvd_config c = accept(phi3);
    assert_int_equal(c.rope_scaling, KVD_ROPE_LONGROPE);
    assert_int_equal(c.n_kv_heads, 4);
    assert_int_equal(c.rope_original_positions, 4096);
    assert_true(c.rope_short[0] == 1 && c.rope_short[1] == 1.25 && c.rope_long[1] == 64.25);
    /* LongRoPE's factor for scores is sqrt(1 + ln 32 / ln 4096). */
    assert_true(fabs(c.rope_attention_factor - 1.1902380714238083) < 1e-15);
    assert_int_equal(c.eos_id, 3);
    c = accept(edit_config(phi3, "'type'", "'attention_factor':1.5,'type'"));
    assert_true(c.rope_attention_factor == 1.5);
    c = accept(edit_config(phi3, "131072", "4096"));
    assert_true(c.rope_attention_factor == 1);
    c = accept(edit_config(phi3, "'longrope'", "'su'"));
    assert_int_equal(c.rope_scaling, KVD_ROPE_LONGROPE);
    c = accept(edit_config(phi3, "'original_max_position_embeddings':4096,", ""));
    assert_int_equal(c.rope_original_positions, 4096);
    static const char *const bad[][3] = {
        {"'longrope'", "'yarn'", "rope type 'yarn', only default and longrope are supported"},
        {"'longrope'", "'linear','factor':2", "rope type 'linear', only default and longrope"},
        {"[1.5,64.25]", "[1.5]", "'long_factor' has 1 factors, a head of 4 has 2 pairs"},
        {"[1.5,64.25]", "[1.5,0]", "long_factor[1] is not a positive number"},
        {"[1.5,64.25]", "[1.5,'2']", "long_factor[1] is not a positive number"},
        {"[1.0,1.25]", "{}", "'short_factor' is not a list"},
        {"[1.0,1.25]", "null", "'short_factor' is missing"},
        {"'type'", "'original_max_position_embeddings':8192,'type'",
         "'original_max_position_embeddings' is 8192, but 4096 in the top level"},
        {"'original_max_position_embeddings':4096", "'original_max_position_embeddings':1",
         "'original_max_position_embeddings' is 1, from which no attention factor follows"},
        {"'type'", "'low_freq_factor':1,'type'",
         "'low_freq_factor' is not known for rope type 'longrope'"},
        {"'hidden_act'", "'partial_rotary_factor':0.75,'hidden_act'",
         "'partial_rotary_factor' 0.75 of a head of 4 is 3 dimensions, RoPE needs an even"},
        {"'hidden_act'", "'partial_rotary_factor':0.5,'hidden_act'",
         "'short_factor' has 2 factors, a head of 4 has 1 rotated pairs"},
        {"'hidden_size':16", "'hidden_size':4096",
         "'short_factor' has 2 factors, a head of 1024 has 512 pairs"},
    };
    for (size_t i = 0; i < sizeof bad / sizeof bad[0]; i++)
        refuse_config(phi3, bad[i][0], bad[i][1], bad[i][2]);
}

TEST(test_opt)
{
    kvd_config c = accept(opt_350m);
    assert_int_equal(c.positions, KVD_POSITIONS_LEARNED);
    assert_int_equal(c.norm, KVD_NORM_LAYER);
    assert_int_equal(c.order, KVD_ORDER_AFTER);
    assert_int_equal(c.activation, KVD_RELU);
    assert_true(c.no_final_norm && c.bias_qkv && c.bias_o && c.bias_ffn && c.tied_head);
    assert_true(c.norm_eps == 1e-5);
    assert_int_equal(kvd_config_d_embed(&c), 512);
    assert_int_equal(c.d_head, 64);
    c = accept(opt_13b);
    assert_int_equal(c.order, KVD_ORDER_BEFORE);
    assert_int_equal(kvd_config_d_embed(&c), 5120);
    assert_false(c.no_final_norm);
    assert_int_equal(c.n_kv_heads, 40);
    c = accept(edit_config(opt_13b, "", "'_remove_final_layer_norm':true,'enable_bias':false,"));
    assert_true(c.no_final_norm && !c.bias_qkv && !c.bias_ffn);
    c = accept(edit_config(opt_13b, "'relu'", "'gelu'"));
    assert_int_equal(c.activation, KVD_GELU);
    static const char *const bad[][3] = {
        {"'relu'", "'silu'",
         "'activation_function' is 'silu', only 'gelu', 'gelu_new', 'gelu_pytorch_tanh', 'relu' and 'relu2' are "
         "supported"},
        {"'hidden_size':5120", "'hidden_size':5119",
         "hidden_size 5119 is not a multiple of num_attention_heads 40"},
        {"'ffn_dim':20480,", "", "'ffn_dim' is missing"},
        {"'do_layer_norm_before':true", "'do_layer_norm_before':1", "is not true or false"},
        {"'word_embed_proj_dim':5120", "'word_embed_proj_dim':-1",
         "'word_embed_proj_dim' is -1, not within"},
        {"'ffn_dim'", "'layer_norm_elementwise_affine':false,'ffn_dim'",
         "'layer_norm_elementwise_affine' is false, only norms with weights are supported"},
    };
    for (size_t i = 0; i < sizeof bad / sizeof bad[0]; i++)
        refuse_config(opt_13b, bad[i][0], bad[i][1], bad[i][2]);
}

TEST(test_falcon)
{
    kvd_config c = accept(falcon_7b);
    /* Falcon 7B has one KV head, although its file says num_kv_heads = 71. */
    assert_int_equal(c.n_kv_heads, 1);
    assert_int_equal(c.d_head, 64);
    assert_int_equal(c.d_ffn, 4 * 4544);
    assert_int_equal(c.max_positions, 2048);
    assert_int_equal(c.activation, KVD_GELU);
    assert_int_equal(c.order, KVD_ORDER_PARALLEL);
    assert_true(c.shared_norm && c.tied_head && !c.bias_qkv && !c.bias_ffn &&
                c.rope_theta == 10000);
    c = accept(falcon_180b);
    assert_int_equal(c.n_kv_heads, 8);
    assert_int_equal(c.order, KVD_ORDER_PARALLEL);
    assert_false(c.shared_norm);
    c = accept(
        edit_config(falcon_180b, "", "'num_ln_in_parallel_attn':1,'ffn_hidden_size':16384,"));
    assert_true(c.shared_norm);
    assert_int_equal(c.d_ffn, 16384);
    c = accept(edit_config(falcon_7b, "'parallel_attn':true", "'parallel_attn':false"));
    assert_int_equal(c.order, KVD_ORDER_BEFORE);
    assert_false(c.shared_norm);
    c = accept(edit_config(falcon_7b, "'multi_query':true", "'multi_query':false"));
    assert_int_equal(c.n_kv_heads, 71);
    refuse_config(falcon_7b, "'alibi':false", "'alibi':true",
                  "'alibi' is true, only RoPE is supported");
    refuse_config(falcon_180b, "'parallel_attn':true", "'parallel_attn':false",
                  "'parallel_attn' is false, but 'new_decoder_architecture' is true");
    refuse_config(falcon_7b, "", "'num_ln_in_parallel_attn':2,",
                  "'num_ln_in_parallel_attn' is 2, with this architecture it can be 1");
    refuse_config(falcon_180b, "", "'num_ln_in_parallel_attn':3,", "it can be 1 or 2");
    refuse_config(falcon_180b, "'num_kv_heads':8", "'num_kv_heads':7",
                  "num_attention_heads 232 is not a multiple of num_key_value_heads 7");
    refuse_config(falcon_7b, "'hidden_size':4544", "'hidden_size':16777216",
                  "'hidden_size' is 16777216, four times that is more than 16777216");
    refuse_config(falcon_7b, "'layer_norm_epsilon':1e-05,", "", "'layer_norm_epsilon' is missing");
}

TEST_MAIN(NULL, NULL)
