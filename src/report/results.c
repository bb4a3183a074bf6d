#include "report/results.h"

#include <dirent.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <strings.h>
#include <sys/stat.h>

#include "common/files/fields.h"
#include "common/utf8.h"
#include "formats/accuracy.h"
#include "formats/activations.h"
#include "formats/attention.h"
#include "formats/fisher.h"
#include "formats/jct.h"
#include "formats/moments.h"
#include "formats/serving.h"
#include "report/rows.h"

static const struct {
    const kvd_schema *schema;
    kvd_result_kind kind;
} kinds[] = {
    {&kvd_schema_spectrum, KVD_RESULT_SPECTRUM}, {&kvd_schema_similarity, KVD_RESULT_SIMILARITY},
    {&kvd_schema_rates, KVD_RESULT_RATES},       {&kvd_schema_error_table, KVD_RESULT_ERROR_TABLE},
    {&kvd_schema_accuracy, KVD_RESULT_ACCURACY}, {&kvd_schema_kernels, KVD_RESULT_KERNELS},
    {&kvd_schema_activations, KVD_RESULT_INPUT}, {&kvd_schema_moments, KVD_RESULT_INPUT},
    {&kvd_schema_attention, KVD_RESULT_INPUT},   {&kvd_schema_tokens, KVD_RESULT_TOKENS},
    {&kvd_schema_serving, KVD_RESULT_SERVING},   {&kvd_schema_jct, KVD_RESULT_JCT},
    {&kvd_schema_fisher, KVD_RESULT_INPUT},      {&kvd_schema_jct_rows, KVD_RESULT_JCT},
    {&kvd_schema_tasks, KVD_RESULT_TASKS},
};

bool kvd_label_random(const char *label)
{
    const char *colon = strstr(label, ": ");
    return strncasecmp(label, "random", 6) == 0 ||
           (colon && strncasecmp(colon + 2, "random", 6) == 0);
}

void kvd_series_clean(char *name)
{
    for (char *c = name; *c; c++)
        *c = *c == '"' ? '\'' : *c == ',' ? ';' : (unsigned char)*c < 0x20 || *c == 0x7f ? '?' : *c;
}

const char *kvd_fact_get(const kvd_facts *f, const char *name)
{
    for (size_t i = 0; i < f->n; i++)
        if (strcmp(f->fact[i].name, name) == 0)
            return f->fact[i].value;
    return "";
}

static int add_fact(kvd_facts *f, const char *name, char *value, kvd_err *err)
{
    kvd_fact *all = realloc(f->fact, (f->n + 1) * sizeof *all);
    char *copy = strdup(name);
    if (all)
        f->fact = all;
    if (!all || !copy || !value) {
        free(copy);
        free(value);
        return kvd_no_memory(err, "provenance", (f->n + 1) * sizeof *all);
    }
    f->fact[f->n].name = copy;
    f->fact[f->n].value = value;
    f->n++;
    return 0;
}

static void release_facts(kvd_facts *f)
{
    for (size_t i = 0; i < f->n; i++) {
        free(f->fact[i].name);
        free(f->fact[i].value);
    }
    free(f->fact);
}

/* Reads attributes of the HDF5 object named `where` and appends them to *out as texts. Skips
 * attributes that the file lacks. */
static int read_facts(kvd_h5 *f, const char *where, const char *const *texts,
                      const char *const *ints, const char *const *reals, kvd_facts *out,
                      kvd_err *err)
{
    kvd_err absent;
    for (; *texts; texts++) {
        char *value = NULL;
        if (kvd_h5_get_text(f, where, *texts, &value, &absent))
            continue;
        kvd_utf8_make_printable(value);
        if (add_fact(out, *texts, value, err))
            return -1;
    }
    for (; *ints; ints++) {
        int64_t value;
        char *text = NULL;
        if (kvd_h5_get_int(f, where, *ints, &value, &absent))
            continue;
        if (asprintf(&text, "%lld", (long long)value) < 0)
            text = NULL;
        if (add_fact(out, *ints, text, err))
            return -1;
    }
    for (; *reals; reals++) {
        double value;
        char *text = NULL;
        if (kvd_h5_get_double(f, where, *reals, &value, &absent))
            continue;
        if (asprintf(&text, "%.3f", value) < 0)
            text = NULL;
        if (add_fact(out, *reals, text, err))
            return -1;
    }
    return 0;
}

