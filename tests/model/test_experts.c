#include <stdio.h>
#include <sys/stat.h>

#include <jansson.h>

#include "config_case.h"
#include "engine/cpu/weights.h"
#include "forward_case.h"
#include "model/checkpoint/family.h"
#include "model/checkpoint/shards.h"
#include "model/checkpoint/weights.h"
#include "model/pass/blocks.h"
#include "temp_folder.h"
#include "unit.h"

#define DATA "tests/data/families/"

typedef struct {
    unsigned char *bytes;
    /* number of bytes of the file, and position of its first tensor in bytes */
    size_t n, data;
    json_t *header;
} file;

static void end_json(void *j)
{
    json_decref(j);
}

static file read_file(const char *path)
{
    file f = {0};
    f.bytes = unit_read(path, &f.n);
    uint64_t header = 0;
    memcpy(&header, f.bytes, sizeof header);
    f.data = 8 + (size_t)header;
    f.header = json_loadb((const char *)f.bytes + 8, (size_t)header, 0, NULL);
    assert_non_null(f.header);
    unit_at_end(end_json, f.header);
    return f;
}

/* Sets all bytes of a tensor to `byte`. 255 makes every bf16 or f16 element a NaN. */
static void fill(file *f, const char *tensor, int byte)
{
    const json_t *at = json_object_get(json_object_get(f->header, tensor), "data_offsets");
    if (!at)
        fail_msg("no tensor %s", tensor);
    const size_t from = (size_t)json_integer_value(json_array_get(at, 0)),
                 to = (size_t)json_integer_value(json_array_get(at, 1));
    memset(f->bytes + f->data + from, byte, to - from);
}

static bool logits_of(const char *name, const file *f, size_t n, float *logits)
{
    char config[256];
    kvd_err err = {""};
    size_t len;
    (void)mkdir(temp_file("changed"), 0755);
    unit_write(temp_file("changed/model.safetensors"), f->bytes, f->n);
    (void)snprintf(config, sizeof config, DATA "%s/config.json", name);
    const void *const text = unit_read(config, &len);
    unit_write(temp_file("changed/config.json"), text, len);
    kvd_checkpoint *checkpoint = open_checkpoint(temp_file("changed"));
    const size_t vocab = (size_t)kvd_checkpoint_config(checkpoint)->vocab_size, offset[2] = {0, n};
    uint32_t *id = token_ids(n, vocab, 3);
    const kvd_batch b = {.n_sequences = 1, .offset = offset, .id = id};
    recording got;
    const bool fine = run(checkpoint, &b, -1, &got, &err) == 0;
    if (!fine && !strstr(err.msg, "not finite"))
        fail_msg("%s", err.msg);
    memcpy(logits, got.x[LOGITS] + (n - 1) * vocab, vocab * sizeof *logits);
    return fine;
}

static void test_only_the_chosen(void **state)
{
    const char *name = *state;
    char path[256], tensor[128];
    float want[80], got[80];
    kvd_checkpoint *checkpoint = open_family(name);
    const kvd_config c = *kvd_checkpoint_config(checkpoint);
    (void)snprintf(path, sizeof path, DATA "%s/model.safetensors", name);
    file f = read_file(path);
    assert_true(logits_of(name, &f, 1, want));
    for (int layer = 0; layer < c.n_layers; layer++) {
        int used = 0;
        for (int expert = 0; expert < c.n_experts && kvd_config_routed(&c, layer); expert++) {
            kvd_place place;
            file changed = read_file(path);
            assert_true(kvd_expert_place(&c, KVD_PART_EXPERT_UP, false, layer, expert, &place));
            (void)snprintf(tensor, sizeof tensor, "%s", place.name);
            fill(&changed, tensor, 255);
            if (!logits_of(name, &changed, 1, got))
                used++;
            else
                assert_memory_equal(got, want, sizeof want);
        }
        assert_int_equal(used, kvd_config_routed(&c, layer) ? c.n_chosen : 0);
    }
}

TEST(test_equal_logits)
{
    float want[80], got[80];
    file f = read_file(DATA "mixtral-full/model.safetensors");
    fill(&f, "model.layers.0.block_sparse_moe.gate.weight", 0);
    fill(&f, "model.layers.1.block_sparse_moe.gate.weight", 0);
    assert_true(logits_of("mixtral-full", &f, 20, want));
    fill(&f, "model.layers.1.block_sparse_moe.experts.2.w1.weight", 255);
    assert_true(logits_of("mixtral-full", &f, 20, got));
    assert_memory_equal(got, want, sizeof want);
    fill(&f, "model.layers.1.block_sparse_moe.experts.1.w1.weight", 255);
    assert_false(logits_of("mixtral-full", &f, 20, got));
}

