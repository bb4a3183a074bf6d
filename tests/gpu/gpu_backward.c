/* usage: gpu_backward [quick | NAME]
 * Tests GPU gradients against the CPU and PyTorch (tests/oracle/make_gradients.py). NAME: part of a
 * model family's name. quick: for compute-sanitizer. */
#include <math.h>
#include <unistd.h>

#include "gpu_forward_case.h"
#include "model/pass/backward.h"
#include "model/pass/cuda/backward.h"

/* accepted relative difference between gradients on the GPU and a reference (measured in bf16: up
 * to 0.09) */
static const double bar[] = {[KVD_F32] = 1e-4, [KVD_BF16] = 0.12};
/* accepted relative difference of gradients if target tokens are drawn at random, because rounding
 * changes some of these tokens */
static const double few_ties = 0.2;
static const kvd_dtype types[] = {KVD_F32, KVD_BF16};
static const char folder[] = "tests/data/families";

enum { G_K, G_K_PRE, G_V, G_K_RAW, G_Q, G_O, X_Q, X_O, X_IN, N_G };
static const char *const g_name[N_G] = {"dk", "dk_pre", "dv", "dk_raw", "dq", "do", "q", "o", "in"};

typedef struct {
    kvd_config c;
    size_t n, n_predicted;
    int layers;
    double loss;
    /* g[i] is an array [n_layers][n tokens][g_width(i)] with the name g_name[i]. It holds a
     * gradient of the loss for i < X_Q, otherwise an activation. */
    float *g[N_G];
} gradients;

static size_t g_width(const kvd_config *c, int kind)
{
    return kind == X_IN      ? (size_t)c->d_model
           : kind <= G_K_RAW ? (size_t)c->n_kv_heads * (size_t)c->d_head
                             : (size_t)c->n_heads * (size_t)c->d_head;
}

static float *at_layer(const gradients *g, int kind, int layer)
{
    return g->g[kind] + (size_t)layer * g->n * g_width(&g->c, kind);
}

static void gradients_init(gradients *g, const kvd_config *c, size_t n)
{
    *g = (gradients){.c = *c, .n = n};
    for (int i = 0; i < N_G; i++)
        g->g[i] = need((size_t)c->n_layers * n * g_width(c, i) * sizeof(float));
}

static void gradients_release(gradients *g)
{
    for (int i = 0; i < N_G; i++)
        free(g->g[i]);
}

static int take_cpu(void *ctx, const kvd_gradients *g, kvd_err *err)
{
    gradients *const to = ctx;
    const float *const from[N_G] = {g->k,   g->k_pre, g->v, g->k_raw, g->dq,
                                    g->d_o, g->q,     g->o, g->in};
    (void)err;
    to->layers++;
    for (int i = 0; i < N_G; i++)
        memcpy(at_layer(to, i, g->layer), from[i], to->n * g_width(&to->c, i) * sizeof(float));
    return 0;
}

static int take_gpu(void *ctx, const kvd_gpu_gradients *g, kvd_err *err)
{
    gradients *const to = ctx;
    const void *const from[N_G] = {g->dk,  g->dk_pre, g->dv, g->dk_raw, g->dq,
                                   g->d_o, g->q,      g->o,  g->in};
    const size_t ld[N_G] = {g->ld_d,
                            g->ld_pre,
                            g->ld_d,
                            g->ld_d,
                            g->ld_d,
                            g_width(&to->c, G_O),
                            g->ld,
                            g_width(&to->c, X_O),
                            g_width(&to->c, X_IN)};
    int status = 0;
    to->layers++;
    for (int i = 0; i < N_G && !status; i++) {
        const kvd_dtype type = i < X_Q ? KVD_F32 : g->type;
        const size_t width = g_width(&to->c, i), bytes = kvd_dtype_bytes(type);
        char *const bits = need(to->n * width * bytes);
        status = kvd_cuda_check(cudaMemcpy2DAsync(bits, width * bytes, from[i], ld[i] * bytes,
                                                  width * bytes, to->n, cudaMemcpyDeviceToHost,
                                                  g->stream),
                                g_name[i], err) ||
                 kvd_cuda_check(cudaStreamSynchronize(g->stream), g_name[i], err);
        kvd_to_f32(type, bits, at_layer(to, i, g->layer), to->n * width);
        free(bits);
    }
    return status ? -1 : 0;
}