static int read_provenance(kvd_h5 *f, kvd_result *r, kvd_err *err)
{
    static const char *const texts[] = {
        "program",  "command_line", "git_revision", "hostname",     "cpu",         "gpu", "driver",
        "compiler", "cflags",       "blas",         "hdf5_version", "started_utc", NULL};
    static const char *const ints[] = {"threads", "seed", NULL}, *const reals[] = {"elapsed_s",
                                                                                   NULL};
    static const char *const input_texts[] = {"path", "schema", "hash", "git_revision", NULL};
    static const char *const input_ints[] = {"bytes", NULL}, *const none[] = {NULL};
    enum { MOST_INPUTS = 100000 };
    char where[64];
    kvd_err absent;
    int64_t n = 0;

    if (read_facts(f, "/provenance", texts, ints, reals, &r->provenance, err))
        return -1;
    if (kvd_h5_get_int(f, "/provenance", "input_count", &n, &absent) || n <= 0)
        return 0;
    if (n > MOST_INPUTS)
        return kvd_fail(err, "'%s': %lld inputs under /provenance, at most %d are believed",
                        r->path, (long long)n, MOST_INPUTS);
    r->input = calloc((size_t)n, sizeof *r->input);
    if (!r->input)
        return kvd_no_memory(err, "inputs of a file", (size_t)n * sizeof *r->input);
    r->n_inputs = (size_t)n;
    for (size_t i = 0; i < r->n_inputs; i++) {
        snprintf(where, sizeof where, "/provenance/inputs/%zu", i);
        if (read_facts(f, where, input_texts, input_ints, none, &r->input[i], err))
            return -1;
    }
    return 0;
}

static int load_spectrum(kvd_result *r, kvd_err *err)
{
    if (kvd_spectrum_load_values(&r->spectrum, r->path, err))
        return -1;
    r->model = r->spectrum.model;
    r->has_model = true;
    kvd_spectrum_drop_bases(&r->spectrum);
    return 0;
}

static int load_proposals(kvd_h5 *f, kvd_result *r, kvd_err *err)
{
    int64_t measured;
    if (!(r->proposals = kvd_rows_load(f, err)) ||
        kvd_h5_get_int(f, "/regression", "measured", &measured, err))
        return -1;
    r->proposals_measured = measured != 0;
    return 0;
}

/* Reads an attribute of the root group that is a count. If missing or below 0, *n is 0. */
static int read_count(kvd_h5 *f, const char *name, int64_t *n, kvd_err *err)
{
    *n = 0;
    if (kvd_h5_has_attribute(f, "/", name) && kvd_h5_get_int(f, "/", name, n, err))
        return -1;
    if (*n < 0)
        *n = 0;
    return 0;
}

static int read_corpus(kvd_h5 *f, kvd_result *r, kvd_err *err)
{
    int64_t n_tokens, seq_len;
    char hash[KVD_CORPUS_HASH_TEXT];
    if (kvd_h5_get_text_or_none(f, "/", "label", &r->corpus_label, err) ||
        read_count(f, "n_tokens", &n_tokens, err) || read_count(f, "seq_len", &seq_len, err))
        return -1;
    if (r->corpus_label)
        kvd_utf8_make_printable(r->corpus_label);
    r->corpus_tokens = (size_t)n_tokens;
    r->corpus_seq_len = (size_t)seq_len;
    if (!r->corpus_label || !kvd_h5_has_attribute(f, "/", "corpus_hash"))
        return 0;
    if (kvd_field_corpus_hash(f, hash, err))
        return -1;
    r->corpus_hash = strdup(hash);
    return r->corpus_hash ? 0 : kvd_no_memory(err, "a hash", sizeof hash);
}