static void test_large_batch(void **state)
{
    enum { SEQUENCES = 12, LENGTH = 100 };
    kvd_err err = {""};
    kvd_checkpoint *c = open_family(*state);
    const size_t vocab = (size_t)kvd_checkpoint_config(c)->vocab_size, one[2] = {0, LENGTH};
    size_t offset[SEQUENCES + 1];
    uint32_t *id = token_ids(SEQUENCES * LENGTH, vocab, 5);
    for (size_t s = 0; s <= SEQUENCES; s++)
        offset[s] = s * LENGTH;
    const kvd_batch all = {.n_sequences = SEQUENCES, .offset = offset, .id = id};
    recording together;
    OK(run(c, &all, -1, &together, &err));
    for (size_t s = 0; s < SEQUENCES; s += 5) {
        const kvd_batch b = {.n_sequences = 1, .offset = one, .id = id + s * LENGTH};
        recording alone;
        double error = 0, square = 0;
        OK(run(c, &b, -1, &alone, &err));
        for (size_t i = 0; i < LENGTH * vocab; i++) {
            const double x = (double)together.x[LOGITS][s * LENGTH * vocab + i];
            error += pow(x - (double)alone.x[LOGITS][i], 2);
            square += pow(x, 2);
        }
        assert_near(*state, "logits", error, square);
    }
}

/* config.json of Mixtral 8x7B */
static const char mixtral[] =
    "{'architectures':['MixtralForCausalLM'],'attention_dropout':0.0,'bos_token_id':1,"
    "'eos_token_id':2,'hidden_act':'silu','hidden_size':4096,'intermediate_size':14336,"
    "'max_position_embeddings':32768,'model_type':'mixtral','num_attention_heads':32,"
    "'num_experts_per_tok':2,'num_hidden_layers':32,'num_key_value_heads':8,"
    "'num_local_experts':8,'output_router_logits':false,'rms_norm_eps':1e-05,"
    "'rope_theta':1000000.0,'sliding_window':null,'tie_word_embeddings':false,'vocab_size':32000}";
static const char qwen3_30b[] =
    "{'architectures':['Qwen3MoeForCausalLM'],'attention_bias':false,'bos_token_id':151643,"
    "'decoder_sparse_step':1,'eos_token_id':151645,'head_dim':128,'hidden_act':'silu',"
    "'hidden_size':2048,'intermediate_size':6144,'max_position_embeddings':40960,"
    "'max_window_layers':48,'mlp_only_layers':[],'model_type':'qwen3_moe',"
    "'moe_intermediate_size':768,'norm_topk_prob':true,'num_attention_heads':32,"
    "'num_experts':128,'num_experts_per_tok':8,'num_hidden_layers':48,'num_key_value_heads':4,"
    "'rms_norm_eps':1e-06,'rope_scaling':null,'rope_theta':1000000.0,'sliding_window':null,"
    "'tie_word_embeddings':false,'use_sliding_window':false,'vocab_size':151936}";
static const char qwen15_moe[] =
    "{'architectures':['Qwen2MoeForCausalLM'],'bos_token_id':151643,'decoder_sparse_step':1,"
    "'eos_token_id':151643,'hidden_act':'silu','hidden_size':2048,'intermediate_size':5632,"
    "'max_position_embeddings':8192,'max_window_layers':21,'model_type':'qwen2_moe',"
    "'moe_intermediate_size':1408,'norm_topk_prob':false,'num_attention_heads':16,"
    "'num_experts':60,'num_experts_per_tok':4,'num_hidden_layers':24,'num_key_value_heads':16,"
    "'rms_norm_eps':1e-06,'rope_theta':1000000.0,'shared_expert_intermediate_size':5632,"
    "'sliding_window':32768,'tie_word_embeddings':false,'use_sliding_window':false,"
    "'vocab_size':151936}";

