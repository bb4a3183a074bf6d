/* usage: tool_synthetic activations|moments|error-table OUT.h5 TOKENS SEED [KEY=VALUE]...
 *
 * Writes a small file for tests of programs: Q, K and V (activations), their second moments
 * (moments), or the model's losses by number of kept dimensions (error-table).
 *
 * hash=H          hash of the model
 * corpus=C        hash of the text (by default from SEED)
 * pre=1           Q and K before RoPE as well
 * distinct=N      later tokens repeat the first N
 * zero=1          all elements are 0
 * nan=1           one element is NaN
 * label=L dtype=f32|f16|bf16 layers=N heads=N kv=N d=N sequences=N */
#include "formats/error_table.h"
#include "make_dump.h"

/* Writes a file of made-up losses. The file has, for each head, losses with 2, 4, 6 and 8 kept
 * dimensions of Q and K, and with 2, 4, 6 and 8 kept dimensions of V. */
static int write_error_table(const kvd_model_info *m, const char *path, const kvd_run *run,
                             kvd_err *err)
{
    int32_t width[4] = {2, 4, 6, 8};
    double error[2 * 2 * 2 * 4];
    for (size_t i = 0; i < 32; i++)
        error[i] = (double)(1 + i / 4) * (double)(3 - i % 4) * 0.01;
    const kvd_error_table t = {.model = *m,
                               .method = "balanced",
                               .pair = {KVD_PAIR_BQK, KVD_PAIR_BVW},
                               .n_layers = 2,
                               .n_kv_heads = 2,
                               .d_head = 8,
                               .n_widths = 4,
                               .width = width,
                               .error = error};
    kvd_h5 f;
    return kvd_h5_create(&f, path, &kvd_schema_error_table, run, err) ||
                   kvd_error_table_write(&f, &t, err) || kvd_h5_finish(&f, err)
               ? -1
               : 0;
}

static const char *value(int argc, char **argv, const char *key, const char *otherwise)
{
    for (int i = 5; i < argc; i++)
        if (!strncmp(argv[i], key, strlen(key)) && argv[i][strlen(key)] == '=')
            return argv[i] + strlen(key) + 1;
    return otherwise;
}

int main(int argc, char **argv)
{
    if (argc < 5)
        return 2;
    kvd_err err = {""};
    kvd_run run = {0};
    kvd_common_options common = {.seed = 1, .threads = 1};
    const char *path = argv[2], *dtype = value(argc, argv, "dtype", "f32");
    const bool moments = !strcmp(argv[1], "moments");
    dump_plan p;
    dump_plan_init(&p, strtoull(argv[3], NULL, 10), strtoull(argv[4], NULL, 10));
    kvd_activations *a = &p.a;
    p.zero = atoi(value(argc, argv, "zero", "0"));
    p.nan = atoi(value(argc, argv, "nan", "0"));
    p.distinct = strtoull(value(argc, argv, "distinct", "0"), NULL, 10);
    a->n_sequences = strtoull(value(argc, argv, "sequences", "1"), NULL, 10);
    a->n_layers = a->model.n_layers = atoi(value(argc, argv, "layers", "2"));
    a->model.n_heads = atoi(value(argc, argv, "heads", "4"));
    a->model.n_kv_heads = atoi(value(argc, argv, "kv", "2"));
    a->model.d_head = atoi(value(argc, argv, "d", "8"));
    snprintf(a->model.hash, sizeof a->model.hash, "%s", value(argc, argv, "hash", a->model.hash));
    snprintf(a->label, sizeof a->label, "%s", value(argc, argv, "label", "text"));
    char corpus[40];
    memcpy(corpus, a->corpus_hash, sizeof corpus);
    snprintf(a->corpus_hash, sizeof a->corpus_hash, "%s", value(argc, argv, "corpus", corpus));
    a->dtype = !strcmp(dtype, "f16") ? KVD_F16 : !strcmp(dtype, "bf16") ? KVD_BF16 : KVD_F32;
    a->has_pre = atoi(value(argc, argv, "pre", "0"));

    char dump[4096];
    snprintf(dump, sizeof dump, "%s%s", path, moments ? ".dump" : "");
    int status = kvd_run_start(&run, "tool_synthetic", argc, argv, &common, &err);
    if (!status && !strcmp(argv[1], "error-table"))
        status = write_error_table(&a->model, path, &run, &err);
    else if (!status)
        status = write_dump(&p, dump, &run, &err);
    if (!status && moments)
        status = write_moments(dump, path, &run, &err);
    if (moments)
        remove(dump);
    kvd_run_release(&run);
    return kvd_run_exit("tool_synthetic", status, &err);
}