/* Reads the number of planned measurements from attribute `all`, and of finished ones from
 * attribute `done`. Sets both to 0 if the file lacks an attribute. */
static int read_points(kvd_h5 *f, kvd_result *r, const char *all, const char *done, kvd_err *err)
{
    if (!kvd_h5_has_attribute(f, "/", all) || !kvd_h5_has_attribute(f, "/", done))
        return 0;
    return kvd_status(read_count(f, all, &r->points, err) ||
                      read_count(f, done, &r->points_done, err));
}

/* Reads the HDF5 group /model, if the file has it. */
static int read_model(kvd_h5 *f, kvd_result *r, kvd_err *err)
{
    r->has_model = kvd_h5_exists(f, "/model");
    return r->has_model ? kvd_model_info_read(f, &r->model, err) : 0;
}

/* Converts saved fractions of the bytes of a cache in the run's number type, such as f32, to saved
 * fractions of the bytes of a 16-bit cache. */
static void compare_with_16_bits(kvd_accuracy_result *a)
{
    for (size_t k = 0; k < a->n_targets; k++) {
        kvd_target_result *const x = &a->target[k];
        double *const saving[] = {&x->saving, &x->saving_misses, &x->saving_lo, &x->saving_hi};
        size_t i = 0;
        while (i < kvd_rows_count(a->rows) && !kvd_row_is_of_target(a->rows, i, x))
            i++;
        for (int end = 0; end < 4 && i < kvd_rows_count(a->rows); end++)
            *saving[end] = kvd_row_saving_of_16_bits(a->rows, i, *saving[end]);
    }
}

static int load_content(kvd_h5 *f, kvd_result *r, kvd_err *err)
{
    switch (r->kind) {
    case KVD_RESULT_SPECTRUM:
        return load_spectrum(r, err);
    case KVD_RESULT_RATES:
        if (kvd_rates_load(&r->rates, r->path, err))
            return -1;
        r->model = r->rates.model;
        r->has_model = true;
        return kvd_h5_exists(f, "/regression") ? load_proposals(f, r, err) : 0;
    case KVD_RESULT_ERROR_TABLE:
        if (kvd_error_table_load(&r->errors, r->path, err))
            return -1;
        r->model = r->errors.model;
        r->has_model = true;
        return read_corpus(f, r, err);
    case KVD_RESULT_SIMILARITY:
        if (kvd_model_info_read(f, &r->model, err))
            return -1;
        r->has_model = true;
        return kvd_similarity_read(&r->similarity, f, &r->model, err);
    case KVD_RESULT_ACCURACY:
    case KVD_RESULT_TASKS:
        if (read_model(f, r, err) || read_corpus(f, r, err) ||
            kvd_accuracy_read(&r->accuracy, f, err))
            return -1;
        compare_with_16_bits(&r->accuracy);
        return 0;
    case KVD_RESULT_KERNELS:
        if (kvd_kernels_read(&r->kernels, f, err))
            return -1;
        for (int i = 0; i < 2; i++)
            kvd_series_clean(r->kernels.machine[i].device);
        return read_points(f, r, "cases", "cases_done", err);
    case KVD_RESULT_JCT:
        if (kvd_model_info_read(f, &r->model, err))
            return -1;
        r->has_model = true;
        return kvd_status(kvd_h5_get_text_or_none(f, "/", "skipped", &r->skipped, err) ||
                          read_points(f, r, "points", "points_done", err) ||
                          kvd_jct_read(&r->jct, f, err));
    case KVD_RESULT_SERVING:
        if (kvd_model_info_read(f, &r->model, err))
            return -1;
        r->has_model = true;
        return kvd_status(kvd_serving_read(&r->serving, f, err) ||
                          kvd_h5_get_text(f, "/", "no_rate", &r->no_rate, err));
    case KVD_RESULT_TOKENS:
        if (kvd_tokens_load(&r->tokens, r->path, err))
            return -1;
        r->model = r->tokens.model;
        r->has_model = true;
        return 0;
    case KVD_RESULT_INPUT:
        return read_model(f, r, err);
    }
    return 0;
}