static size_t longest_of(const kvd_batch *b, const kvd_config *c)
{
    const size_t n = kvd_batch_longest(b), most = (size_t)c->max_positions;
    return n < most ? n : most;
}

/* Computes gradients on the CPU. If seed is 0, targets are the text's next tokens, otherwise tokens
 * drawn from the model's probabilities. */
static int on_cpu(const kvd_checkpoint *c, const kvd_batch *b, uint64_t seed, gradients *to,
                  kvd_err *err)
{
    const kvd_config *const config = kvd_checkpoint_config(c);
    const kvd_gradient_sink sink = {take_cpu, NULL, to};
    gradients_init(to, config, b->offset[b->n_sequences]);
    kvd_backward *const w = kvd_backward_new(c, to->n, longest_of(b, config), err);
    if (w && seed)
        kvd_backward_draw(w, seed);
    const int status = !w || kvd_backward_run(w, b, 0, &sink, &to->loss, &to->n_predicted, err);
    kvd_backward_free(w);
    return status;
}

static int on_gpu(const kvd_checkpoint *c, kvd_dtype type, const kvd_batch *b, uint64_t seed,
                  int first_layer, gradients *to, kvd_err *err)
{
    const kvd_config *const config = kvd_checkpoint_config(c);
    const kvd_gpu_gradient_sink sink = {take_gpu, NULL, to};
    gradients_init(to, config, b->offset[b->n_sequences]);
    kvd_gpu_backward *const w = kvd_gpu_backward_new(c, type, 0, to->n, longest_of(b, config), err);
    if (w && seed)
        kvd_gpu_backward_draw(w, seed);
    const int status =
        !w || kvd_gpu_backward_run(w, b, first_layer, &sink, &to->loss, &to->n_predicted, err);
    kvd_gpu_backward_free(w);
    return status;
}

static double furthest(const gradients *x, const gradients *y, char *where, size_t size)
{
    double worst = 0;
    for (int i = 0; i < N_G; i++)
        for (int l = 0; l < y->c.n_layers; l++) {
            const double e =
                distance(at_layer(x, i, l), at_layer(y, i, l), y->n * g_width(&y->c, i));
            if (!isnan(worst) && !(e <= worst)) {
                worst = e;
                (void)snprintf(where, size, "%s of layer %d", g_name[i], l);
            }
        }
    return worst;
}

static void compare(const kvd_checkpoint *c, const char *name, kvd_dtype type, const kvd_batch *b,
                    uint64_t seed, double most)
{
    kvd_err err = {""};
    char where[64] = "";
    gradients cpu, gpu;
    const int failed_cpu = on_cpu(c, b, seed, &cpu, &err),
              failed = failed_cpu || on_gpu(c, type, b, seed, 0, &gpu, &err);
    const double worst = failed ? INFINITY : furthest(&gpu, &cpu, where, sizeof where),
                 loss = failed ? INFINITY : fabs(gpu.loss / cpu.loss - 1);
    test_after(failed, &err,
               worst <= most && loss <= most / 10 && gpu.n_predicted == cpu.n_predicted &&
                   gpu.layers == cpu.layers,
               name, "the CPU's pass%s: %s: %s off by %.2g of %.0e, loss %.6f nats by %.1g",
               seed ? ", drawn tokens" : "", kvd_dtype_name(type), where, worst, bar[type],
               gpu.loss / (double)gpu.n_predicted, loss);
    gradients_release(&cpu);
    if (!failed_cpu)
        gradients_release(&gpu);
}

static float *wanted(const kvd_safetensors *oracle, const char *model, const char *kind, size_t n)
{
    char name[64], path[128];
    kvd_tensor t = {0};
    kvd_err err = {""};
    (void)snprintf(name, sizeof name, "%s/%s", model, kind);
    (void)snprintf(path, sizeof path, "%s/%s/gradients.safetensors", folder, model);
    kvd_safetensors *const own = access(path, R_OK) ? NULL : kvd_safetensors_open(path, &err);
    if (kvd_safetensors_find(own ? own : oracle, name, &t, &err) || t.n != n) {
        printf("not ok %s: %zu numbers, %zu expected %s\n", name, t.n, n, err.msg);
        exit(1);
    }
    float *const x = need(n * sizeof *x);
    memcpy(x, t.data, n * sizeof *x);
    kvd_safetensors_close(own);
    return x;
}

