/* Tests the forward pass on one GPU against Transformers and the CPU, for every model family. */
#include <math.h>

#include "common/stats.h"
#include "gpu_forward_case.h"
#include "model/checkpoint/shapes.h"

/* accepted relative distance of activations from those of Transformers; in bf16, Transformers
 * differs from float32 by up to 4 % */
static const double bar[] = {[KVD_F32] = 2e-5, [KVD_BF16] = 5e-2};
/* accepted relative difference of bf16 activations from a reference, in models with experts,
 * because rounding may select other experts */
static const double few_choices = 0.25;
static const kvd_dtype types[] = {KVD_F32, KVD_BF16};
static const char folder[] = "tests/data/families";

static double bar_of(const kvd_config *c, kvd_dtype type)
{
    return c->n_experts && type == KVD_BF16 ? few_choices : bar[type];
}

static void test_transformers(kvd_gpu_forward *f, const expectation *e, const char *name,
                              kvd_dtype type)
{
    kvd_err err = {""};
    double worst = 0;
    const char *where = "";
    recording got;
    const double limit = bar_of(&kvd_gpu_forward_weights(f, 0)->config, type);
    const size_t offset[2] = {0, e->n};
    const kvd_batch b = {.n_sequences = 1, .offset = offset, .id = e->id};
    const int status = run_on(f, &b, 1, -1, &got, &err);
    for (int kind = 0; !status && kind < N_KINDS; kind++)
        for (size_t l = 0; l < expected_layers(e, kind); l++) {
            const double error = expected_error(e, got.c, kind, l, got.x[kind]);
            if (!isnan(worst) && !(error <= worst)) {
                worst = error;
                where = kind_name[kind];
            }
        }
    test_after(status, &err, worst <= limit && got.layers == got.c->n_layers, name,
               "Transformers: %s %s off by %.2g of %.0e", kvd_dtype_name(type), where, worst,
               limit);
    recording_release(&got);
}

enum { N_BATCH = 9 + 50 + 25 };
static const size_t batch_offset[] = {0, 9, 59, N_BATCH};

static void test_batch(kvd_gpu_forward *f, const char *name, kvd_dtype type)
{
    kvd_err err = {""};
    const char *where = "";
    double worst = 0;
    const double limit = bar_of(&kvd_gpu_forward_weights(f, 0)->config, type);
    uint32_t *id = some_ids(N_BATCH, (size_t)kvd_gpu_forward_weights(f, 0)->config.vocab_size, 3);
    const kvd_batch b = {.n_sequences = 3, .offset = batch_offset, .id = id};
    recording all, one;
    int status = run_on(f, &b, 1, -1, &all, &err);
    for (size_t s = 0; s < 3 && !status; s++) {
        const size_t at = batch_offset[s], alone[2] = {0, batch_offset[s + 1] - at};
        const kvd_batch single = {.n_sequences = 1, .offset = alone, .id = id + at};
        status = run_on(f, &single, 1, -1, &one, &err);
        const double e = worst_distance(&all, at, &one, &where);
        worst = e > worst ? e : worst;
        recording_release(&one);
    }
    test_after(status, &err, worst <= limit, name,
               "sequences alone and in a batch: %s %s off by %.2g of %.0e", kvd_dtype_name(type),
               where, worst, limit);
    recording_release(&all);
    free(id);
}

static void test_two_parts(kvd_gpu_forward *f, const char *name, kvd_dtype type)
{
    kvd_err err = {""};
    const kvd_config *config = &kvd_gpu_forward_weights(f, 0)->config;
    const size_t size = N_BATCH * (size_t)config->d_model * sizeof(float);
    uint32_t *id = some_ids(N_BATCH, (size_t)config->vocab_size, 4);
    float *whole = on_device(NULL, size), *parts = on_device(NULL, size),
          *residual = on_device(NULL, size);
    char *a = need(size), *z = need(size);
    const kvd_batch b = {.n_sequences = 3, .offset = batch_offset, .id = id};
    const kvd_batch other = {.n_sequences = 2, .offset = batch_offset, .id = id + 11};
    int status = kvd_gpu_forward_run(f, &b, NULL, -1, whole, &err), same = 1;
    to_host(a, whole, size);
    for (int layer = -1; layer < config->n_layers && !status; layer++) {
        fill_bytes(parts, 0xff, size);
        if (layer < 0)
            status = kvd_gpu_forward_run(f, &b, NULL, -1, parts, &err);
        else
            status = kvd_gpu_forward_residual(f, &b, NULL, layer, residual, &err) ||
                     kvd_gpu_forward_run(f, &other, NULL, 0, NULL, &err) ||
                     kvd_gpu_forward_run_from(f, &b, NULL, layer, residual, parts, &err);
        to_host(z, parts, size);
        same = same && !memcmp(a, z, size);
    }
    test_after(status, &err, same, name, "%s: %s bits in two parts", kvd_dtype_name(type),
               same ? "the same" : "other");
    device_free(whole, parts, residual);
    host_free(a, z, id);
}