static void release(kvd_result *r)
{
    free(r->path);
    free(r->name);
    release_facts(&r->provenance);
    for (size_t i = 0; i < r->n_inputs; i++)
        release_facts(&r->input[i]);
    free(r->input);
    kvd_spectrum_release(&r->spectrum);
    kvd_similarity_release(&r->similarity);
    kvd_rates_release(&r->rates);
    kvd_rows_free(r->proposals);
    kvd_error_table_release(&r->errors);
    kvd_accuracy_result_release(&r->accuracy);
    kvd_rows_free(r->kernels.rows);
    kvd_tokens_release(&r->tokens);
    kvd_rows_free(r->serving);
    kvd_rows_free(r->jct);
    free(r->no_rate);
    free(r->skipped);
    free(r->corpus_label);
    free(r->corpus_hash);
}

static int check_new(const kvd_results *all, kvd_result *r, kvd_err *err)
{
    if (r->kind == KVD_RESULT_INPUT)
        return 0;
    if (kvd_run_hash_file(r->path, r->hash, err))
        return -1;
    for (size_t i = 0; i < all->n; i++)
        if (!strcmp(all->item[i].hash, r->hash))
            return kvd_fail(err, "'%s' and '%s' are one file or copies of one: give it once",
                            all->item[i].path, r->path);
    return 0;
}

static int add_file(kvd_results *all, const char *path, bool from_directory, kvd_err *err)
{
    kvd_h5 f = {.id = H5I_INVALID_HID};
    kvd_result r = {0};
    int status = -1;
    size_t k = 0;

    for (size_t i = 0; i < all->n; i++)
        if (strcmp(all->item[i].path, path) == 0)
            return kvd_fail(err, "'%s' is given twice", path);
    r.path = strdup(path);
    if (!r.path)
        return kvd_no_memory(err, "a path", strlen(path));
    if (kvd_h5_peek_schema(path, r.schema, sizeof r.schema, err))
        goto done;
    while (k < sizeof kinds / sizeof kinds[0] && strcmp(kinds[k].schema->name, r.schema))
        k++;
    if (k == sizeof kinds / sizeof kinds[0]) {
        kvd_fail(
            err,
            "'%s' is a 'kvdim/%s' file; the report knows spectrum, similarity, rates, error-table, "
            "accuracy, tasks, kernels, tokens, jct and serving",
            path, r.schema);
        goto done;
    }
    r.kind = kinds[k].kind;
    if (r.kind == KVD_RESULT_INPUT && !from_directory) {
        kvd_fail(err, "'%s' holds %s, not results: give it to %s first", path, r.schema,
                 !strcmp(r.schema, "attention") ? "kvdim-tokens"
                 : !strcmp(r.schema, "fisher")  ? "kvdim-eval"
                                                : "kvdim-spectrum");
        goto done;
    }
    if (check_new(all, &r, err) || kvd_h5_open(&f, path, kinds[k].schema, err) ||
        read_provenance(&f, &r, err) || load_content(&f, &r, err))
        goto done;
    kvd_result *item = realloc(all->item, (all->n + 1) * sizeof *item);
    if (!item) {
        kvd_no_memory(err, "results", (all->n + 1) * sizeof *item);
        goto done;
    }
    all->item = item;
    all->item[all->n++] = r;
    status = 0;
done:
    kvd_h5_close(&f, false);
    if (status)
        release(&r);
    return status;
}

static int is_h5(const struct dirent *e)
{
    size_t n = strlen(e->d_name);
    return n > 3 && strcmp(e->d_name + n - 3, ".h5") == 0 && e->d_name[0] != '.';
}