static double autograd_error(const gradients *g, int kind, int l, const float *row,
                             const float *want)
{
    const size_t width = g_width(&g->c, kind);
    double error = 0, square = 0;
    for (size_t r = 0; r < 3; r++)
        for (size_t j = 0; j < width; j++) {
            const double x = (double)want[((size_t)l * 3 + r) * width + j];
            error += pow(x - (double)at_layer(g, kind, l)[(size_t)row[r] * width + j], 2);
            square += x * x;
        }
    return sqrt(error / square);
}

/* Returns the largest accepted relative error of the GPU's gradients. It is larger for the test
 * model qwen2-window, which amplifies rounding errors. */
static double limit_of(const char *name, kvd_dtype type)
{
    return type == KVD_BF16 && !strcmp(name, "qwen2-window") ? 0.25 : bar[type];
}

static void test_autograd(const kvd_checkpoint *c, const kvd_safetensors *oracle, const char *name,
                          kvd_dtype type, const kvd_batch *b)
{
    const double limit = limit_of(name, type);
    kvd_err err = {""};
    const char *where = "";
    double worst = 0;
    gradients g;
    const int failed = on_gpu(c, type, b, 0, 0, &g, &err);
    float *const loss = wanted(oracle, name, "loss", 2), *const row =
                                                             wanted(oracle, name, "row", 3);
    static const char *const kind_of[] = {"k", "k_pre", "v"};
    for (int i = 0; !failed && i < 3; i++) {
        float *const want =
            wanted(oracle, name, kind_of[i], (size_t)g.c.n_layers * 3 * g_width(&g.c, i));
        for (int l = 0; l < g.c.n_layers; l++) {
            const double e = autograd_error(&g, i, l, row, want);
            if (!isnan(worst) && !(e <= worst)) {
                worst = e;
                where = g_name[i];
            }
        }
        free(want);
    }
    const double off = fabs(g.loss / (double)loss[0] - 1);
    test_after(failed, &err, worst <= limit && off <= limit / 10, name,
               "autograd: %s: %s off by %.2g of %.0e, loss by %.1g", kvd_dtype_name(type), where,
               worst, limit, off);
    gradients_release(&g);
    host_free(loss, row);
}

static void test_family(const kvd_safetensors *oracle, const char *name, bool quick)
{
    kvd_err err = {""};
    char path[256];
    expectation e = {0};
    kvd_checkpoint *c = family_or_end(name);
    (void)snprintf(path, sizeof path, "%s/%s/expected.safetensors", folder, name);
    or_end(expected_read(path, kvd_checkpoint_config(c), &e, &err), path, err.msg);
    const size_t n = e.n, offset[] = {0, n, n + 20, n + 40, n + 41, n + 50};
    uint32_t *id = some_ids(n + 50, (size_t)kvd_checkpoint_config(c)->vocab_size, 3);
    memcpy(id, e.id, n * sizeof *id);
    const kvd_batch all = {.n_sequences = 5, .offset = offset, .first_sequence = 3, .id = id},
                    one = {.n_sequences = 1, .offset = offset, .id = id};
    for (size_t t = 0; t < 2; t++) {
        compare(c, name, types[t], &all, 0, limit_of(name, types[t]));
        if (!quick)
            test_autograd(c, oracle, name, types[t], &one);
    }
    if (!quick)
        compare(c, name, KVD_F32, &all, 7, bar[KVD_F32]);
    free(id);
    expected_release(&e);
    kvd_checkpoint_close(c);
}

static const size_t offset4[] = {0, 9, 309, 609, 654};