enum { SEQUENCES = 6, LONGEST = 128 };

/* Sets the offsets of several sequences, at most 128 tokens long and not longer than the model
 * allows. Returns the total number of tokens. */
static size_t make_batch(const kvd_config *c, size_t *offset)
{
    const size_t most = c->max_positions < LONGEST ? (size_t)c->max_positions : LONGEST;
    const size_t length[SEQUENCES] = {1, most, 7, most - 1, most - 1, 23};
    offset[0] = 0;
    for (size_t s = 0; s < SEQUENCES; s++)
        offset[s + 1] = offset[s] + length[s];
    return offset[SEQUENCES];
}

static double add_kind(const recording *gpu, const recording *cpu, int kind, char *text,
                       size_t size)
{
    const size_t width = width_of(cpu->c, kind), n = cpu->n * width,
                 layers = kind == LOGITS ? 1 : (size_t)cpu->c->n_layers;
    double worst = 0;
    for (size_t l = 0; l < layers; l++)
        worst = fmax(worst, distance(gpu->x[kind] + l * n, cpu->x[kind] + l * n, n));
    const size_t at = strlen(text);
    (void)snprintf(text + at, size - at, " %s %.1e", kind_name[kind], worst);
    return worst;
}

static double median_of_rows(const float *x, const float *y, size_t n, size_t d)
{
    double *const e = need(n * sizeof *e);
    for (size_t i = 0; i < n; i++)
        e[i] = distance(x + i * d, y + i * d, d);
    const double median = kvd_quantile(e, n, 0.5);
    free(e);
    return median;
}

static double hidden_error(const kvd_checkpoint *c, kvd_gpu_forward *f, const kvd_batch *b,
                           double *median, kvd_err *err)
{
    const size_t n = b->offset[b->n_sequences],
                 size = n * (size_t)kvd_checkpoint_config(c)->d_model,
                 most = (size_t)kvd_checkpoint_config(c)->max_positions;
    float *host = need(size * sizeof *host), *want = need(size * sizeof *want),
          *device = on_device(NULL, size * sizeof *host);
    kvd_forward *cpu = kvd_forward_new(c, n, most < n ? most : n, err);
    kvd_dense_attention dense;
    kvd_dense_attention_init(&dense);
    double e = INFINITY;
    if (cpu && !kvd_forward_run(cpu, b, &dense.hook, -1, want, err) &&
        !kvd_gpu_forward_run(f, b, NULL, -1, device, err)) {
        to_host(host, device, size * sizeof *host);
        e = distance(host, want, size);
        *median = median_of_rows(host, want, n, size / n);
    }
    kvd_dense_attention_release(&dense);
    kvd_forward_free(cpu);
    device_free(device);
    host_free(host, want);
    return e;
}

static void test_rows(const kvd_checkpoint *c, kvd_gpu_forward *f, const char *name, kvd_dtype type)
{
    kvd_err err = {""};
    char text[400] = "";
    size_t offset[SEQUENCES + 1];
    double median = INFINITY;
    const double limit = bar_of(kvd_checkpoint_config(c), type);
    const size_t n = make_batch(kvd_checkpoint_config(c), offset);
    uint32_t *id = some_ids(n, (size_t)kvd_checkpoint_config(c)->vocab_size, 7);
    const kvd_batch b = {.n_sequences = SEQUENCES, .offset = offset, .id = id};
    recording cpu, gpu;
    const int status = run_cpu(c, &b, -1, &cpu, &err) || run_on(f, &b, 1, -1, &gpu, &err);
    double worst = status ? INFINITY : 0;
    for (int kind = 0; kind < N_KINDS && !status; kind++)
        worst = fmax(worst, add_kind(&gpu, &cpu, kind, text, sizeof text));
    const double hidden = status ? INFINITY : hidden_error(c, f, &b, &median, &err);
    const size_t at = strlen(text);
    (void)snprintf(text + at, sizeof text - at, " hidden %.1e, median row %.1e, of %.0e; %s",
                   hidden, median, limit, kvd_gpu_forward_engine(f));
    test_result(worst <= limit && hidden <= limit && median <= bar[type], name, "%s: %s",
                kvd_dtype_name(type), err.msg[0] ? err.msg : text);
    recording_release(&cpu);
    recording_release(&gpu);
    free(id);
}