/* Compares file names byte by byte, so that their order does not depend on the locale. */
static int by_name(const struct dirent **a, const struct dirent **b)
{
    return strcmp((*a)->d_name, (*b)->d_name);
}

int kvd_results_add(kvd_results *r, const char *path, kvd_err *err)
{
    struct stat st;
    if (stat(path, &st))
        return kvd_fail_errno(err, "cannot open '%s'", path);
    if (!S_ISDIR(st.st_mode))
        return add_file(r, path, false, err);

    struct dirent **entry = NULL;
    int n = scandir(path, &entry, is_h5, by_name), status = n < 0 ? -1 : 0;
    if (n < 0)
        return kvd_fail_errno(err, "cannot read the folder '%s'", path);
    if (n == 0)
        status = kvd_fail(err, "'%s' holds no .h5 file", path);
    size_t len = strlen(path);
    while (len > 1 && path[len - 1] == '/')
        len--;
    for (int i = 0; i < n; i++) {
        char *file = NULL;
        if (!status && asprintf(&file, "%.*s/%s", (int)len, path, entry[i]->d_name) < 0) {
            file = NULL;
            status = kvd_no_memory(err, "a path", len);
        }
        if (!status)
            status = add_file(r, file, true, err);
        free(file);
        free(entry[i]);
    }
    free(entry);
    return status;
}

void kvd_results_release(kvd_results *r)
{
    for (size_t i = 0; i < r->n; i++)
        release(&r->item[i]);
    free(r->item);
    *r = (kvd_results){0};
}

static const char *label_of(const kvd_result *r)
{
    switch (r->kind) {
    case KVD_RESULT_SPECTRUM:
        return r->spectrum.label;
    case KVD_RESULT_RATES:
        return r->rates.label;
    case KVD_RESULT_SIMILARITY:
        return r->similarity.label[0];
    case KVD_RESULT_ERROR_TABLE:
        return r->errors.method;
    case KVD_RESULT_TOKENS:
        return r->tokens.label;
    case KVD_RESULT_ACCURACY:
    case KVD_RESULT_TASKS:
    case KVD_RESULT_KERNELS:
    case KVD_RESULT_SERVING:
    case KVD_RESULT_JCT:
    case KVD_RESULT_INPUT:
        break;
    }
    const char *slash = strrchr(r->path, '/');
    return slash ? slash + 1 : r->path;
}

size_t kvd_results_count(const kvd_results *r, kvd_result_kind kind)
{
    size_t n = 0;
    for (size_t i = 0; i < r->n; i++)
        n += r->item[i].kind == kind;
    return n;
}

bool kvd_result_random_weights(const kvd_result *r)
{
    return r->has_model && kvd_model_info_random(&r->model);
}

int kvd_results_that_count(const kvd_results *r, kvd_results *some, kvd_err *err)
{
    *some = (kvd_results){.item = calloc(r->n ? r->n : 1, sizeof *some->item)};
    if (!some->item)
        return kvd_no_memory(err, "the list of results", r->n * sizeof *some->item);
    for (size_t i = 0; i < r->n; i++)
        if (r->item[i].kind == KVD_RESULT_KERNELS || r->item[i].kind == KVD_RESULT_SERVING ||
            r->item[i].kind == KVD_RESULT_JCT || !kvd_result_random_weights(&r->item[i]))
            some->item[some->n++] = r->item[i];
    return 0;
}

/* Sets *name to the name that the report shows for a result file. level: 0 for the shortest name, 3
 * for the longest. */