static const char gpt_oss_20b[] =
    "{'architectures':['GptOssForCausalLM'],'attention_bias':true,'eos_token_id':200002,"
    "'experts_per_token':4,'head_dim':64,'hidden_act':'silu','hidden_size':2880,"
    "'initial_context_length':4096,'intermediate_size':2880,'max_position_embeddings':131072,"
    "'model_type':'gpt_oss','num_attention_heads':64,'num_experts_per_tok':4,"
    "'num_hidden_layers':24,'num_key_value_heads':8,'num_local_experts':32,'pad_token_id':199999,"
    "'quantization_config':{'modules_to_not_convert':['model.layers.*.self_attn','lm_head'],"
    "'quant_method':'mxfp4'},'rms_norm_eps':1e-05,'rope_scaling':{'beta_fast':32.0,"
    "'beta_slow':1.0,'factor':32.0,'original_max_position_embeddings':4096,'rope_type':'yarn',"
    "'truncate':false},'rope_theta':150000,'sliding_window':128,'swiglu_limit':7.0,"
    "'tie_word_embeddings':false,'vocab_size':201088}";

TEST(test_published)
{
    kvd_config c = accept(mixtral);
    assert_int_equal(c.n_experts, 8);
    assert_int_equal(c.n_chosen, 2);
    assert_int_equal(c.d_expert, 14336);
    assert_true(c.chosen_add_up && !c.bias_experts && !c.shared_gate && !c.d_shared);
    assert_true(kvd_config_routed(&c, 0) && kvd_config_routed(&c, 31));
    assert_int_equal(kvd_config_window(&c, 0), 0);
    assert_true(kvd_family_elements(&c) == 46702792704);
    assert_true(accept(edit_config(mixtral, "'rope_theta':1000000.0,", "")).rope_theta == 1e6);
    c = accept(qwen3_30b);
    assert_int_equal(c.n_experts, 128);
    assert_int_equal(c.n_chosen, 8);
    assert_int_equal(c.d_expert, 768);
    assert_int_equal(c.d_head, 128);
    assert_true(c.chosen_add_up && c.qk_norm && !c.bias_qkv);
    assert_true(kvd_family_elements(&c) == 30532122624);
    c = accept(qwen15_moe);
    assert_int_equal(c.n_experts, 60);
    assert_int_equal(c.d_shared, 5632);
    assert_true(!c.chosen_add_up && c.shared_gate && c.bias_qkv);
    assert_true(kvd_family_elements(&c) == 14315784192);
}

TEST(test_gpt_oss)
{
    kvd_config c = accept(gpt_oss_20b);
    assert_int_equal(c.n_experts, 32);
    assert_int_equal(c.n_chosen, 4);
    assert_int_equal(c.d_head, 64);
    assert_true(c.sinks && c.bias_experts && c.bias_qkv && c.bias_o && c.chosen_add_up);
    assert_true(c.expert_alpha == 1.702 && c.expert_limit == 7 && c.rope_theta == 150000);
    assert_int_equal(kvd_config_window(&c, 0), 128);
    assert_int_equal(kvd_config_window(&c, 1), 0);
    assert_int_equal(kvd_config_window(&c, 22), 128);
    assert_int_equal(c.rope_scaling, KVD_ROPE_YARN);
    assert_true(kvd_family_elements(&c) == 20914757184);
    assert_true(kvd_family_knows(&c, "model.layers.3.self_attn.sinks"));
    assert_false(kvd_family_knows(&c, "model.layers.3.self_attn.sinks.weight"));
    refuse(edit_config(gpt_oss_20b, "'mxfp4'", "'gptq'"),
           "quantization_config: quant_method is 'gptq', only 'mxfp4' is supported");
    /* If 'rope_parameters' and 'rope_scaling' are missing, Transformers uses YaRN with a factor of
     * 32, but kvdim must refuse the model. */
    refuse(edit_config(gpt_oss_20b, "'rope_scaling'", "'rope'"),
           "'rope_parameters' and 'rope_scaling' are missing");
    refuse(edit_config(gpt_oss_20b, "7.0", "-7.0"), "'swiglu_limit' is -7, not positive");
    refuse(edit_config(mixtral, "'sliding_window'",
                       "'quantization_config':{'quant_method':'mxfp4'},'sliding_window'"),
           "'quantization_config' is set, which is not supported");
}

typedef struct {
    const char *name, *dtype, *shape;
    size_t bytes;
} stored_tensor;

/* Writes a checkpoint with the tensors `t`, and finds the tensor `name` of one expert in it. A
 * tensor of `t` may hold the weights of all experts. */