static void test_demo(const char *path)
{
    kvd_checkpoint *c = checkpoint_or_end(path);
    uint32_t *id = some_ids(654, (size_t)kvd_checkpoint_config(c)->vocab_size, 3);
    const kvd_batch b = {.n_sequences = 4, .offset = offset4, .id = id};
    compare(c, path, KVD_F32, &b, 0, bar[KVD_F32]);
    compare(c, path, KVD_F32, &b, 11, few_ties);
    compare(c, path, KVD_BF16, &b, 0, bar[KVD_BF16]);
    free(id);
    kvd_checkpoint_close(c);
}

static void test_first_layer(void)
{
    kvd_err err = {""};
    kvd_checkpoint *c = checkpoint_or_end("data/models/kvdim-6m");
    const int layers = kvd_checkpoint_config(c)->n_layers;
    uint32_t *id = some_ids(654, (size_t)kvd_checkpoint_config(c)->vocab_size, 4);
    const kvd_batch b = {.n_sequences = 4, .offset = offset4, .id = id};
    gradients all, some;
    int status = on_gpu(c, KVD_BF16, &b, 5, 0, &all, &err), same = 1;
    if (!status) {
        status = on_gpu(c, KVD_BF16, &b, 5, layers - 2, &some, &err);
        for (int i = 0; !status && i < N_G; i++)
            for (int l = layers - 2; l < layers; l++)
                same = same && !memcmp(at_layer(&all, i, l), at_layer(&some, i, l),
                                       all.n * g_width(&all.c, i) * sizeof(float));
        same = same && some.layers == 2 && all.layers == layers && all.loss == some.loss;
        gradients_release(&some);
    }
    test_after(status, &err, same, "kvdim-6m", "the last two of %d layers alone", layers);
    gradients_release(&all);
    free(id);
    kvd_checkpoint_close(c);
}

static void test_refused(void)
{
    kvd_err err = {""};
    kvd_checkpoint *c = checkpoint_or_end("tests/data/families/qwen2-gqa");
    const size_t offset[] = {0, 3};
    const uint32_t id[] = {1, 80, 2};
    const kvd_batch b = {.n_sequences = 1, .offset = offset, .id = id};
    const kvd_gpu_gradient_sink sink = {take_gpu, NULL, NULL};
    double loss = 0;
    size_t n = 0;
    kvd_gpu_backward *const w = kvd_gpu_backward_new(c, KVD_F32, 0, 8, 8, &err);
    int ok =
        w && kvd_gpu_backward_run(w, &b, 0, &sink, &loss, &n, &err) &&
        !strcmp(err.msg, "sequence 0, position 1: token id 80 is not below the vocabulary size 80");
    test_result(ok, "refused", "a token: %s", err.msg);
    ok = w && kvd_gpu_backward_run(w, &b, 2, &sink, &loss, &n, &err) &&
         !strcmp(err.msg, "layer 2 asked for, the model has 2");
    test_result(ok, "refused", "a layer: %s", err.msg);
    ok = !kvd_gpu_backward_new(c, KVD_F16, 0, 8, 8, &err) &&
         !strcmp(err.msg, "a backward pass in f16, on a GPU it runs in f32 or bf16");
    test_result(ok, "refused", "a type: %s", err.msg);
    kvd_gpu_backward_free(w);
    kvd_checkpoint_close(c);
}

int main(int argc, char **argv)
{
#define NAME(name) name
    static const char *const family[] = {GPU_FAMILIES(NAME)};
    static const char *const few[] = {"llama-biases", "qwen3-gqa", "phi3-window", "opt-after",
                                      "falcon-40b"};
    kvd_err err = {""};
    if (!gpu_devices("backward", 1))
        return 0;
    kvd_safetensors *oracle = kvd_safetensors_open("tests/data/gradients.safetensors", &err);
    or_end(!oracle, "gradients", err.msg);
    const bool quick = argc > 1 && !strcmp(argv[1], "quick");
    for (size_t i = 0; quick && i < sizeof few / sizeof *few; i++)
        test_family(oracle, few[i], true);
    for (size_t i = 0; !quick && i < sizeof family / sizeof *family; i++)
        if (argc < 2 || strstr(family[i], argv[1]))
            test_family(oracle, family[i], false);
    if (argc < 2) {
        test_demo("data/models/kvdim-6m");
        test_first_layer();
        test_refused();
    }
    kvd_safetensors_close(oracle);
    return failures ? 1 : 0;
}