static int describe(const kvd_result *r, int level, bool models, char **name)
{
    const kvd_spectrum *s = &r->spectrum;
    char more[160] = "", tokens[32];
    if (level >= 1 && r->kind == KVD_RESULT_SPECTRUM) {
        snprintf(tokens, sizeof tokens, "%zu tokens", s->n_tokens);
        snprintf(more, sizeof more, " (%s%s%s%s%s)", tokens, level >= 2 ? ", " : "",
                 level >= 2 ? kvd_pairing_name[s->pairing] : "", level >= 2 ? ", " : "",
                 level >= 2 ? s->method : "");
    } else if (r->kind == KVD_RESULT_RATES) {
        snprintf(more, sizeof more, " (%s, %s and %s)", r->rates.rule,
                 kvd_pair_name[r->rates.pair[0]], kvd_pair_name[r->rates.pair[1]]);
    }
    const char *before =
        r->kind == KVD_RESULT_SPECTRUM && strcmp(s->rope, "before") == 0 ? ", before RoPE" : "";
    const bool random = kvd_result_random_weights(r), named = (models && r->has_model) || random;
    return asprintf(name, "%s%s%s%s%s%s%s%s%s", named ? r->model.name : "",
                    random ? " (random weights)" : "", named ? ": " : "", label_of(r), before, more,
                    level >= 3 ? " [" : "", level >= 3 ? r->path : "", level >= 3 ? "]" : "");
}

static int prefix(char **label, const char *model, kvd_err *err)
{
    char *longer;
    if (asprintf(&longer, "%s: %s", model, *label) < 0)
        return kvd_no_memory(err, "a label", strlen(model) + strlen(*label) + 3);
    free(*label);
    *label = longer;
    return 0;
}

static bool one_name_two_models(const kvd_result *a, const kvd_result *b)
{
    return a->has_model && b->has_model && !strcmp(a->model.name, b->model.name) &&
           strcmp(a->model.hash, b->model.hash) && !kvd_result_random_weights(a) &&
           !kvd_result_random_weights(b);
}

/* Appends the model's hash to its name where two different models have the same name. */
static int tell_models_apart(kvd_results *r, kvd_err *err)
{
    bool *const twice = calloc(r->n ? r->n : 1, sizeof *twice);
    if (!twice)
        return kvd_no_memory(err, "names of models", r->n * sizeof *twice);
    for (size_t i = 0; i < r->n; i++)
        for (size_t j = 0; j < r->n && !twice[i]; j++)
            twice[i] = one_name_two_models(&r->item[i], &r->item[j]);
    for (size_t i = 0; i < r->n; i++) {
        kvd_model_info *const m = &r->item[i].model;
        const char *const colon = strchr(m->hash, ':');
        char name[sizeof m->name];
        if (!twice[i])
            continue;
        snprintf(name, sizeof name, "%.32s (hash %.8s)", m->name, colon ? colon + 1 : m->hash);
        memcpy(m->name, name, sizeof name);
    }
    free(twice);
    return 0;
}

/* Returns the label of the row with the mean score over tasks, such as "mean of 2 tasks". Returns
 * NULL if the file has no such row. */
static const char *mean_label(const kvd_result *r)
{
    for (size_t i = 0; r->kind == KVD_RESULT_TASKS && i < kvd_rows_count(r->accuracy.rows); i++)
        if (kvd_tasks_label_is_mean(kvd_row_text(r->accuracy.rows, i, "label")))
            return kvd_row_text(r->accuracy.rows, i, "label");
    return NULL;
}

static int by_text(const void *a, const void *b)
{
    return strcmp(*(const char *const *)a, *(const char *const *)b);
}

/* Returns the label of a file's mean over tasks, followed by the tasks in alphabetical order:
 * "mean of 2 tasks: A, B". The caller frees it. */
static char *label_with_tasks(const kvd_result *r, kvd_err *err)
{
    const kvd_rows *const rows = r->accuracy.rows;
    const size_t n_rows = kvd_rows_count(rows);
    const char **const task = calloc(n_rows + 1, sizeof *task);
    char *text = NULL;
    size_t len = 0, n = 0;
    FILE *const f = task ? open_memstream(&text, &len) : NULL;
    for (size_t i = 0; f && i < n_rows; i++)
        if (!kvd_tasks_label_is_mean(kvd_row_text(rows, i, "label")))
            task[n++] = kvd_row_text(rows, i, "label");
    if (f) {
        qsort(task, n, sizeof *task, by_text);
        fputs(mean_label(r), f);
        for (size_t i = 0; i < n; i++)
            if (i == 0 || strcmp(task[i], task[i - 1]))
                fprintf(f, "%s%s", i ? ", " : ": ", task[i]);
    }
    free(task);
    if (!f || fclose(f) || !text) {
        kvd_no_memory(err, "a label", n_rows * sizeof *task);
        free(text);
        return NULL;
    }
    return text;
}