static int find_stored(const stored_tensor *t, size_t n, const char *name, kvd_tensor *out,
                       kvd_err *err)
{
    static kvd_shards s;
    char path[256], header[2048];
    size_t at = 0, data = 0;
    kvd_shards_release(&s);
    header[at++] = '{';
    for (size_t i = 0; i < n; data += t[i++].bytes)
        at += (size_t)snprintf(
            header + at, sizeof header - at,
            "%s\"%s\":{\"dtype\":\"%s\",\"shape\":%s,\"data_offsets\":[%zu,%zu]}", i ? "," : "",
            t[i].name, t[i].dtype, t[i].shape, data, data + t[i].bytes);
    header[at++] = '}';
    (void)snprintf(path, sizeof path, "%s/stacked.safetensors", temp_folder());
    FILE *f = fopen(path, "wb");
    assert_non_null(f);
    const uint64_t len = at;
    assert_int_equal(fwrite(&len, 1, 8, f) + fwrite(header, 1, at, f), 8 + at);
    for (size_t i = 0; i < data; i++)
        (void)fputc((int)(i * 37 % 251), f);
    assert_int_equal(fclose(f), 0);
    if (kvd_shards_open_file(&s, path, err))
        fail_msg("%s", err->msg);
    return kvd_stacked_find(&s, name, 3, out, err);
}

TEST(test_stored_together)
{
    static const char name[] = "m.experts.1.w.weight";
    kvd_err err = {""};
    kvd_tensor t;
    float x[128];
    /* matrices [2][64] of 3 experts in MXFP4, stored as two tensors: codes and scales */
    stored_tensor good[] = {{"m.experts.w_blocks", "U8", "[3,2,2,16]", 192},
                            {"m.experts.w_scales", "U8", "[3,2,2]", 12}};
    assert_int_equal(find_stored(good, 2, name, &t, &err), 0);
    assert_true(t.rank == 2 && t.dims[0] == 2 && t.dims[1] == 64 && t.n == 128);
    assert_string_equal(kvd_tensor_type_name(&t), "mxfp4");
    assert_int_equal(kvd_tensor_bytes(&t, t.n), 64);
    kvd_tensor_read(&t, 0, 128, x);
    static const double e2m1[] = {0, 0.5, 1, 1.5, 2, 3, 4, 6, 0, -0.5, -1, -1.5, -2, -3, -4, -6};
    for (size_t i = 0; i < 128; i++) {
        const size_t code = (64 + i / 2) * 37 % 251, scale = (192 + 4 + i / 32) * 37 % 251;
        assert_true((double)x[i] == ldexp(e2m1[i % 2 ? code >> 4 : code & 15], (int)scale - 127));
    }
    float part[7];
    kvd_tensor_read(&t, 61, 7, part);
    assert_memory_equal(part, x + 61, sizeof part);
    assert_int_equal(find_stored(good, 2, "m.experts.3.w.weight", &t, &err), 1);
    assert_int_equal(find_stored(good, 2, "m.experts.1.v.weight", &t, &err), 1);
    assert_int_equal(find_stored(good, 2, "m.experts.1.w.bias", &t, &err), 1);

    /* matrices [in][out] and biases of 3 experts, stored as two tensors */
    const stored_tensor plain[] = {{"m.experts.w", "F32", "[3,4,2]", 96},
                                   {"m.experts.w_bias", "F32", "[3,2]", 24}};
    assert_int_equal(find_stored(plain, 2, name, &t, &err), 0);
    assert_true(t.rank == 2 && t.dims[0] == 2 && t.dims[1] == 4);
    float stored[8];
    memcpy(stored, t.data, sizeof stored);
    kvd_tensor_read(&t, 0, 8, x);
    for (size_t i = 0; i < 8; i++)
        assert_memory_equal(&x[i], &stored[i % 4 * 2 + i / 4], sizeof *x);
    assert_int_equal(find_stored(plain, 2, "m.experts.2.w.bias", &t, &err), 0);
    assert_true(t.rank == 1 && t.n == 2);

    static const struct {
        stored_tensor t[2];
        size_t n;
        const char *message;
    } bad[] = {
        {{{"m.experts.w_blocks", "U8", "[3,2,2,16]", 192}}, 1, "'m.experts.w_scales' is missing"},
        {{{"m.experts.w_blocks", "U8", "[3,2,2,15]", 180}},
         1,
         "has blocks of 15 bytes, MXFP4 has 16"},
        {{{"m.experts.w_blocks", "U8", "[3,2,32]", 192}}, 1, "has 3 dimensions, not 4"},
        {{{"m.experts.w_blocks", "I8", "[3,2,2,16]", 192}},
         1,
         "is I8, blocks of MXFP4 are stored as U8"},
        {{{"m.experts.w_blocks", "U8", "[4,2,2,16]", 256}},
         1,
         "has 4 experts, the configuration needs 3"},
        {{{"m.experts.w_blocks", "U8", "[3,2,2,16]", 192},
          {"m.experts.w_scales", "U8", "[3,2,1]", 6}},
         2,
         "has 2 x 1 scales, the blocks need 2 x 2"},
        {{{"m.experts.w", "F32", "[3,8]", 96}}, 1, "has 2 dimensions, not 3"},
        {{{"m.experts.w", "U8", "[3,4,2]", 24}}, 1, "is U8, only F32, F16 and BF16"},
    };
    for (size_t i = 0; i < sizeof bad / sizeof bad[0]; i++) {
        err.msg[0] = '\0';
        if (find_stored(bad[i].t, bad[i].n, name, &t, &err) != -1 ||
            !strstr(err.msg, bad[i].message))
            fail_msg("'%s' lacks '%s'", err.msg, bad[i].message);
    }
    char of[64];
    assert_true(kvd_stacked_name("x.experts.y_blocks", of, sizeof of));
    assert_string_equal(of, "x.experts.0.y.weight");
    assert_true(kvd_stacked_name("x.experts.y_bias", of, sizeof of));
    assert_string_equal(of, "x.experts.0.y.bias");
    assert_false(kvd_stacked_name("x.expert.y", of, sizeof of));
    assert_false(kvd_stacked_name("x.experts.y", of, 10));
    (void)find_stored(good, 0, name, &t, &err);
}