static void test_family(const char *name, kvd_dtype type)
{
    kvd_err err = {""};
    char path[256];
    expectation e = {0};
    kvd_checkpoint *c = family_or_end(name);
    (void)snprintf(path, sizeof path, "%s/%s/expected.safetensors", folder, name);
    or_end(expected_read(path, kvd_checkpoint_config(c), &e, &err), path, err.msg);
    kvd_gpu_forward *f = open_pass(c, type, 1, SEQUENCES * LONGEST);
    test_transformers(f, &e, name, type);
    test_batch(f, name, type);
    test_two_parts(f, name, type);
    test_rows(c, f, name, type);
    kvd_gpu_forward_free(f);
    expected_release(&e);
    kvd_checkpoint_close(c);
}

static const size_t offset3[] = {0, 9, 259, 304};
enum { N3 = 304 };

static void test_cpu(const char *path, kvd_dtype type)
{
    kvd_err err = {""};
    const char *where = "";
    kvd_checkpoint *c = checkpoint_or_end(path);
    kvd_gpu_forward *f = open_pass(c, type, 1, N3);
    uint32_t *id = some_ids(N3, (size_t)kvd_checkpoint_config(c)->vocab_size, 3);
    const kvd_batch b = {.n_sequences = 3, .offset = offset3, .id = id};
    recording cpu, gpu;
    const int status = run_cpu(c, &b, -1, &cpu, &err) || run_on(f, &b, 1, -1, &gpu, &err);
    const double worst = status ? INFINITY : worst_distance(&gpu, 0, &cpu, &where);
    test_after(status, &err, worst <= bar[type], path, "the CPU's pass: %s %s off by %.2g of %.0e",
               kvd_dtype_name(type), where, worst, bar[type]);
    test_two_parts(f, path, type);
    recording_release(&cpu);
    recording_release(&gpu);
    free(id);
    kvd_gpu_forward_free(f);
    kvd_checkpoint_close(c);
}

static void test_last_layer(void)
{
    kvd_err err = {""};
    kvd_checkpoint *c = family_or_end("falcon-40b");
    uint32_t *id = some_ids(N_BATCH, (size_t)kvd_checkpoint_config(c)->vocab_size, 5);
    const kvd_batch b = {.n_sequences = 3, .offset = batch_offset, .id = id};
    recording all, some;
    kvd_gpu_forward *f = open_pass(c, KVD_BF16, 1, N_BATCH);
    int status = run_on(f, &b, 1, -1, &all, &err), same = 1;
    for (int last = 0; last < 3 && !status; last++) {
        status = run_on(f, &b, 1, last, &some, &err);
        same = same && some.layers == last + 1 &&
               !memcmp(all.x[O], some.x[O],
                       (size_t)some.layers * N_BATCH * width_of(all.c, O) * sizeof(float));
        recording_release(&some);
    }
    test_after(status, &err, same, "falcon-40b", "first layers alone: %s bits",
               same ? "the same" : "other");
    recording_release(&all);
    free(id);
    kvd_gpu_forward_free(f);
    kvd_checkpoint_close(c);
}

static void test_logits_in_pieces(void)
{
    enum { N = 90, PIECE = 32 };
    kvd_err err = {""};
    kvd_checkpoint *c = family_or_end("opt-after");
    const kvd_config *config = kvd_checkpoint_config(c);
    const size_t vocab = (size_t)config->vocab_size, d = (size_t)config->d_model;
    float *host = need(N * d * sizeof *host), *a = need(N * vocab * sizeof *a),
          *z = need(N * vocab * sizeof *z);
    for (size_t i = 0; i < N * d; i++)
        host[i] = sinf((float)i);
    float *hidden = on_device(host, N * d * sizeof *host),
          *logits = on_device(NULL, N * vocab * sizeof *logits);
    kvd_gpu_forward *f = open_pass(c, KVD_F32, 1, PIECE);
    kvd_forward *cpu = kvd_forward_new(c, PIECE, PIECE, &err);
    int status = !cpu || kvd_forward_logits(cpu, host, N, a, &err) ||
                 kvd_gpu_forward_logits(f, hidden, N, logits, &err);
    check(cudaStreamSynchronize(kvd_gpu_forward_stream(f, 0)), "logits");
    to_host(z, logits, N * vocab * sizeof *z);
    const double e = status ? INFINITY : distance(z, a, N * vocab);
    test_after(status, &err, e <= bar[KVD_F32], "opt-after", "logits in pieces: off by %.2g", e);
    kvd_forward_free(cpu);
    kvd_gpu_forward_free(f);
    device_free(hidden, logits);
    host_free(host, a, z);
    kvd_checkpoint_close(c);
}