int kvd_results_name_means(kvd_results *r, kvd_results *also, kvd_err *err)
{
    const size_t n = r->n + also->n;
    char **const label = calloc(n + 1, sizeof *label);
    bool *const named = calloc(n + 1, sizeof *named);
    int status = label && named ? 0 : kvd_no_memory(err, "labels", n * sizeof *label);
    for (size_t i = 0; i < n && !status; i++) {
        const kvd_result *const x = i < r->n ? &r->item[i] : &also->item[i - r->n];
        if (!mean_label(x))
            continue;
        if (!(label[i] = label_with_tasks(x, err)))
            status = -1;
        for (size_t j = 0; j < i && !status; j++) {
            const kvd_result *const y = j < r->n ? &r->item[j] : &also->item[j - r->n];
            if (label[j] && !strcmp(mean_label(x), mean_label(y)) && strcmp(label[i], label[j]))
                named[i] = named[j] = true;
        }
    }
    for (size_t i = 0; i < n && !status; i++) {
        kvd_rows *const rows = (i < r->n ? &r->item[i] : &also->item[i - r->n])->accuracy.rows;
        for (size_t k = 0; named[i] && k < kvd_rows_count(rows) && !status; k++)
            if (kvd_tasks_label_is_mean(kvd_row_text(rows, k, "label")))
                status =
                    kvd_rows_replace_text(rows, k, kvd_rows_find(rows, "label"), label[i], err);
    }
    for (size_t i = 0; label && i < n; i++)
        free(label[i]);
    free(label);
    free(named);
    return kvd_status(status);
}

int kvd_results_name(kvd_results *r, kvd_err *err)
{
    if (tell_models_apart(r, err))
        return -1;
    bool models = false;
    const kvd_model_info *first = NULL;
    for (size_t i = 0; i < r->n; i++)
        if (r->item[i].has_model) {
            models = models || (first && strcmp(first->hash, r->item[i].model.hash) != 0);
            first = &r->item[i].model;
        }
    for (size_t i = 0; i < r->n; i++) {
        kvd_similarity *s = &r->item[i].similarity;
        if (r->item[i].kind != KVD_RESULT_SIMILARITY || !r->item[i].has_model ||
            !(models || kvd_result_random_weights(&r->item[i])))
            continue;
        for (size_t k = 0; k < s->n_files; k++)
            if (prefix(&s->label[k], r->item[i].model.name, err))
                return -1;
    }
    for (int level = 0; level <= 3; level++)
        for (size_t i = 0; i < r->n; i++) {
            bool clash = r->item[i].name == NULL;
            for (size_t j = 0; j < r->n && !clash; j++)
                clash = j != i && r->item[j].kind == r->item[i].kind && r->item[j].name &&
                        strcmp(r->item[j].name, r->item[i].name) == 0;
            if (!clash)
                continue;
            /* Gives a longer name to every result that has the same name as result i. */
            char *old = r->item[i].name;
            char *shared = old ? strdup(old) : NULL;
            for (size_t j = i; j < r->n; j++) {
                kvd_result *x = &r->item[j];
                if (j != i &&
                    (!shared || x->kind != r->item[i].kind || !x->name || strcmp(x->name, shared)))
                    continue;
                char *name = NULL;
                if (describe(x, level, models, &name) < 0) {
                    free(shared);
                    return kvd_no_memory(err, "names", 0);
                }
                kvd_series_clean(name);
                free(x->name);
                x->name = name;
            }
            free(shared);
        }
    return 0;
}