TEST(test_dtype_of_experts)
{
    kvd_err err = {""};
    kvd_checkpoint *c = open_family("gpt-oss-mxfp4");
    assert_string_equal(kvd_checkpoint_dtype(c), "mxfp4");
    double bytes;
    OK(kvd_weights_bytes(c, &bytes, &err));
    const double experts = 3 * 3 * 32 * 32,
                 all = (double)kvd_family_elements(kvd_checkpoint_config(c));
    assert_true(fabs(bytes - (experts / 2 + experts / 32 + (all - experts) * 2)) < 1e-6);
}

TEST(test_sink_of_a_row)
{
    static const float sinks[] = {-50, -1, 0.5f, 3, 200};
    for (size_t s = 0; s < sizeof sinks / sizeof *sinks; s++)
        for (int capped = 0; capped < 2; capped++) {
            float row[9] = {7, 1.5f, -2, 0.25f, 4, -0.5f, 3, 3, 9};
            double sum = exp((double)sinks[s] - 4), want[9] = {0};
            for (int i = 1; i < 8; i++) {
                const double x = 0.7 * (double)row[i];
                sum += want[i] = exp((capped ? 2 * tanh(x / 2) : x) - 4);
            }
            kvd_softmax_row(
                row, 1, 8, 9,
                (kvd_scores){.scale = 0.7f, .softcap = capped ? 2.0f : 0.0f, .sink = &sinks[s]});
            for (int i = 0; i < 9; i++)
                assert_true(fabs((double)row[i] - want[i] / sum) < 1e-6);
        }
}

TEST(test_clamped_swiglu)
{
    float gate[40], up[40];
    double want[40];
    for (int i = 0; i < 40; i++) {
        gate[i] = (float)(i - 20) * 0.7f;
        up[i] = (float)(i * 7 % 40 - 20) * 0.6f;
        const double g = fmin((double)gate[i], 7), u = fmax(-7, fmin((double)up[i], 7));
        want[i] = g / (1 + exp(-1.702 * g)) * (u + 1);
    }
    kvd_swiglu_clamped(gate, up, 40, 1.702f, 7);
    for (int i = 0; i < 40; i++)
        assert_true(fabs((double)gate[i] - want[i]) <= 1e-5 * (1 + fabs(want[i])));
}