/* Shape of a small DeepSeek model. The strides of its arrays are multiples of 16 bytes, so that one
 * cuBLAS call can process all heads. */
static const kvd_shape latent = {
    "latent", "latent", "made up",
    "{\"architectures\":[\"DeepseekV3ForCausalLM\"],\"model_type\":\"deepseek_v3\","
    "\"hidden_act\":\"silu\",\"num_hidden_layers\":3,\"num_attention_heads\":6,"
    "\"num_key_value_heads\":6,\"hidden_size\":128,\"intermediate_size\":192,"
    "\"moe_intermediate_size\":64,\"n_routed_experts\":16,\"n_shared_experts\":1,\"n_group\":4,"
    "\"topk_group\":2,\"num_experts_per_tok\":4,\"norm_topk_prob\":true,"
    "\"routed_scaling_factor\":2.5,\"first_k_dense_replace\":1,\"kv_lora_rank\":96,"
    "\"q_lora_rank\":48,\"qk_nope_head_dim\":32,\"qk_rope_head_dim\":32,\"v_head_dim\":64,"
    "\"max_position_embeddings\":256,\"rms_norm_eps\":1e-06,\"vocab_size\":300,"
    "\"rope_theta\":10000.0,\"tie_word_embeddings\":false}"};

static void test_latent_shape(kvd_dtype type)
{
    kvd_checkpoint *c = shape_or_end(&latent, 5);
    kvd_gpu_forward *f = open_pass(c, type, 1, SEQUENCES * LONGEST);
    test_batch(f, latent.name, type);
    test_two_parts(f, latent.name, type);
    test_rows(c, f, latent.name, type);
    kvd_gpu_forward_free(f);
    kvd_checkpoint_close(c);
}

static void test_bytes(void)
{
    kvd_err err = {""};
    size_t before = 0, after = 0, total = 0;
    const kvd_shape *s = kvd_shape_find("llama-2-7b", &err);
    kvd_checkpoint *c = s ? kvd_checkpoint_of_shape(s, 1, &err) : NULL;
    const kvd_gpu_forward_spec spec = {
        .type = KVD_BF16, .n_gpus = 1, .max_tokens = 8192, .max_len = 4096};
    check(cudaMemGetInfo(&before, &total), "cudaMemGetInfo");
    const size_t bytes = c ? kvd_gpu_forward_bytes(kvd_checkpoint_config(c), &spec) : 0;
    if (bytes > before) {
        printf("skip forward, bytes that a pass takes: %zu of %zu bytes left\n", before, total);
        kvd_checkpoint_close(c);
        return;
    }
    kvd_gpu_forward *f = c ? kvd_gpu_forward_new(c, &spec, &err) : NULL;
    check(cudaMemGetInfo(&after, &total), "cudaMemGetInfo");
    const double taken = (double)before - (double)after;
    test_result(f && fabs(taken - (double)bytes) < 1e8, "llama-2-7b",
                "bytes: %.0f said, %.0f taken; %s", (double)bytes, taken,
                f ? kvd_gpu_forward_engine(f) : err.msg);
    kvd_gpu_forward_free(f);
    kvd_checkpoint_close(c);
}

/* usage: gpu_forward [NAME]; NAME: part of a model family's name */
int main(int argc, char **argv)
{
#define NAME(name) name
    static const char *const family[] = {FAMILIES(NAME), ROUTED(NAME), LATENT(NAME)};
    if (!gpu_devices("forward", 1))
        return 0;
    for (size_t t = 0; t < 2; t++)
        for (size_t i = 0; i < sizeof family / sizeof *family; i++) {
            if (argc > 1 && !strstr(family[i], argv[1]))
                continue;
            test_family(family[i], types[t]);
        }
    if (argc > 1)
        return failures ? 1 : 0;
    for (size_t t = 0; t < 2; t++)
        test_latent_shape(types[t]);
    for (size_t t = 0; t < 2; t++)
        test_cpu("data/models/kvdim-6m", types[t]);
    test_last_layer();
    test_logits_in_pieces();
    test_bytes();
    return failures ? 1 : 0;
}