TEST(test_layers_and_refusals)
{
    kvd_config c = accept(edit_config(qwen3_30b, "sparse_step':1", "sparse_step':3"));
    assert_true(!kvd_config_routed(&c, 0) && kvd_config_routed(&c, 2) && kvd_config_routed(&c, 5));
    c = accept(edit_config(qwen3_30b, "layers':[]", "layers':[0,47]"));
    assert_true(!kvd_config_routed(&c, 0) && kvd_config_routed(&c, 1) &&
                !kvd_config_routed(&c, 47));
    kvd_place place;
    assert_true(kvd_part_place(&c, KVD_PART_GATE, false, 47, &place));
    assert_string_equal(place.name, "model.layers.47.mlp.gate_proj.weight");
    assert_int_equal(place.rows, 6144);
    assert_false(kvd_part_place(&c, KVD_PART_GATE, false, 1, &place));
    assert_true(kvd_expert_place(&c, KVD_PART_EXPERT_DOWN, false, 1, 127, &place));
    assert_string_equal(place.name, "model.layers.1.mlp.experts.127.down_proj.weight");
    assert_true(kvd_family_knows(&c, "model.layers.1.mlp.experts.127.down_proj.weight"));
    assert_false(kvd_family_knows(&c, "model.layers.1.mlp.experts.128.down_proj.weight"));
    assert_false(kvd_family_knows(&c, "model.layers.1.mlp.experts.07.down_proj.weight"));
    assert_false(kvd_family_knows(&c, "model.layers.0.mlp.experts.7.down_proj.weight"));
    assert_true(kvd_family_knows(&c, "model.layers.1.mlp.gate.weight"));
    assert_false(kvd_family_knows(&c, "model.layers.0.mlp.gate.weight"));
    c = accept(edit_config(qwen3_30b, "'num_experts'", "'num_local_experts'"));
    assert_int_equal(c.n_experts, 128);
    refuse(edit_config(qwen3_30b, "'num_experts'", "'num_local_experts':64,'num_experts'"),
           "'num_experts' is 128 and 'num_local_experts' is 64");
    refuse(edit_config(qwen3_30b, "per_tok':8", "per_tok':129"),
           "'num_experts_per_tok' is 129, but the model has 128 experts");
    refuse(edit_config(qwen3_30b, "experts':128", "experts':5000"),
           "'num_experts' is 5000, at most 4096 are supported");
    refuse(edit_config(qwen3_30b, "layers':[]", "layers':[48]"),
           "mlp_only_layers[0] is not one of the layers 0 to 47");
    refuse(edit_config(qwen3_30b, "layers':[]", "layers':7"), "'mlp_only_layers' is not a list");
    refuse(edit_config(qwen3_30b, "'use_sliding_window':false", "'use_sliding_window':true"),
           "'use_sliding_window' is true, which is not supported in a Qwen model with experts");
    refuse(edit_config(mixtral, "layers':32", "layers':513"),
           "513 layers, at most 512 in a model with experts");
}

TEST(test_refused_by_name)
{
    kvd_err err = {""};
    kvd_checkpoint *c = open_family("qwen2-moe");
    kvd_cpu_weights w;
    assert_int_equal(kvd_cpu_weights_find(&w, c, NULL, &err), -1);
    SAYS(
        "has routed experts, which the serving engine on the CPU does not compute: use a GPU, or ");
    kvd_cpu_weights_release(&w);
}

TEST(test_flop_counts)
{
    const kvd_config c = {.n_layers = 2,
                          .n_heads = 4,
                          .n_kv_heads = 2,
                          .d_head = 16,
                          .d_model = 64,
                          .d_ffn = 96,
                          .vocab_size = 300,
                          .n_experts = 10,
                          .n_chosen = 3,
                          .d_expert = 24,
                          .d_shared = 8,
                          .dense_layers = {1}};
    const double same = 64 * 64 + 2 * 64 * 32 + 64 * 64, pair = 4.0 * 16 * 4 * 2,
                 dense = 3 * 64 * 96, routed = 64 * 10 + 3 * 64 * (3 * 24 + 8);
    assert_true(fabs(kvd_forward_flop_per_token(&c, 3) - 2 * (2 * same + dense + routed + pair)) <
                1e-6);
}

int main(void)
{
    TEST_WITH("mixtral-full", test_only_the_chosen);
    TEST_WITH("mixtral-window", test_only_the_chosen);
    TEST_WITH("qwen3-moe-norm", test_only_the_chosen);
    TEST_WITH("qwen2-moe-nobias", test_only_the_chosen);
    TEST_WITH("mixtral-window", test_large_batch);
    TEST_WITH("qwen2-moe", test_large_batch);
    TEST_WITH("gpt-oss", test_large_batch);
    return unit_run(NULL, NULL);
}
